"""Exit codes of the storage commands, for a whole etcd: of several findings the lowest number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etcdmaint.compression.contents import Content

if TYPE_CHECKING:
    from etcdmaint.compression.census import Census

CORRUPT, NEWER, MALFORMED, NO_KEY, NO_SUCH_KEY, NOT_VERIFIED = 10, 11, 12, 13, 14, 15

_CODES = {
    Content.CHECKSUM: CORRUPT,
    Content.ENVELOPE: CORRUPT,
    Content.UNDECRYPTABLE: CORRUPT,
    Content.NEWER: NEWER,
    Content.MALFORMED: MALFORMED,
}


def code_of(census: Census, *, with_keys: bool) -> int:
    """0, or the lowest code of what was found; without keys, encrypted values are as they should be."""
    found = set()
    for row in census.rows.values():
        for form in row.forms:
            if form.content in _CODES:
                found.add(_CODES[form.content])
            elif form.content is Content.ENCRYPTED and with_keys:
                found.add(NO_KEY)
            elif row.located and form.content in (Content.OPAQUE, Content.EMPTY):
                found.add(CORRUPT)
    return min(found, default=0)

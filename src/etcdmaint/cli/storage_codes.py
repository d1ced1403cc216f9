"""Exit codes of the storage commands that read an etcd: of several findings the lowest number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etcdmaint.compression.contents import Content

if TYPE_CHECKING:
    from etcdmaint.compression.census import Census

CORRUPT, NEWER, MALFORMED, NO_KEY, NO_SUCH_KEY, NOT_VERIFIED = 10, 11, 12, 13, 14, 15

CODES_OF_ONE_VALUE = (
    "\b\nExit codes besides 0, 1, 2 and 130:\n"
    "  10  damaged\n  11  written by a newer release\n  12  intact, but no good frame\n"
    "  13  no encryption key for it\n"
    "  14  no such key in etcd"
)
"""For the help of a command that looks at one."""

_CODES = {
    Content.CHECKSUM: CORRUPT,
    Content.ENVELOPE: CORRUPT,
    Content.UNDECRYPTABLE: CORRUPT,
    Content.NEWER: NEWER,
    Content.MALFORMED: MALFORMED,
    Content.ENCRYPTED: NO_KEY,
}


def code_of_value(content: Content, *, located: bool) -> int:
    """For one value, under the key of an object if `located`; 0 where it can be read."""
    if located and content in (Content.OPAQUE, Content.EMPTY):
        return CORRUPT
    return _CODES.get(content, 0)


def code_of(census: Census, *, with_keys: bool) -> int:
    """0, or the lowest code of what was found; without keys, encrypted values are as they should be."""
    found = set()
    for row in census.rows.values():
        for form in row.forms:
            if with_keys or form.content is not Content.ENCRYPTED:
                found.add(code_of_value(form.content, located=row.located))
    return min(found - {0}, default=0)

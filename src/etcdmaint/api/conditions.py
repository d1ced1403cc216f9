"""Standard conditions: one entry a type, changed by one pure function.

A condition is plain data here, as it stands in a status: whoever writes it hands the list on to the
Kubernetes API. This module must not know which condition types exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from etcdmaint.api.fields import format_time, parse_time
from etcdmaint.api.vocabulary import ConditionStatus
from etcdmaint.errors import InvalidInput

MAX_MESSAGE: Final = 4096
"""Characters; the API allows 32768, but this is written to an etcd that is to stay small."""

_STATUS = {
    True: ConditionStatus.TRUE,
    False: ConditionStatus.FALSE,
    None: ConditionStatus.UNKNOWN,
}
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def set_condition(
    conditions: Iterable[object],
    type: str,  # noqa: A002  # the API's own word
    status: bool | None,
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """The conditions with this one set; None for the status is Unknown.

    lastTransitionTime moves only when the status flips, so equal input gives an equal list and
    nothing need be written. Entries that are none, and all but the first of a type, are left out.
    """
    if _REASON.fullmatch(reason) is None:
        raise ValueError(f"{reason!r} cannot be the reason of a condition")
    wanted = _STATUS[status]
    kept: dict[str, dict[str, Any]] = {}
    for entry in conditions:
        if isinstance(entry, Mapping) and isinstance(entry.get("type"), str):
            kept.setdefault(entry["type"], dict(entry))
    since = now
    before = kept.get(type)
    if before is not None and before.get("status") == wanted:
        since = _time(before.get("lastTransitionTime")) or now
    kept[type] = {
        "type": type,
        "status": wanted.value,
        "reason": reason,
        "message": message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…",
        "observedGeneration": generation,
        "lastTransitionTime": format_time(since),
    }
    return list(kept.values())


def find_condition(conditions: Iterable[object], type: str) -> Mapping[str, Any] | None:  # noqa: A002  # as above
    """The first condition of that type."""
    for entry in conditions:
        if isinstance(entry, Mapping) and entry.get("type") == type:
            return entry
    return None


def condition_is(conditions: Iterable[object], type: str, status: bool) -> bool:  # noqa: A002  # as above
    """Whether the condition of that type is there and is True, or False. Unknown is neither."""
    entry = find_condition(conditions, type)
    return entry is not None and entry.get("status") == _STATUS[status]


def _time(value: object) -> datetime | None:
    try:
        return parse_time(value)  # type: ignore[arg-type]  # it refuses every other type
    except InvalidInput:
        return None

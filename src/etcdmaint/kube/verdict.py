"""What a condition is to say, and the patch that makes a status say it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from etcdmaint.api.conditions import set_condition
from etcdmaint.api.metadata import generation_of
from etcdmaint.kube.client import Json


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition to be: `status` None is Unknown."""

    status: bool | None
    reason: str
    message: str


def with_verdicts(
    conditions: Iterable[Json],
    verdicts: Mapping[Any, Verdict],
    obj: Mapping[str, Any],
    now: datetime,
) -> list[Json]:
    """The conditions with these set, by type, as what was found of the object's present spec."""
    said = list(conditions)
    for kind, it in verdicts.items():
        said = set_condition(said, kind, it.status, it.reason, it.message, generation_of(obj), now)
    return said


def merge_patch(before: object, after: Mapping[str, Any]) -> Json:
    """The merge patch from one object to the other: null for what is there no more."""
    old = before if isinstance(before, Mapping) else {}
    patch: Json = {key: None for key in old if key not in after}
    for key, value in after.items():
        if isinstance(value, Mapping) and isinstance(old.get(key), Mapping):
            if inner := merge_patch(old[key], value):
                patch[key] = inner
        elif old.get(key) != value:
            patch[key] = value
    return patch

"""etcd releases whose defragmentation is known to go wrong, as data (D17).

Each row names the defect, the releases that have it and the first good one of that line. `REFUSE` means
that data can be lost; `WARN` that it can be lost only together with something else that the gate or the
room on the disk already guards against.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

Version = tuple[int, int, int]


class Action(StrEnum):
    """What to do about a hazard."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Hazard:
    """One known defect; `fixed` has the first good release of each line that has the defect."""

    action: Action
    defect: str
    fixed: tuple[Version, ...]
    introduced: Version = (0, 0, 0)

    def first_good(self, version: Version) -> Version | None:
        """The first good release for this one, or None when this one is good itself."""
        if version < self.introduced:
            return None
        for fix in self.fixed:
            if version[:2] <= fix[:2]:
                return fix if version < fix else None
        return None


HAZARDS = (
    Hazard(
        Action.REFUSE,
        "a crash during defragmentation leaves members with different data (etcd#14685)",
        fixed=((3, 5, 6),),
        introduced=(3, 5, 0),
    ),
    Hazard(
        Action.REFUSE,
        "a leftover of an interrupted defragmentation is merged into the database (etcd#11613)",
        fixed=((3, 4, 4),),
    ),
    Hazard(
        Action.WARN,
        "defragmenting while a snapshot is applied can corrupt the member (etcd#20271)",
        fixed=((3, 4, 38), (3, 5, 23), (3, 6, 5)),
    ),
    Hazard(
        Action.WARN,
        "a full disk during defragmentation makes etcd panic (etcd#18810)",
        fixed=((3, 4, 35), (3, 5, 17)),
    ),
    Hazard(
        Action.WARN,
        "defragmentation drops the options of the database file (etcd#13713)",
        fixed=((3, 4, 19), (3, 5, 3)),
    ),
)


def parse_version(text: str) -> Version | None:
    """`3.5.4` or `3.7.0-rc.1` as three numbers; None for anything else."""
    match = re.match(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:$|[-+])", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def find_hazards(text: str) -> tuple[tuple[Action, str], ...]:
    """What is known against defragmenting this release: the action and a sentence for each defect."""
    version = parse_version(text)
    if version is None:
        return ((Action.WARN, f"the release {text[:40]!r} is not known to this program"),)
    return tuple(
        (
            hazard.action,
            f"etcd {text}: {hazard.defect}; the first good release is {'.'.join(map(str, good))}",
        )
        for hazard in HAZARDS
        if (good := hazard.first_good(version)) is not None
    )

"""A StorageCompressionConfiguration as the file that it stands for, judged by the file's own rules.

Pure. What is published is exactly what was judged: the bytes that are hashed here have been read by the
strict loader. This module must not know who may load the file, nor where it is put.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from etcdmaint.api.compression import StorageCompressionConfiguration, parse_compression
from etcdmaint.api.conditions import MAX_MESSAGE
from etcdmaint.compression.policy import FIRST_READER, Policy, Problem, Stage, problems
from etcdmaint.compression.rendering import Entry, render
from etcdmaint.errors import InvalidInput
from etcdmaint.kube.verdict import Verdict

Release = tuple[int, int]

FIRST_WITH_STAGE: Final[Mapping[Stage, Release]] = {Stage.ALPHA: (1, 38), Stage.BETA: (1, 39)}
"""KEP-6264, Graduation criteria: the first release that knows a stage's fields."""

SECRETS_SELECTED: Final = "SecretsSelected"
"""The reason of Valid where the warning of R121 is due."""

_MOST_TOLD: Final = MAX_MESSAGE - 64

# Whether a release may load the file is asked later, and of that release.
_ANY_RELEASE = "999999.0"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a file asks of a release, and the path of the field that does."""

    release: Release
    field: str


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A file that a strict loader takes.

    `reader` is the minimum compatibility version without which an API server does not start with it
    (R116, R119), `fields` the release without which it does not know a field; None: any will do.
    """

    data: bytes
    hash: str
    warnings: tuple[str, ...]
    reader: Requirement | None
    fields: Requirement | None


@dataclass(frozen=True, slots=True)
class Reading:
    """An object, read: `config` None where not even its types are right, `file` None if not valid."""

    config: StorageCompressionConfiguration | None
    file: PolicyFile | None
    valid: Verdict


def read_configuration(obj: Mapping[str, Any]) -> Reading:
    """Judge an object, whatever was stored under that name; every fault is told with its path."""
    try:
        config = parse_compression(obj)
    except InvalidInput as error:
        return Reading(None, None, Verdict(False, error.reason, str(error)))
    stage = Stage(config.spec.stage.value)
    entries = tuple(
        Entry(entry.resources, entry.algorithm, entry.min_size, entry.rewrite)
        for entry in config.spec.resources
    )
    data = render(entries)
    found = problems(data, stage=stage, min_compatibility_version=_ANY_RELEASE)
    if found:
        return Reading(config, None, Verdict(False, InvalidInput.reason, _told(found)))
    policy = Policy.load(data, stage=stage, min_compatibility_version=_ANY_RELEASE)
    file = PolicyFile(data, policy.hash, policy.warnings, _reader(policy), _fields(entries))
    if file.warnings:
        return Reading(config, file, Verdict(True, SECRETS_SELECTED, "; ".join(file.warnings)))
    count = len(entries)
    message = f"the policy has {count} entr{'y' if count == 1 else 'ies'}"
    return Reading(config, file, Verdict(True, "Valid", message))


def _told(found: tuple[Problem, ...]) -> str:
    # Lines of a file that nobody has written mean nothing to its author; paths do.
    faults = [f"spec.{problem.field or 'resources'}: {problem.fault}" for problem in found]
    if len(faults) == 1:
        return faults[0]
    # A message has an end. How many are behind it is told, and none is told by half.
    shown = bisect_right(list(accumulate(len(fault) + 2 for fault in faults)), _MOST_TOLD) or 1
    more = f"; and {len(faults) - shown} more" if shown < len(faults) else ""
    return f"{len(faults)} faults: {'; '.join(faults[:shown])}{more}"


def _reader(policy: Policy) -> Requirement | None:
    needed = [
        Requirement(FIRST_READER[rule.algorithm], f"spec.resources[{rule.entry}].algorithm")
        for rule in policy.rules
        if rule.algorithm in FIRST_READER
    ]
    return max(needed, key=lambda requirement: requirement.release, default=None)


def _fields(entries: tuple[Entry, ...]) -> Requirement | None:
    for index, entry in enumerate(entries):
        if entry.rewrite is not None:
            field = f"spec.resources[{index}].rewrite"
            return Requirement(FIRST_WITH_STAGE[Stage.BETA], field)
    return None

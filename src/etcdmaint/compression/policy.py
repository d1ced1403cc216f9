"""Which values become frames: a loaded StorageCompressionConfiguration (KEP-6264, Proposal).

A policy never changes once it is loaded: there is no reload, since the stored form of an object must
not follow from a file's edit. It governs writing and staleness only; reading never asks it. The file
itself is read in `policy_file`, what a rule means is in `rule`. Knows no etcd key and no value.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from pathlib import Path

from etcdmaint.compression import policy_file
from etcdmaint.compression.document import MAX_BYTES, Problem
from etcdmaint.compression.policy_file import EVERYTHING, FIRST_READER, SECRETS, Selector, Stage
from etcdmaint.compression.rule import INERT, UNSELECTED, Algorithm, Rewrite, Rule
from etcdmaint.errors import InvalidInput
from etcdmaint.files import read_whole

__all__ = ["FIRST_READER", "Algorithm", "Policy", "Problem", "Rewrite", "Rule", "Stage", "problems"]

_SIDE_CHANNEL = (
    "secrets are selected for compression: the stored length of a Secret then tells how well its "
    "content compresses, also under encryption at rest, to whoever can see that length and write "
    "part of the Secret"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole file, ready to be asked. Make one with `load`, `read` or `absent`.

    `hash` is `sha256:` and the digest of the file's bytes, "" without a file: every process in
    front of one etcd has to have the same. `rules` has one rule for each entry, in their order.
    """

    rules: tuple[Rule, ...] = ()
    hash: str = ""
    warnings: tuple[str, ...] = ()
    _exact: dict[Selector, Rule] = field(default_factory=dict, repr=False)
    _default: Rule = INERT

    @classmethod
    def absent(cls) -> Policy:
        """The policy of a process without a file: frames nothing, reads everything."""
        return cls()

    @classmethod
    def load(cls, data: bytes, *, stage: Stage, min_compatibility_version: str) -> Policy:
        """Read a file's bytes. Raises InvalidInput that tells every problem of the file.

        `min_compatibility_version` (`1.38`) is the oldest release that must be able to read what
        this process writes. What ought to be thought about twice is in `warnings`, and logged here,
        once.
        """
        contents = policy_file.read(data, stage, min_compatibility_version)
        found = contents.problems
        if len(found) == 1:
            raise InvalidInput(found[0].field, found[0].fault)
        if found:
            told = "\n".join(f"  {problem}" for problem in found)
            raise InvalidInput("", f"{len(found)} problems:\n{told}")
        secrets = contents.by_selector.get(SECRETS)
        policy = cls(
            rules=contents.rules,
            hash=f"sha256:{hashlib.sha256(data).hexdigest()}",
            warnings=(_SIDE_CHANNEL,) if secrets is not None and secrets.compresses else (),
            _exact=contents.by_selector,
            _default=UNSELECTED,
        )
        for warning in policy.warnings:
            _log.warning("%s", warning)
        return policy

    @classmethod
    def read(cls, path: Path, *, stage: Stage, min_compatibility_version: str) -> Policy:
        """Read a file. Raises InvalidInput, also where the file cannot be read."""
        data = read_whole(path, field=str(path), most=MAX_BYTES)
        return cls.load(data, stage=stage, min_compatibility_version=min_compatibility_version)

    def rule_for(self, group: str, resource: str) -> Rule:
        """The rule of one resource, in constant time. The group of core is ""."""
        exact = self._exact
        rule = exact.get((group, resource))
        if rule is None and (group, resource) != SECRETS:
            rule = exact.get((group, "*")) or exact.get(EVERYTHING)
        return rule or self._default


def problems(data: bytes, *, stage: Stage, min_compatibility_version: str) -> tuple[Problem, ...]:
    """Everything that is wrong with a file, in the order of its lines; empty for a good one."""
    return policy_file.read(data, stage, min_compatibility_version).problems

"""Which values become frames: the StorageCompressionConfiguration file (KEP-6264, Proposal).

A file is loaded whole or refused with everything that is wrong with it: whoever is told one fault a
restart gives up after the third. A loaded policy never changes (there is no reload: the stored form
of an object must not follow from a file's edit), and it governs writing and staleness only. Reading
never asks it.

The first entry that matches a resource wins. No entry can lie behind a wildcard that covers it, so
the most specific selector is the first, and looking up is three dictionaries. Core `secrets` are in
no wildcard.

This module knows no etcd key and no value.
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import yaml

from etcdmaint.compression.encryption.document import Field, Problem, Problems, parse
from etcdmaint.compression.frame import MAX_PLAINTEXT_BYTES
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import parse_quantity

__all__ = ["Algorithm", "Policy", "Problem", "Rewrite", "Rule", "Stage", "problems"]

API_VERSION: Final = "apiserver.config.k8s.io/v1alpha1"
KIND: Final = "StorageCompressionConfiguration"
DEFAULT_MIN_SIZE: Final = 1024
SMALLEST_MIN_SIZE: Final = 64
# What a request to etcd carries beside the value: key, transaction, the largest envelope.
REQUEST_HEADROOM_BYTES: Final = 64 * 1024

# (group, resource); "*" in either place stands for all of them.
_Selector = tuple[str, str]
_Choice = TypeVar("_Choice", bound=StrEnum)

_EVERYTHING: Final = ("*", "*")
_SECRETS: Final = ("", "secrets")
_RESOURCE = re.compile(r"\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_GROUP = re.compile(
    r"\*?|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})", re.ASCII)
_SIDE_CHANNEL = (
    "secrets are selected for compression: the stored length of a Secret then tells how well its "
    "content compresses, also under encryption at rest, to whoever can see that length and write "
    "part of the Secret"
)

_log = logging.getLogger(__name__)


class Stage(StrEnum):
    """How far the proposal has come: a later stage knows more fields."""

    ALPHA = "alpha"
    BETA = "beta"


class Algorithm(StrEnum):
    """What an entry may ask for."""

    DEFLATE = "Deflate"
    NONE = "None"


class Rewrite(StrEnum):
    """Whether a change of policy reaches the values that are there already."""

    EAGER = "Eager"
    ON_WRITE = "OnWrite"


# An enum's attribute costs more than the comparison, and these are asked for every value.
_DEFLATE: Final = Algorithm.DEFLATE
_EAGER: Final = Rewrite.EAGER

# The first release that reads what each algorithm writes; every new one needs its line.
FIRST_READER: Final = {Algorithm.DEFLATE: (1, 38)}


@dataclass(frozen=True, slots=True)
class Rule:
    """What the policy says of one resource.

    `entry` is the index in the file (None: no entry matches), sizes are bytes, both inclusive.
    `inert` marks the rule of a process without a file, which also counts nothing.
    """

    entry: int | None = None
    algorithm: Algorithm = Algorithm.NONE
    min_size: int | None = None
    rewrite: Rewrite = Rewrite.EAGER
    ceiling: int = MAX_PLAINTEXT_BYTES
    inert: bool = False

    @property
    def compresses(self) -> bool:
        """Whether any value of this resource is to be framed for its size."""
        return self.algorithm is not Algorithm.NONE

    def frames(self, plaintext: bytes) -> bool:
        """Whether this plaintext is stored as a frame (KEP-6264, The write path).

        Its first byte, its length and the policy decide, never how well it compresses: reading has
        to find the same answer without compressing anything.
        """
        floor, size = self.min_size, len(plaintext)
        if self.algorithm is _DEFLATE and floor is not None and floor <= size <= self.ceiling:
            return True
        return plaintext[:1] == b"\x00"

    def stale(self, framed: bool, plaintext: bytes) -> bool:
        """Whether a value found in this form should be rewritten (Staleness and migration)."""
        return self.rewrite is _EAGER and framed is not self.frames(plaintext)


_UNSELECTED: Final = Rule()
_INERT: Final = Rule(inert=True)


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole file, ready to be asked. Make one with `load`, `read` or `absent`.

    `hash` is `sha256:` and the digest of the file's bytes, "" without a file: every process in
    front of one etcd has to have the same. `rules` has one rule for each entry, in their order.
    """

    rules: tuple[Rule, ...] = ()
    hash: str = ""
    warnings: tuple[str, ...] = ()
    _exact: dict[_Selector, Rule] = field(default_factory=dict, repr=False)
    _default: Rule = _INERT

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
        policy, found = _load(data, stage, min_compatibility_version)
        if len(found) == 1:
            raise InvalidInput(found[0].field, found[0].fault)
        if found:
            told = "\n".join(f"  {problem}" for problem in found)
            raise InvalidInput("", f"{len(found)} problems:\n{told}")
        for warning in policy.warnings:
            _log.warning("%s", warning)
        return policy

    @classmethod
    def read(cls, path: Path, *, stage: Stage, min_compatibility_version: str) -> Policy:
        """Read a file. Raises InvalidInput, also where the file cannot be read."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from error
        return cls.load(data, stage=stage, min_compatibility_version=min_compatibility_version)

    def rule_for(self, group: str, resource: str) -> Rule:
        """The rule of one resource, in constant time. The group of core is ""."""
        exact = self._exact
        rule = exact.get((group, resource))
        if rule is None and (group, resource) != _SECRETS:
            rule = exact.get((group, "*")) or exact.get(_EVERYTHING)
        return rule or self._default


def problems(data: bytes, *, stage: Stage, min_compatibility_version: str) -> tuple[Problem, ...]:
    """Everything that is wrong with a file, in the order of its lines; empty for a good one."""
    return _load(data, stage, min_compatibility_version)[1]


def _load(data: bytes, stage: Stage, oldest: str) -> tuple[Policy, tuple[Problem, ...]]:
    root = parse(data)
    if isinstance(root, Problem):
        return Policy.absent(), (root,)
    return _Loader(stage, _version(oldest)).load(root, data)


class _Loader:
    """One pass over one file, collecting rules and faults."""

    def __init__(self, stage: Stage, oldest: tuple[int, int]) -> None:
        self._beta = stage is Stage.BETA
        self._oldest = oldest
        self._problems = Problems()
        self._claims: dict[_Selector, int] = {}
        self._exact: dict[_Selector, Rule] = {}
        self._ceiling = MAX_PLAINTEXT_BYTES

    def load(self, root: Field, data: bytes) -> tuple[Policy, tuple[Problem, ...]]:
        top = self._mapping(root, ("apiVersion", "kind", "resources"), "maxRequestBytes")
        rules: list[Rule] = []
        if top:
            for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
                if top[name].text(Problems()) != wanted:
                    self._problems.add(top[name], f"must be {wanted}")
            self._ceiling = self._request_ceiling(top["maxRequestBytes"])
            entries = top["resources"].items(self._problems)
            rules = [self._entry(index, entry) for index, entry in enumerate(entries)]
        secrets = self._exact.get(_SECRETS)
        policy = Policy(
            rules=tuple(rules),
            hash=f"sha256:{hashlib.sha256(data).hexdigest()}",
            warnings=(_SIDE_CHANNEL,) if secrets is not None and secrets.compresses else (),
            _exact=self._exact,
            _default=_UNSELECTED,
        )
        return policy, self._problems.all()

    def _entry(self, index: int, at: Field) -> Rule:
        fields = self._mapping(at, ("resources", "algorithm", "minSize"), "rewrite")
        if not fields:
            return _UNSELECTED
        rule = Rule(
            entry=index,
            algorithm=self._algorithm(fields["algorithm"]),
            min_size=self._min_size(fields["minSize"]),
            rewrite=self._choice(fields["rewrite"], Rewrite) or Rewrite.EAGER,
            ceiling=self._ceiling,
        )
        listed = fields["resources"]
        names = listed.items(self._problems)
        if not names and (listed.absent or isinstance(listed.node, yaml.SequenceNode)):
            self._problems.add(listed, "must name at least one resource")
        mine: dict[str, _Selector] = {}
        for name in names:
            selector = self._selector(name)
            if selector is None:
                continue
            fault = self._claim(selector, index, mine)
            if fault:
                self._problems.add(name, fault)
            self._exact.setdefault(selector, rule)
        return rule

    def _selector(self, at: Field) -> _Selector | None:
        own = Problems()
        text = at.text(own)
        for fault in [problem.fault for problem in own.all()] or _selector_faults(text):
            self._problems.add(at, fault)
            return None
        resource, _, group = text.partition(".")
        return group, resource

    def _claim(self, selector: _Selector, entry: int, mine: dict[str, _Selector]) -> str:
        """Take a selector for an entry; what is wrong with that, "" for nothing.

        `mine` has the first selector of each group that this entry has claimed so far.
        """
        group, resource = selector
        covers = [selector]
        if selector != _SECRETS:
            covers += [(group, "*"), _EVERYTHING]
        for cover in covers:
            claimed = self._claims.get(cover)
            if claimed == entry:
                return f"is covered by {_written(cover)} of the same entry"
            if claimed is not None:
                return f"never takes effect: resources[{claimed}] has {_written(cover)}"
        self._claims[selector] = entry
        covered = None
        if resource == "*":
            covered = next(iter(mine.values()), None) if group == "*" else mine.get(group)
        if selector != _SECRETS:
            mine.setdefault(group, selector)
        return f"covers {_written(covered)} of the same entry" if covered else ""

    def _algorithm(self, at: Field) -> Algorithm:
        if at.absent:
            self._problems.add(at, "is required: Deflate or None")
            return Algorithm.NONE
        algorithm = self._choice(at, Algorithm) or Algorithm.NONE
        needed = FIRST_READER.get(algorithm, (0, 0))
        if self._oldest < needed:
            self._problems.add(
                at,
                f"{algorithm} is read from release {needed[0]}.{needed[1]} on, and the minimum "
                f"compatibility version is {self._oldest[0]}.{self._oldest[1]}",
            )
        return algorithm

    def _min_size(self, at: Field) -> int:
        size = self._bytes(at)
        if size is None:
            return DEFAULT_MIN_SIZE
        if not SMALLEST_MIN_SIZE <= size < self._ceiling:
            self._problems.add(
                at, f"must be at least {SMALLEST_MIN_SIZE} and below {self._ceiling} bytes"
            )
        return size

    def _request_ceiling(self, at: Field) -> int:
        limit = self._bytes(at)
        if limit is None:
            return MAX_PLAINTEXT_BYTES
        ceiling = limit - REQUEST_HEADROOM_BYTES
        if ceiling <= DEFAULT_MIN_SIZE:
            self._problems.add(at, "leaves no room for a value: 64Ki of a request are set aside")
            return MAX_PLAINTEXT_BYTES
        # A reader takes no more than this, whatever etcd would.
        return min(ceiling, MAX_PLAINTEXT_BYTES)

    def _bytes(self, at: Field) -> int | None:
        """A number of bytes; None where it is absent or no such number."""
        if at.absent:
            return None
        node = at.node
        if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(
            (":int", ":float", ":str")
        ):
            self._problems.add(at, "must be a number of bytes, such as 512 or 1Ki")
        elif node.tag.endswith(":int") and re.match(r"[-+]?0.", node.value):
            # YAML reads octal here, a person does not.
            self._problems.add(at, "must be a decimal number without leading zeros")
        else:
            try:
                size = parse_quantity(node.value)
            except InvalidInput as error:
                self._problems.add(at, error.fault)
            else:
                if size == int(size):
                    return int(size)
                self._problems.add(at, "must be a whole number of bytes")
        return None

    def _choice(self, at: Field, kinds: type[_Choice]) -> _Choice | None:
        if at.absent:
            return None
        text = at.text(Problems())
        if text in set(kinds):
            return kinds(text)
        self._problems.add(at, f"must be {' or '.join(kinds)}")
        return None

    def _mapping(self, at: Field, names: tuple[str, ...], beta: str) -> dict[str, Field]:
        """The fields of a mapping; unlike in a file with keys, unknown ones are told by name."""
        known = (*names, beta) if self._beta else names
        prefix = f"{at.path}." if at.path else ""
        if not isinstance(at.node, yaml.MappingNode):
            self._problems.add(at, "must be a mapping")
            return {}
        fields = {name: Field(prefix + name, at.line, None) for name in (*names, beta)}
        for key, value in at.node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            found = Field(prefix + _shown(name), key.start_mark.line + 1, value)
            if name not in known:
                self._problems.add(found, f"unknown field; there are {', '.join(known)}")
            elif fields[name].node is not None:
                self._problems.add(found, "given twice")
            else:
                fields[name] = found
        return fields


def _selector_faults(text: str) -> list[str]:
    """What is wrong with a selector as it is written; the first fault counts."""
    resource, _, group = text.partition(".")
    if not text:
        return ["is empty"]
    if text != text.lower():
        return ["must not contain capital letters"]
    if text == "*":
        return ["use '*.' for the core group, or '*.*' for everything"]
    if group == "*" and resource != "*":
        return ["one resource of every group cannot be selected"]
    if not _RESOURCE.fullmatch(resource) or not _GROUP.fullmatch(group):
        return ["must be <resource>, <resource>.<group>, *.<group>, *. or *.*"]
    return []


def _written(selector: _Selector) -> str:
    group, resource = selector
    return f"{resource}.{group}" if group or resource == "*" else resource


def _shown(name: str) -> str:
    return name if name.isprintable() and len(name) <= 64 else ascii(name[:64])


def _version(text: str) -> tuple[int, int]:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise InvalidInput("min_compatibility_version", "must be a release such as 1.38")
    return int(match[1]), int(match[2])

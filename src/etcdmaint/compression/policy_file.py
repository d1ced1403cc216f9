"""The StorageCompressionConfiguration file, read strictly (KEP-6264, Proposal).

All faults of a file are found at once: whoever is told one a restart gives up after the third. No
entry may lie behind a selector that covers it, so the most specific selector is always the first,
and looking up is a matter of dictionaries. Core `secrets` are in no wildcard. Everything that could
be read two ways (octal numbers, a merge, half a wildcard) is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

import yaml

from etcdmaint.compression.document import Field, Problem, Problems, parse
from etcdmaint.compression.frame import MAX_PLAINTEXT_BYTES
from etcdmaint.compression.rule import UNSELECTED, Algorithm, Rewrite, Rule
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import parse_quantity

API_VERSION: Final = "apiserver.config.k8s.io/v1alpha1"
KIND: Final = "StorageCompressionConfiguration"
DEFAULT_MIN_SIZE: Final = 1024
SMALLEST_MIN_SIZE: Final = 64
# What a request to etcd carries beside the value: key, transaction, the largest envelope.
REQUEST_HEADROOM_BYTES: Final = 64 * 1024

# (group, resource); "*" in either place stands for all of them.
Selector = tuple[str, str]
_Choice = TypeVar("_Choice", bound=StrEnum)

EVERYTHING: Final = ("*", "*")
SECRETS: Final = ("", "secrets")

_RESOURCE = re.compile(r"\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_GROUP = re.compile(
    r"\*?|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})", re.ASCII)


class Stage(StrEnum):
    """How far the proposal has come: a later stage knows more fields."""

    ALPHA = "alpha"
    BETA = "beta"


# The first release that reads what each algorithm writes; every new one needs its line.
FIRST_READER: Final = {Algorithm.DEFLATE: (1, 38)}


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file says: a rule for each entry, the rule of each selector, and what is wrong."""

    rules: tuple[Rule, ...] = ()
    by_selector: dict[Selector, Rule] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def read(data: bytes, stage: Stage, min_compatibility_version: str) -> Contents:
    """Read a file's bytes. Raises InvalidInput for a version that is none, and for nothing else."""
    oldest = _version(min_compatibility_version)
    root = parse(data)
    if isinstance(root, Problem):
        return Contents(problems=(root,))
    return _Reader(stage, oldest).read(root)


class _Reader:
    """One pass over one file, collecting rules and faults."""

    def __init__(self, stage: Stage, oldest: tuple[int, int]) -> None:
        self._beta = stage is Stage.BETA
        self._oldest = oldest
        self._problems = Problems()
        self._claims: dict[Selector, int] = {}
        self._exact: dict[Selector, Rule] = {}
        self._ceiling = MAX_PLAINTEXT_BYTES

    def read(self, root: Field) -> Contents:
        top = self._mapping(root, ("apiVersion", "kind", "resources"), "maxRequestBytes")
        rules: list[Rule] = []
        if top:
            for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
                if top[name].text(Problems()) != wanted:
                    self._problems.add(top[name], f"must be {wanted}")
            self._ceiling = self._request_ceiling(top["maxRequestBytes"])
            entries = top["resources"].items(self._problems)
            rules = [self._entry(index, entry) for index, entry in enumerate(entries)]
        return Contents(tuple(rules), self._exact, self._problems.all())

    def _entry(self, index: int, at: Field) -> Rule:
        fields = self._mapping(at, ("resources", "algorithm", "minSize"), "rewrite")
        if not fields:
            return UNSELECTED
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
        mine: dict[str, Selector] = {}
        for name in names:
            selector = self._selector(name)
            if selector is None:
                continue
            fault = self._claim(selector, index, mine)
            if fault:
                self._problems.add(name, fault)
            self._exact.setdefault(selector, rule)
        return rule

    def _selector(self, at: Field) -> Selector | None:
        own = Problems()
        text = at.text(own)
        for fault in [problem.fault for problem in own.all()] or _selector_faults(text):
            self._problems.add(at, fault)
            return None
        resource, _, group = text.partition(".")
        return group, resource

    def _claim(self, selector: Selector, entry: int, mine: dict[str, Selector]) -> str:
        """Take a selector for an entry; what is wrong with that, "" for nothing.

        `mine` has the first selector of each group that this entry has claimed so far.
        """
        group, resource = selector
        covers = [selector]
        if selector != SECRETS:
            covers += [(group, "*"), EVERYTHING]
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
        if selector != SECRETS:
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
        """The fields of a mapping, the one of the beta among them; none of what is no mapping."""
        if not isinstance(at.node, yaml.MappingNode):
            self._problems.add(at, "must be a mapping")
            return {}
        known = (*names, beta) if self._beta else names
        fields = at.mapping(known, self._problems, public=True)
        return {beta: Field(beta, at.line, None), **fields}


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


def _written(selector: Selector) -> str:
    group, resource = selector
    return f"{resource}.{group}" if group or resource == "*" else resource


def _version(text: str) -> tuple[int, int]:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise InvalidInput("min_compatibility_version", "must be a release such as 1.38")
    return int(match[1]), int(match[2])

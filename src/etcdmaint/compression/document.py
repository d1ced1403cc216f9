"""A YAML file as a tree that knows its lines: read strictly, never quoted.

An encryption configuration holds keys, so nothing of what it says may come back in a message: not a
value, not the name of an unknown field (somebody's key may be what landed there). A fault is told
by its path, its line and what would have been right. Scalars become what Kubernetes makes of them
(YAML 1.1 as Go's decoder reads it, then JSON): a bare `2026-01-31` is text, a bare `yes` is not.
This module must not know what the fields mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import yaml

# A configuration of a thousand entries has a tenth of these.
MAX_BYTES = 1 << 20
_MAX_NODES = 100_000
_MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# PyYAML sees numbers to the base of sixty here; Go's decoder sees text.
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
# And the other way round: numbers without a dot, and truth in one letter.
_GO_BOOLEANS = frozenset("yYnN")
_SURROGATE = re.compile("[\ud800-\udfff]")
_GO_NUMBER = re.compile(r"[-+]?(?:0o[0-7]+|(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One fault of a file. `line` counts from 1 (0: the file as a whole), `field` is a path."""

    line: int
    field: str
    fault: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.field}: {self.fault}" if self.field else f"{where}{self.fault}"


class Problems:
    """Collects faults, so that the author of a file learns all of them at once."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def add(self, at: Field, fault: str) -> None:
        """Note what is wrong at this place."""
        self._found.append(Problem(at.line, at.path, fault))

    def all(self) -> tuple[Problem, ...]:
        """What was found, in the order of the file."""
        return tuple(sorted(set(self._found)))


@dataclass(frozen=True, slots=True, repr=False)
class Field:
    """A place in the file: its path, its line, and the node there (None: it is absent)."""

    path: str
    line: int
    node: yaml.Node | None

    @property
    def absent(self) -> bool:
        """Not there, or null, which is the same to Kubernetes."""
        return self.node is None or self.node.tag == f"{_TAG}null"

    def mapping(
        self, known: Iterable[str], problems: Problems, *, public: bool = False
    ) -> dict[str, Field]:
        """The known fields of a mapping; faults for unknown ones and for those given twice.

        The name of an unknown field is told only where the file is `public`.
        """
        names = tuple(known)
        fields = {name: Field(self._below(name), self.line, None) for name in names}
        if self.absent:
            return fields
        if not isinstance(self.node, yaml.MappingNode):
            problems.add(self, "must be a mapping")
            return fields
        for key, value in self.node.value:
            line = key.start_mark.line + 1
            text = isinstance(key, yaml.ScalarNode) and key.tag == f"{_TAG}str"
            name = key.value if text else ""
            told = name if name in fields else _shown(key) if public else ""
            at = Field(self._below(told) if told else self.path, line, value)
            if key.tag == f"{_TAG}merge":
                problems.add(at, "a merge key (<<) is not supported")
            elif name not in fields:
                known_here = f"there are {', '.join(names)}" if names else "there are none here"
                problems.add(at, f"unknown field; {known_here}")
            elif fields[name].node is not None:
                problems.add(at, "given twice")
            else:
                fields[name] = at
        return fields

    def items(self, problems: Problems) -> tuple[Field, ...]:
        """The items of a list."""
        if self.absent:
            return ()
        if not isinstance(self.node, yaml.SequenceNode):
            problems.add(self, "must be a list")
            return ()
        return tuple(
            Field(f"{self.path}[{index}]", item.start_mark.line + 1, item)
            for index, item in enumerate(self.node.value)
        )

    def text(self, problems: Problems, *, missing: str = "") -> str:
        """A string; "" where it is absent or something else. `missing` is the fault of none."""
        value = ""
        if isinstance(self.node, yaml.ScalarNode) and _is_text(self.node):
            value = str(self.node.value)
        elif not self.absent:
            problems.add(self, "must be a string (quote it)")
            return ""
        if missing and not value:
            problems.add(self, missing)
        return value

    def integer(self, problems: Problems) -> int | None:
        """A whole number of 32 bits; None where it is absent or something else."""
        if self.absent:
            return None
        node = self.node
        if isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}int" and not _is_text(node):
            value = node.value.replace("_", "")
            if re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,9})", value) and -(2**31) <= int(value) < 2**31:
                return int(value)
        problems.add(self, "must be a whole number")
        return None

    def _below(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def parse(data: bytes) -> Field | Problem:
    """The root of the file, or why it cannot be read at all."""
    if len(data) > MAX_BYTES:
        return Problem(0, "", f"is larger than {MAX_BYTES} bytes")
    try:
        root = _compose(data)
    except yaml.MarkedYAMLError as error:
        return _unreadable(error.problem_mark, error.problem)
    except (yaml.YAMLError, ValueError):
        # Not UTF-8, a control character, or a scalar that no loader takes.
        return _unreadable(None, None)
    if isinstance(root, Problem):
        return root
    return Field("", root.start_mark.line + 1, root)


def _compose(data: bytes) -> yaml.Node | Problem:
    depth = nodes = documents = 0
    # Counted before a tree is built: building one recurses.
    for event in yaml.parse(data, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        line = event.start_mark.line + 1 if event.start_mark else 0
        if depth > _MAX_DEPTH:
            return Problem(line, "", "is nested too deeply")
        if nodes > _MAX_NODES:
            return Problem(line, "", "has too many values")
        if documents > 1:
            return Problem(line, "", "has more than one YAML document")
    root = yaml.compose(data, Loader=_LOADER)
    if root is None or root.tag == f"{_TAG}null":
        return Problem(0, "", "is empty")
    if _expanded(root, {}) > _MAX_NODES:
        return Problem(0, "", "has too many values behind its aliases")
    return root


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """How many nodes this one is when every alias in it is followed."""
    if id(node) not in known:
        # An alias to a node from inside it has no end.
        known[id(node)] = _MAX_NODES + 1
        below: Iterable[yaml.Node] = ()
        if isinstance(node, yaml.MappingNode):
            below = (part for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            below = node.value
        total = 1 + sum(_expanded(part, known) for part in below)
        known[id(node)] = min(total, _MAX_NODES + 1)
    return known[id(node)]


def _shown(key: yaml.Node) -> str:
    name = key.value if isinstance(key, yaml.ScalarNode) else "?"
    return name if name.isprintable() and len(name) <= 64 else ascii(name[:64])


def _is_text(node: yaml.ScalarNode) -> bool:
    if _SURROGATE.search(node.value):
        return False
    if node.tag == f"{_TAG}str":
        return bool(node.style) or not (
            node.value in _GO_BOOLEANS or _GO_NUMBER.fullmatch(node.value)
        )
    if node.style:
        return False
    if node.tag in (f"{_TAG}timestamp", f"{_TAG}value"):
        return True
    return node.tag in (f"{_TAG}int", f"{_TAG}float") and bool(_SEXAGESIMAL.fullmatch(node.value))


def _unreadable(mark: yaml.Mark | None, problem: str | None) -> Problem:
    # What stands in quotes is taken from the file.
    detail = f": {problem}" if problem and not re.search("['\"`]", problem) else ""
    return Problem(mark.line + 1 if mark else 0, "", f"is not readable as YAML{detail}")

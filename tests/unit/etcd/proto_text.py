"""Just enough of a parser for .proto files: which field has which number and type.

So that a generated module, and a table of etcd's own numbers, can be checked without a compiler.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\[[^\]]*\]|\"[^\"]*\"|[\w.]+|[{}=;()<>,]", re.DOTALL)


class Field(NamedTuple):
    """A field of a message, or (number only) a value of an enum."""

    number: int
    type: str
    repeated: bool


def read(text: str) -> dict[str, Field]:
    """`Message.field` (all in lower case, without underscores) to what the wire needs to know."""
    tokens = [t for t in _TOKEN.findall(text) if t[:2] not in ("//", "/*") and t[0] not in '["']
    found: dict[str, Field] = {}
    _body(iter(tokens), "", found)
    return found


def plain(name: str) -> str:
    """A name without what etcd's spelling and ours differ in."""
    return name.replace("_", "").lower()


def _body(tokens, path, found):
    for token in tokens:
        if token == "}":
            return
        if token in ("message", "enum"):
            name = next(tokens)
            next(tokens)
            # Only the last part of the path: etcd's messages have unique names.
            _body(tokens, plain(name), found)
        elif token == "oneof":
            next(tokens), next(tokens)
            _body(tokens, path, found)
        elif token in ("service", "option", "syntax", "package", "import", "reserved"):
            _skip(tokens, to="}" if token == "service" else ";")
        else:
            _statement(token, tokens, path, found)


def _skip(tokens, to):
    depth = 0
    for token in tokens:
        depth += (token == "{") - (token == "}")
        if depth == 0 and token == to:
            return


def _statement(first, tokens, path, found):
    words = [first]
    for token in tokens:
        if token == ";":
            break
        words.append(token)
    if "=" not in words:
        return
    at = words.index("=")
    repeated = words[0] == "repeated"
    kind = words[repeated].rpartition(".")[2] if at > 1 else "enum value"
    found[f"{path}.{plain(words[at - 1])}"] = Field(int(words[at + 1], 0), kind, repeated)

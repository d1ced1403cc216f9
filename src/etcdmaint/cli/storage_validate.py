"""`etcdmaint storage validate` and `render`: configuration files, before an API server meets them.

Every fault of a file at once, with its line, by the rules that the library loads it with. Nothing of
an encryption configuration is repeated: it holds keys.
"""

from __future__ import annotations

import hashlib
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.cli import output
from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.flags import output_flag
from etcdmaint.errors import InvalidInput

if TYPE_CHECKING:
    from etcdmaint.compression.document import Field

_COMPRESSION = "StorageCompressionConfiguration"
_ENCRYPTION = ("EncryptionConfiguration", "EncryptionConfig")
_OBJECT = re.compile(r"etcdmaint\.io/v[0-9a-z]+")

_stage = click.option(
    "--stage",
    type=click.Choice(["alpha", "beta"]),
    help="Of KEP-6264: beta has more fields. Default: alpha, or what an object says.",
)
_oldest = click.option(
    "--min-compatibility-version",
    "oldest",
    default="1.38",
    metavar="VERSION",
    help="The API server's: the oldest release that must read what it writes.",
)


@click.command("validate")
@click.argument("file", type=click.Path(dir_okay=False))
@_stage
@_oldest
@output_flag(output.TABLE, output.JSON)
def validate(file: str, stage: str | None, oldest: str, style: str) -> int:
    """Check a file that an API server loads: an EncryptionConfiguration, or a
    StorageCompressionConfiguration, also in the form of the custom resource. FILE may be -.

    Exits 1 when it has faults. All of them are told.
    """
    data = _read(file)
    kind, problems, warnings, loaded = _judge(data, stage, oldest)
    digest = f"sha256:{hashlib.sha256(loaded).hexdigest()}"
    if style == output.JSON:
        document = {
            "valid": not problems,
            "kind": kind,
            "hash": digest,
            "problems": [
                {"line": each.line, "field": each.field, "fault": each.fault} for each in problems
            ],
            "warnings": [str(each) for each in warnings],
        }
        output.print_document(document, style)
    else:
        for each in problems:
            output.print_line(f"{file}: {each}")
        for warning in warnings:
            output.print_line(f"{file}: warning: {warning}")
        if not problems:
            output.print_line(f"{file}: a valid {kind}, {digest}")
    return ExitCode.FAILED if problems else ExitCode.DONE


@click.command("render")
@click.argument("file", type=click.Path(dir_okay=False))
@_stage
@_oldest
def render(file: str, stage: str | None, oldest: str) -> int:
    """Print the file that the operator would publish for a StorageCompressionConfiguration object.

    FILE, or - for standard input, has the object (etcdmaint.io). The bytes are the published ones.
    """
    from etcdmaint.compression.document import Problem, parse

    data = _read(file)
    root = parse(data)
    if isinstance(root, Problem):
        raise InvalidInput(file, str(root))
    document = _document(data)
    if not _is_object(document):
        raise InvalidInput(file, f"holds no {_COMPRESSION} of etcdmaint.io")
    rendered, found = _render(document, stage, oldest)
    if found:
        for each in _with_lines(root, found):
            output.print_note(f"etcdmaint: {file}: {each}")
        return ExitCode.FAILED
    sys.stdout.write(rendered.decode())
    return ExitCode.DONE


def _read(file: str) -> bytes:
    from etcdmaint.compression.document import MAX_BYTES

    try:
        with click.open_file(file, "rb") as opened:
            # Of one that is too large only enough to tell that.
            return bytes(opened.read(MAX_BYTES + 1))
    except OSError as error:
        raise InvalidInput(file, f"cannot be read: {error.strerror}") from None


def _document(data: bytes) -> dict[str, Any]:
    """A file that `parse` takes, as plain data; {} where it is none that can be read as such."""
    import yaml

    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_object(root: dict[str, Any]) -> bool:
    version = str(root.get("apiVersion"))
    return root.get("kind") == _COMPRESSION and bool(_OBJECT.fullmatch(version))


def _judge(
    data: bytes, stage: str | None, oldest: str
) -> tuple[str, tuple[Any, ...], list[Any], bytes]:
    """The kind, what is wrong, what should be thought about twice, and the bytes to be loaded."""
    from etcdmaint.compression import policy
    from etcdmaint.compression.document import Problem, parse
    from etcdmaint.compression.encryption import configuration

    root = parse(data)
    if isinstance(root, Problem):
        return "", (root,), [], data
    document = _document(data)
    kind = document.get("kind")
    if kind in _ENCRYPTION:
        found = configuration.problems(data)
        warnings = () if found else configuration.EncryptionConfiguration.load(data).warnings
        return str(kind), found, list(warnings), data
    if kind != _COMPRESSION:
        wanted = f"must be {_COMPRESSION} or {_ENCRYPTION[0]}"
        return "", (Problem(0, "kind", wanted),), [], data
    if _is_object(document):
        rendered, found = _render(document, stage, oldest)
        if found:
            return str(kind), _with_lines(root, found), [], data
        data, stage = rendered, stage or _stage_of(document)
    at = policy.Stage(stage or "alpha")
    found = policy.problems(data, stage=at, min_compatibility_version=oldest)
    if found:
        return str(kind), found, [], data
    loaded = policy.Policy.load(data, stage=at, min_compatibility_version=oldest)
    return str(kind), (), list(loaded.warnings), data


def _stage_of(document: dict[str, Any]) -> str:
    spec = document.get("spec")
    stage = spec.get("stage", "alpha") if isinstance(spec, dict) else "alpha"
    if stage not in ("alpha", "beta"):
        raise InvalidInput("spec.stage", "must be alpha or beta")
    return str(stage)


def _render(
    document: dict[str, Any], stage: str | None, oldest: str
) -> tuple[bytes, tuple[Any, ...]]:
    """The published file, and what is wrong with it by the paths of the object."""
    from etcdmaint.compression import policy, rendering
    from etcdmaint.compression.document import Problem

    spec = document.get("spec")
    entries = spec.get("resources", []) if isinstance(spec, dict) else None
    if not isinstance(entries, list):
        return b"", (Problem(0, "spec.resources", "must be a list"),)
    found: list[Problem] = []
    known = {"resources", "algorithm", "minSize", "rewrite"}
    written = []
    for index, entry in enumerate(entries):
        path = f"spec.resources[{index}]"
        names = entry.get("resources") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(names, list):
            found.append(Problem(0, path, "must be a mapping with a list of resources"))
            continue
        if set(entry) - known:
            found.append(Problem(0, path, f"unknown field; there are {', '.join(sorted(known))}"))
        # YAML has more, such as dates, which no JSON can hold.
        found += [
            Problem(0, f"{path}.{name}", "must be a number or a text")
            for name in ("minSize", "rewrite")
            if not isinstance(entry.get(name), str | int | float | None)
        ]
        written.append(
            rendering.Entry(
                tuple(map(str, names)),
                str(entry.get("algorithm", "")),
                entry.get("minSize"),
                entry.get("rewrite"),
            )
        )
    if found:
        return b"", tuple(found)
    data = rendering.render(written)
    problems = policy.problems(
        data, stage=policy.Stage(stage or _stage_of(document)), min_compatibility_version=oldest
    )
    # The lines are those of a file that nobody has seen.
    return data, tuple(Problem(0, f"spec.{each.field}", each.fault) for each in problems)


def _with_lines(root: Field, problems: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same, each with the line of its place in the object's own file."""
    from etcdmaint.compression.document import Problem, Problems

    def line(path: str) -> int:
        at = root
        for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            below = at.items(Problems()) if index else ()
            if index and int(index) < len(below):
                at = below[int(index)]
            elif not index and not at.absent:
                at = at.mapping((name,), Problems())[name]
            if at.absent:
                break
        return at.line

    return tuple(sorted(Problem(line(each.field), each.field, each.fault) for each in problems))

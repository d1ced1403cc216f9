"""What no file of the project may hold, and what every page must: links that lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Where everything is caught, since it is the outermost shell of a process, of a task that must not
# end, or of a run that nobody would take up again.
SHELLS = {
    "cli/main.py",
    "compaction/registry.py",
    "kube/following.py",
    "kube/runs.py",
    "kube/storage_compression_auditing.py",
}
REASONED = re.compile(r"(noqa: [A-Z0-9, ]+|type: ignore\[[^]]+\])\s*(#|-)\s*\w")
# Made of parts, so that this file does not hold them.
OF_ELSEWHERE = re.compile(
    "|".join(("/wo" + "rk/", "/ro" + "ot/", r"py" + r"pi\.org", r"proxy\." + "golang"))
)
LINK = re.compile(r"\[[^]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def tracked(*patterns: str) -> list[Path]:
    """The files that git knows, or the checkout's where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


SOURCES = sorted((ROOT / "src").rglob("*.py"))
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def test_no_file_names_this_machine_or_a_registry() -> None:
    for path in tracked():
        text = path.read_bytes().decode(errors="replace")
        found = OF_ELSEWHERE.search(text)
        assert found is None, f"{path.relative_to(ROOT)}: {found[0]}"


def test_whatever_is_silenced_says_why() -> None:
    for path in (*SOURCES, *SCRIPTS):
        if path.name.endswith("_pb2.py"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if "# noqa" in line or "# type: ignore" in line:
                assert REASONED.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_everything_is_caught_only_in_the_outermost_shells() -> None:
    """An `except BaseException` that tidies up and raises again is none."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = node.type.id if isinstance(node.type, ast.Name) else ""
            raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            if (
                node.type is None
                or caught == "Exception"
                or (caught == "BaseException" and not raises)
            ):
                found.add(str(path.relative_to(ROOT / "src" / "etcdmaint")))
    assert found == SHELLS


def test_nothing_is_left_to_do_in_the_source() -> None:
    for path in (*SOURCES, *SCRIPTS):
        assert not re.search(r"\b(TODO|FIXME|XXX)\b", path.read_text()), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"

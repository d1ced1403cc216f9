"""The programs under test are the pinned ones, and are built no more often than needed."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from . import build, cache, golang
from .programs import PROGRAMS


def test_another_version_among_the_given_assets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "etcdctl", says="etcdctl version: 3.7.31")
    monkeypatch.setenv("ETCDMAINT_TEST_ASSETS", str(tmp_path))

    with pytest.raises(
        build.ProgramUnavailable, match=r"is not etcdctl 3\.7\.3 but says.*3\.7\.31"
    ):
        build.program("etcdctl")


def test_the_pinned_version_among_the_given_assets_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "etcdctl", says="etcdctl version: 3.7.3\\nAPI version: 3.7")
    monkeypatch.setenv("ETCDMAINT_TEST_ASSETS", str(tmp_path))

    assert build.program("etcdctl") == tmp_path / "etcdctl"


def test_an_asset_that_cannot_be_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etcd").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("ETCDMAINT_TEST_ASSETS", str(tmp_path))

    with pytest.raises(build.ProgramUnavailable, match="cannot be run"):
        build.program("etcd")


def test_an_unknown_program_is_answered_with_the_known_ones() -> None:
    with pytest.raises(build.ProgramUnavailable, match="kube-apiserver"):
        build.program("kube-scheduler")


# promtool's module counts in another way than promtool does, and any version of it will do.
@pytest.mark.parametrize("name", [name for name, p in PROGRAMS.items() if not p.from_path])
def test_the_version_asked_for_is_the_version_that_the_module_pins(name: str) -> None:
    program = PROGRAMS[name]
    module = re.match(r"(?:[\w.-]+/)+v\d+|k8s\.io/kubernetes|[\w./-]+?(?=/cmd/)", program.package)
    assert module is not None

    go_mod = (program.module_dir / "go.mod").read_text()

    assert re.search(
        rf"^\s*(?:require )?{module.group()} v{program.version}\b", go_mod, re.MULTILINE
    )


def test_a_program_whose_version_does_not_matter_is_taken_from_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "promtool", says="promtool, version 2.42.0")
    monkeypatch.delenv("ETCDMAINT_TEST_ASSETS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert build.find("promtool") == tmp_path / "promtool"


def test_a_key_changes_with_whatever_could_change_the_program(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module a")
    (tmp_path / "go.sum").write_text("b v1")
    keys = [cache.key(tmp_path, "1.26.8", "-trimpath"), cache.key(tmp_path, "1.26.9", "-trimpath")]
    keys.append(cache.key(tmp_path, "1.26.8", "-race"))
    (tmp_path / "go.sum").write_text("b v2")
    keys.append(cache.key(tmp_path, "1.26.8", "-trimpath"))

    assert len(set(keys)) == 4


def test_two_builders_take_turns(tmp_path: Path) -> None:
    said: list[str] = []
    waiting, entered = threading.Event(), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        waiting.set()

    def second() -> None:
        with cache.exclusive(tmp_path / "etcd37", say):
            entered.set()

    with cache.exclusive(tmp_path / "etcd37", say):
        builder = threading.Thread(target=second)
        builder.start()
        assert waiting.wait(10)
        assert not entered.is_set()
    builder.join(10)

    assert entered.is_set()
    assert said == ["etcd37: another build is under way, waiting for it"]


def test_a_go_that_is_too_old_gives_way_to_the_pinned_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "go.mod").write_text("module a\n\ngo 1.26.0\n")
    monkeypatch.setattr(golang, "_installed", lambda: ((Path("/old/go"), "1.19.8"),))

    chosen = golang.toolchain(tmp_path, tmp_path / "cache")

    assert chosen.wheel
    assert chosen.command.is_relative_to(tmp_path / "cache")


def _program(path: Path, says: str) -> None:
    path.write_text(f"#!/bin/sh\nprintf '{says}\\n'\n")
    path.chmod(0o755)

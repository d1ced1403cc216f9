"""Bad input to every flag of the commands that touch etcd or Kubernetes: one sentence, exit code 2.

The table must have a line for every flag that a command has, so that a new flag is not forgotten. What
only a combination of flags makes wrong is in test_connection.py and test_rule_flags.py.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from prometheus_client import CollectorRegistry

from etcdmaint.cli import main
from etcdmaint.errors import InvalidInput
from etcdmaint.kube.access import load_access
from etcdmaint.observability.http import application, serving
from etcdmaint.observability.liveness import Checks

from .commandline import CommandLine, one_sentence

# Wrong type, zero, negative, absurdly large, unparseable, unicode, empty: what there is of each.
NO_DURATION = ("", "0s", "-1s", "5", "99999999h", "soon", "1x", "\u0665s")
NO_WAIT = tuple(text for text in NO_DURATION if text != "0s")
NO_SIZE = ("", "0", "-1Mi", "9Ei", "9" * 99, "big", "1.5.5", "\u0663Gi")
NO_PERCENT = ("", "0%", "-1%", "100%", "99999%", "0.8", "80", "99.5%", "\u0668\u0660%")
NO_CHOICE = ("", "0", "nonsense", "\u00e9")
NO_FILE = ("", "/nonexistent", "/tmp", "\u00e9")
NO_NAMESPACE = ("", "Bad_Name", "-a", "a.b", "../x", "a/b", "\u00e9", "a" * 64)
NO_NAME = ("", "Bad_Name", "-a", "a..b", "../x", "a/b", "\u00e9", "a" * 254)
NO_OBJECT = ("", "a", "/a", "a/", "a/b/c")
NO_SWITCH = ("", "2", "perhaps", "\u00e9")
NO_VERSION = ("", "0", "3", "-3.5.0", "v3.5.0", "3.5.0 ", "3.5", "latest", "\u0663.5.0", "9" * 99)
NO_ENDPOINT = (
    *(
        "",
        ",",
        "a,,b",
        "a:0",
        "a:-1",
        "a:99999",
        "a:http",
        "http://",
        "ftp://a",
        "unix:///a",
        "unix:a",
    ),
    *("root:pw@a", "http://a/path", "[::1", "a:1:2", "-a", "\u00e9:2379", "1.2.3", "a" * 64),
)
NO_COUNT = ("", "0", "-1", "1.5", "many", "9" * 30, "\u00e9")
NO_LISTENING = (
    *("", ":", "8080", ":http", ":-1", ":99999", "::1", "[::1", "unix:///a", ":8080 "),
    *("256.0.0.1:0", "host.invalid:0", "\u00e9:0"),
)

CONNECTION = {
    "--endpoints": NO_ENDPOINT,
    "--cacert": NO_FILE,
    "--cert": NO_FILE,
    "--key": NO_FILE,
    "--user": ("", "root", "root:pw"),  # the latter two: without TLS
    "--password": ("", "alone"),
    "--dial-timeout": NO_DURATION,
    "--command-timeout": NO_DURATION,
    "--etcd-address-map": NO_FILE,
    "--insecure-transport": NO_SWITCH,
    "--insecure-skip-tls-verify": (*NO_SWITCH, "true"),
}
TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "status": {**CONNECTION, "--output": NO_CHOICE},
    "defrag": {
        **CONNECTION,
        "--rule-free-space-above": NO_SIZE,
        "--rule-quota-usage-above": NO_PERCENT,
        "--rule-min-reclaim": NO_SIZE,
        "--volume-size": NO_SIZE,
        "--wait": NO_WAIT,
        "--move-leader": NO_CHOICE,
        "--allow-unsafe-version": NO_VERSION,
        "--output": (*NO_CHOICE, "yaml"),
    },
    "operator": {
        "--kubeconfig": NO_FILE,
        "--namespace": NO_NAMESPACE,
        "--listen-address": NO_LISTENING,
        "--log-format": NO_CHOICE,
        "--lease-namespace": NO_NAMESPACE,
        "--lease-name": NO_NAME,
        "--lease-duration": NO_DURATION,
        "--renew-deadline": NO_DURATION,
        "--retry-period": NO_DURATION,
        "--max-concurrent-runs": NO_COUNT,
        "--active-deadline": NO_DURATION,
        "--drain": NO_WAIT,
        "--etcd-address-map": NO_FILE,
    },
    "finalizers strip": {
        "--namespace": NO_NAMESPACE,
        "--kubeconfig": NO_FILE,
        "--stop-deployment": NO_OBJECT,
        "--lease": NO_OBJECT,
        "--wait": NO_WAIT,
    },
}
# Told together with another flag, since each alone would be good.
TOLD_OF = {"--cert": "--key", "--key": "--cert"}
# The operator sets up the log before it reads these: each in a process of its own is a second.
IN_A_PROCESS = {"operator": ("--kubeconfig", "--listen-address", "--etcd-address-map")}

KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "a",
    "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "a", "user": {}}],
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
}


def command_of(path: str) -> click.Command:
    group: click.Command = main.etcdmaint
    for name in path.split():
        assert isinstance(group, click.Group)
        found = group.get_command(click.Context(group), name)
        assert found is not None
        group = found
    return group


def flags_with_a_value(path: str) -> set[str]:
    return {
        max(option.opts, key=len)
        for option in command_of(path).params
        if isinstance(option, click.Option) and not option.is_flag
    }


@pytest.mark.parametrize("path", TABLE)
def test_the_table_has_every_flag_that_takes_a_value(path: str) -> None:
    assert set(TABLE[path]) == flags_with_a_value(path)


HERE = [
    (path, flag)
    for path, flags in TABLE.items()
    for flag in flags
    if flag not in IN_A_PROCESS.get(path, ())
]


@pytest.mark.parametrize(("path", "flag"), HERE, ids=lambda word: word)
def test_a_bad_value_is_refused_naming_its_flag(
    etcdmaint: CommandLine, monkeypatch: pytest.MonkeyPatch, path: str, flag: str
) -> None:
    """Issue 3, section 8: every flag."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    given = ["--all"] if path == "finalizers strip" else []
    if flag != "--endpoints" and path in ("status", "defrag"):
        given.append("--endpoints=127.0.0.1:1")
    for value in TABLE[path][flag]:
        said = etcdmaint(*path.split(), *given, f"{flag}={value}")
        assert said.code == 2, (value, said.everything)
        assert said.out == ""
        told = one_sentence(said)
        assert flag in told or TOLD_OF.get(flag, flag) in told, (value, told)


OPERATORS = """
import sys
from etcdmaint.cli.main import run
for flag in sys.argv[2:]:
    print("REFUSED", int(run(["operator", f"--kubeconfig={sys.argv[1]}", flag])), file=sys.stderr)
"""


def test_the_operator_refuses_what_it_cannot_use_before_it_does_anything(tmp_path: Path) -> None:
    """Issue 3, section 8. In a process of its own, since it sets up the log; one sentence for each."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    flags = (
        "--renew-deadline=200s",
        "--listen-address=256.0.0.1:0",
        "--etcd-address-map=/nonexistent",
    )
    done = subprocess.run(
        [sys.executable, "-c", OPERATORS, str(kubeconfig), *flags], capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    told = done.stderr.split("REFUSED 2\n")
    assert told.pop() == ""
    first, *others = told
    assert first.startswith("etcdmaint: --lease-duration: must be longer")
    assert len(first.splitlines()) == 1
    for flag, said in zip(flags[1:], others, strict=True):
        assert said.splitlines()[-1].startswith(f"etcdmaint: {flag.partition('=')[0]}: ")


@pytest.mark.parametrize("text", [text for text in NO_LISTENING if "0.0.1" not in text])
async def test_an_address_where_nobody_can_listen_is_refused(text: str) -> None:
    registry, checks = CollectorRegistry(), Checks()
    with pytest.raises(InvalidInput) as refused:
        async with serving(application(registry, checks, checks), text):
            pass
    assert refused.value.field == "--listen-address"


TOKEN = "a-token-that-nobody-may-read"


def changed(**parts: Any) -> str:
    return json.dumps({**KUBECONFIG, **parts})


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "hello", "[]", "1", "{}", "rubbish: [", "\xff\xfe", '{"a":' * 2000),
        *(changed(clusters=value) for value in (None, "x", [], [{}], [{"name": "a"}])),
        *(changed(clusters=[{"name": "a", "cluster": value}]) for value in (None, "x", {})),
        changed(clusters=[{"name": "a", "cluster": {"server": 5}}]),
        changed(users=[{"name": "a", "token": TOKEN}]),
        changed(users=[{"name": "a", "user": TOKEN}]),
        changed(users=[{"token": TOKEN}]),
        changed(users=[{"name": "a", "user": {"tokenFile": "/nonexistent"}}]),
        changed(users=[{"name": "a", "user": {"exec": {"command": TOKEN}}}]),
        changed(contexts=None),
        changed(contexts=[{"name": "a", "context": None}]),
        *(changed(**{"current-context": value}) for value in (None, "", "other", 5)),
        f"token: {TOKEN}: {TOKEN}",
    ],
)
async def test_a_kubeconfig_that_is_none_is_refused_and_not_quoted(
    tmp_path: Path, text: str
) -> None:
    """D51: whatever stands where, a token is never told."""
    file = tmp_path / "kubeconfig"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(InvalidInput) as refused:
        await load_access(str(file))
    assert refused.value.field == "--kubeconfig"
    assert TOKEN not in str(refused.value)


def test_a_connection_is_waited_for_no_longer_than_the_flag_says(etcdmaint: CommandLine) -> None:
    """--dial-timeout is defrag's as well as status': somebody listens there, and says nothing."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"--endpoints=127.0.0.1:{silent.getsockname()[1]}"
        for command in ("status", "defrag"):
            began = time.monotonic()
            said = etcdmaint(command, address, "--dial-timeout=200ms", "--command-timeout=60s")
            assert said.code == 1
            one_sentence(said)
            assert time.monotonic() - began < 30

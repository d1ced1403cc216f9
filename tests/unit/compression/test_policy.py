"""The configuration file beyond the vectors: many faults at once, hostile YAML, versions, secrets."""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression.policy import (
    FIRST_READER,
    Algorithm,
    Policy,
    Problem,
    Rewrite,
    Stage,
    problems,
)
from etcdmaint.errors import InvalidInput

HEAD = "apiVersion: apiserver.config.k8s.io/v1alpha1\nkind: StorageCompressionConfiguration\n"


def load(body: str, stage: Stage = Stage.ALPHA, oldest: str = "1.38") -> Policy:
    return Policy.load((HEAD + body).encode(), stage=stage, min_compatibility_version=oldest)


def faults(body: str | bytes, stage: Stage = Stage.ALPHA) -> tuple[Problem, ...]:
    data = body if isinstance(body, bytes) else (HEAD + body).encode()
    return problems(data, stage=stage, min_compatibility_version="1.38")


def test_all_problems_are_told_at_once_each_with_path_and_line() -> None:
    """R109, R125: whoever mends a file needs one round."""
    body = (
        "level: 6\n"
        "resources:\n"
        "  - resources: [pods, Pods]\n"
        "    algorithm: Gzip\n"
        "    minSize: 63\n"
        "  - resources: ['*.*']\n"
        "    algorithm: Deflate\n"
        "  - resources: [configmaps]\n"
        "    algorithm: None\n"
        "    minSize: 2Mi\n"
    )
    assert [(found.line, found.field) for found in faults(body)] == [
        (3, "level"),
        (5, "resources[0].resources[1]"),
        (6, "resources[0].algorithm"),
        (7, "resources[0].minSize"),
        (10, "resources[2].resources[0]"),
        (12, "resources[2].minSize"),
    ]
    with pytest.raises(InvalidInput, match="6 problems") as refusal:
        load(body)
    for found in faults(body):
        assert str(found) in str(refusal.value)


def test_a_single_problem_is_the_errors_own_field_and_fault() -> None:
    with pytest.raises(InvalidInput) as refusal:
        load("resources:\n  - {resources: [pods], algorithm: deflate}\n")
    assert refusal.value.field == "resources[0].algorithm"
    assert refusal.value.fault == "must be Deflate or None"


def test_entries_keep_their_order_and_the_first_match_wins() -> None:
    """R106, R113."""
    policy = load(
        "resources:\n"
        "  - {resources: [events], algorithm: None}\n"
        "  - {resources: ['*.'], algorithm: Deflate, minSize: 4Ki}\n"
        "  - {resources: ['*.*'], algorithm: Deflate}\n"
    )
    assert [rule.entry for rule in policy.rules] == [0, 1, 2]
    assert policy.rule_for("", "events").algorithm is Algorithm.NONE
    assert policy.rule_for("", "pods").min_size == 4096
    assert policy.rule_for("apps", "deployments").min_size == 1024


def test_looking_up_does_not_take_longer_in_a_long_file() -> None:
    """Selection is three dictionaries, however many entries there are."""
    entries = "".join(
        f"  - {{resources: [r{n}.example.com], algorithm: None}}\n" for n in range(2000)
    )
    policy = load(f"resources:\n{entries}  - {{resources: ['*.*'], algorithm: Deflate}}\n")
    short = load("resources:\n  - {resources: ['*.*'], algorithm: Deflate}\n")

    def seconds(asked: Policy) -> float:
        start = time.thread_time()
        for _ in range(2000):
            asked.rule_for("apps", "deployments")
        return time.thread_time() - start

    assert min(seconds(policy) for _ in range(5)) < 5 * min(seconds(short) for _ in range(5))


def test_the_hash_is_that_of_the_raw_bytes() -> None:
    """R133, R139, A15: a comment more is another hash, the same bytes are the same."""
    body = HEAD + "resources: []\n"
    one = load("resources: []\n")
    assert one.hash == "sha256:" + hashlib.sha256(body.encode()).hexdigest()
    assert load("resources: []\n# a comment\n").hash != one.hash
    assert load("resources: []\n").hash == one.hash
    assert Policy.absent().hash == ""


def test_an_edited_file_has_no_effect_on_what_was_loaded(tmp_path: Path) -> None:
    """R114: read once; there is no reload."""
    path = tmp_path / "compression.yaml"
    path.write_text(HEAD + "resources: [{resources: ['*.*'], algorithm: Deflate}]\n")
    policy = Policy.read(path, stage=Stage.ALPHA, min_compatibility_version="1.38")
    path.write_text(HEAD + "resources: []\n")
    assert policy.rule_for("", "pods").compresses


def test_a_file_that_cannot_be_read_is_refused_by_its_path(tmp_path: Path) -> None:
    """R109."""
    with pytest.raises(InvalidInput, match=r"nowhere\.yaml: cannot be read"):
        Policy.read(tmp_path / "nowhere.yaml", stage=Stage.ALPHA, min_compatibility_version="1.38")


def test_secrets_are_warned_of_once_and_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """R120, R121, R123: the warning names the channel; excluding them, or a wildcard, warns of none."""
    with caplog.at_level(logging.WARNING):
        load("resources: [{resources: ['*.*'], algorithm: Deflate}]\n")
        load("resources: [{resources: [secrets], algorithm: None}]\n")
        assert caplog.records == []
        policy = load("resources: [{resources: [secrets], algorithm: Deflate}]\n")
    assert len(caplog.records) == len(policy.warnings) == 1
    assert "how well its content compresses" in caplog.text


def test_every_algorithm_that_writes_frames_has_a_first_release_that_reads_them() -> None:
    """R116, R119: the gate is a table, and no algorithm may be missing in it."""
    assert set(FIRST_READER) == set(Algorithm) - {Algorithm.NONE}
    for oldest in ("1.37", "1.9", "0.99"):
        with pytest.raises(InvalidInput, match=r"from release 1\.38 on"):
            load("resources: [{resources: [pods], algorithm: Deflate}]\n", oldest=oldest)
        load("resources: [{resources: [pods], algorithm: None}]\n", oldest=oldest)


@pytest.mark.parametrize(
    "oldest", ["", "1", "v1.38", "1.38.0", "1.x", "01.38", "1.-38", "1.3\u0668"]
)
def test_a_version_that_is_none_is_refused(oldest: str) -> None:
    with pytest.raises(InvalidInput, match="min_compatibility_version"):
        load("resources: []\n", oldest=oldest)


def test_a_process_without_a_file_frames_only_what_begins_with_a_zero_byte() -> None:
    """R33, R43, R55, R117, R126, A17: and finds every other frame stale."""
    rule = Policy.absent().rule_for("", "pods")
    assert rule.inert
    assert not rule.frames(b"k" * 5000)
    assert rule.frames(b"\0k")
    assert rule.stale(True, b"k" * 5000)
    assert not rule.stale(True, b"\0k")
    assert not rule.stale(False, b"k" * 5000)


def test_what_is_not_selected_is_not_inert() -> None:
    """R129: with a file, what it leaves alone is counted."""
    assert not load("resources: []\n").rule_for("", "pods").inert


def test_the_ceiling_of_a_writer_follows_etcds_request_limit_from_beta_on() -> None:
    """R182, A6, A20: 64 KiB below the limit, never above what every reader takes."""
    body = "resources: [{{resources: [pods], algorithm: Deflate}}]\nmaxRequestBytes: {}\n"
    assert load(body.format("1Mi"), Stage.BETA).rule_for("", "pods").ceiling == 983_040
    assert load(body.format("10Mi"), Stage.BETA).rule_for("", "pods").ceiling == 1_507_328
    assert [found.field for found in faults(body.format("1Mi"))] == ["maxRequestBytes"]
    assert [found.field for found in faults(body.format("64Ki"), Stage.BETA)] == ["maxRequestBytes"]
    low = (
        "resources: [{resources: [pods], algorithm: Deflate, minSize: 1Mi}]\nmaxRequestBytes: 1Mi\n"
    )
    assert [found.field for found in faults(low, Stage.BETA)] == ["resources[0].minSize"]


def test_on_write_finds_nothing_stale_in_either_direction() -> None:
    """R59, R177, R178."""
    policy = load(
        "resources:\n"
        "  - {resources: [pods], algorithm: Deflate, rewrite: OnWrite}\n"
        "  - {resources: [configmaps], algorithm: None, rewrite: OnWrite}\n",
        Stage.BETA,
    )
    for resource in ("pods", "configmaps"):
        rule = policy.rule_for("", resource)
        assert rule.rewrite is Rewrite.ON_WRITE
        assert not rule.stale(True, b"k" * 2000)
        assert not rule.stale(False, b"k" * 2000)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (
            "resources: [{resources: [pods], algorithm: None, minSize: 0100}]",
            "resources[0].minSize",
        ),
        (
            "resources: [{resources: [pods], algorithm: None, minSize: 0x400}]",
            "resources[0].minSize",
        ),
        (
            "resources: [{resources: [pods], algorithm: None, minSize: 17:04}]",
            "resources[0].minSize",
        ),
        ("resources: [{resources: [pods/status], algorithm: None}]", "resources[0].resources[0]"),
        ("resources: [{resources: ['p*'], algorithm: None}]", "resources[0].resources[0]"),
        ("resources: [{resources: ['pods.a..b'], algorithm: None}]", "resources[0].resources[0]"),
        ("resources: [{resources: ['*.*.'], algorithm: None}]", "resources[0].resources[0]"),
        ("resources: [{resources: [yes], algorithm: None}]", "resources[0].resources[0]"),
        ("resources: [{resources: [~], algorithm: None}]", "resources[0].resources[0]"),
        ("resources: [null]", "resources[0]"),
        ("resources: [{resources: [pods], algorithm: None, ? [a] : 1}]", "resources[0].?"),
        ("base: &b {algorithm: None}\nresources: [{<<: *b, resources: [pods]}]", "resources[0].<<"),
    ],
)
def test_what_a_reader_could_take_two_ways_is_refused(body: str, field: str) -> None:
    """R109, A11: octal, sixties, subresources, half a wildcard, a merge."""
    assert field in [found.field for found in faults(body + "\n")]


def test_an_alias_may_stand_for_an_entry() -> None:
    """YAML's own means of saying things once is no fault."""
    policy = load("resources:\n  - {resources: &names [pods], algorithm: &a Deflate}\n")
    assert policy.rule_for("", "pods").compresses


def test_a_wildcard_beside_what_it_covers_is_refused_in_either_order() -> None:
    """A20; core secrets are covered by no wildcard (R122)."""
    for names in ("'*.apps', deployments.apps", "deployments.apps, '*.apps'", "pods, '*.*'"):
        assert len(faults(f"resources: [{{resources: [{names}], algorithm: None}}]\n")) == 1
    assert faults("resources: [{resources: [secrets, '*.*', secrets.a.b], algorithm: None}]\n")
    assert not faults("resources: [{resources: [secrets, '*.*'], algorithm: None}]\n")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize(
    "data",
    [
        BOMB.encode(),
        b"a: &a [*a]\n",
        b"[" * 100_000,
        b"{a: " * 50_000,
        b"- " * 100_000,
        b"x" * (2 << 20),
        b"\xff\xfe\x00",
        b"\x00",
        b"a: !!python/object/apply:os.system ['true']\n",
        b"? !!set {a}\n",
        b"--- {}\n--- {}\n",
        b"a: \x07\n",
    ],
    ids=lambda data: repr(data[:24]),
)
def test_hostile_yaml_is_refused_quickly_and_in_little_memory(data: bytes) -> None:
    """Aliases, depth and size are bounded; a tag runs nothing."""
    start = time.thread_time()
    assert faults(data)
    assert time.thread_time() - start < 5


def test_a_hostile_number_of_wildcards_does_not_take_the_square_of_the_time() -> None:
    names = ", ".join(f"'*.g{n}.a', r.g{n}.a" for n in range(12_000))
    start = time.thread_time()
    assert len(faults(f"resources: [{{resources: [{names}], algorithm: None}}]\n")) == 12_000
    assert time.thread_time() - start < 20


@given(st.text(max_size=200))
def test_any_text_is_a_policy_or_refused_with_faults(text: str) -> None:
    """The loader raises InvalidInput and nothing else."""
    for data in (
        text.encode("utf-8", "surrogatepass"),
        (HEAD + text).encode("utf-8", "surrogatepass"),
    ):
        found = problems(data, stage=Stage.BETA, min_compatibility_version="1.38")
        if found:
            with pytest.raises(InvalidInput):
                Policy.load(data, stage=Stage.BETA, min_compatibility_version="1.38")


SELECTORS = ["pods", "secrets", "secrets.", "deployments.apps", "*.apps", "*.", "*.*", "x.y.z"]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(SELECTORS), min_size=1, max_size=3),
            st.sampled_from(["Deflate", "None"]),
        ),
        max_size=4,
    )
)
def test_the_dictionaries_find_what_going_through_the_entries_in_order_finds(
    entries: list[tuple[list[str], str]],
) -> None:
    """R106, R110, R120: constant time is an optimisation, not another rule."""
    body = "resources: [" + ", ".join(
        f"{{resources: {names}, algorithm: {algorithm}}}" for names, algorithm in entries
    )
    if faults(body + "]\n"):
        return
    policy = load(body + "]\n")
    for group, resource in [("", "pods"), ("", "secrets"), ("apps", "deployments"), ("y.z", "x")]:
        matching = [
            index
            for index, (names, _) in enumerate(entries)
            if any(matches(name, group, resource) for name in names)
        ]
        assert policy.rule_for(group, resource).entry == (matching[0] if matching else None)


def matches(selector: str, group: str, resource: str) -> bool:
    name, _, of_group = selector.partition(".")
    wildcard = name == "*"
    if wildcard and (group, resource) == ("", "secrets"):
        return False
    return name in ("*", resource) and (of_group == group or (of_group == "*" and wildcard))

"""The decorator: order, staleness, convergence, metrics, what it says of failures."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression import frame
from etcdmaint.compression.inflation import InflationLimiter
from etcdmaint.compression.metrics import DEFINITIONS, Direction, Operation, Outcome
from etcdmaint.compression.policy import Algorithm, Policy, Rewrite, Rule, Stage
from etcdmaint.compression.transformer import Delegate, Identity, Transformer, Transformers
from tests.fuzz.mutation import sealed

KEY = b"/registry/configmaps/default/one"
SELECTED = Rule(entry=0, algorithm=Algorithm.DEFLATE, min_size=1024)
NONE = Rule(entry=0, algorithm=Algorithm.NONE, min_size=1024)
UNSELECTED = Rule()
INERT = Policy.absent().rule_for("", "configmaps")
CEILING = frame.MAX_PLAINTEXT_BYTES


class Recorded:
    """Every sample as Prometheus would keep it: nothing exists before it is first counted."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()

    def operation(self, resource: str, operation: Operation, outcome: Outcome) -> None:
        self.counts["operations", resource, operation, outcome] += 1

    def duration(self, operation: Operation, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.counts["duration", operation] += 1

    def rewrite_needed(self, resource: str, direction: Direction) -> None:
        self.counts["rewrites", resource, direction] += 1

    def inflation_wait(self, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.counts["wait",] += 1

    def unsupported_algorithm(self, resource: str) -> None:
        self.counts["unsupported", resource] += 1

    def format_error(self, resource: str) -> None:
        self.counts["format", resource] += 1

    def config_loaded(self, config_hash: str) -> None:
        self.counts["config", config_hash] += 1


class Locked:
    """A delegate with an order to prove: what it is given comes out behind a mark and the key."""

    def __init__(self, stale: bool = False) -> None:
        self.stale = stale
        self.seen: list[bytes] = []

    def to_storage(self, plaintext: bytes, key: bytes, /) -> bytes:
        self.seen.append(plaintext)
        return b"locked:" + key + b":" + plaintext

    def from_storage(self, stored: bytes, key: bytes, /) -> tuple[bytes, bool]:
        mark = b"locked:" + key + b":"
        if not stored.startswith(mark):
            raise PermissionError("another key")
        return stored[len(mark) :], self.stale


def transformer(
    rule: Rule, delegate: Delegate | None = None, metrics: Recorded | None = None
) -> Transformer:
    return Transformer(rule, delegate or Identity(), resource="configmaps", metrics=metrics)


def text(size: int) -> bytes:
    return (b"apiVersion: v1\nkind: ConfigMap\n" * (size // 31 + 1))[:size]


def test_it_compresses_first_and_hands_the_frame_down() -> None:
    """R17, R19, R26 to R30: what lies outermost is the delegate's, the key reaches it both ways."""
    below = Locked()
    plaintext = text(5000)
    stored = transformer(SELECTED, below).to_storage(plaintext, KEY)

    assert below.seen == [frame.encode(plaintext)]
    assert stored.startswith(b"locked:" + KEY)
    assert transformer(SELECTED, below).from_storage(stored, KEY) == (plaintext, False)
    with pytest.raises(PermissionError):
        transformer(SELECTED, below).from_storage(stored, b"/registry/configmaps/default/two")


def test_an_error_of_the_delegate_passes_untouched_and_uncounted() -> None:
    """R31."""
    metrics = Recorded()
    with pytest.raises(PermissionError, match=r"^another key$"):
        transformer(SELECTED, Locked(), metrics).from_storage(b"\0rubbish", KEY)
    assert not metrics.counts


@pytest.mark.parametrize(
    ("size", "framed"),
    [(0, False), (1023, False), (1024, True), (CEILING, True), (CEILING + 1, False)],
)
def test_a_selected_value_is_framed_between_floor_and_ceiling(size: int, framed: bool) -> None:
    """R35, R41, R44, R45, A3: both ends count; outside of them the bytes are what they were."""
    plaintext = text(size)
    stored = transformer(SELECTED).to_storage(plaintext, KEY)
    assert frame.is_framed(stored) is framed
    assert framed or stored is plaintext


@pytest.mark.parametrize("rule", [SELECTED, NONE, UNSELECTED, INERT], ids=str)
def test_what_begins_with_a_zero_byte_is_always_a_stored_frame(rule: Rule) -> None:
    """R33, R34, R53: whatever the rule, and never stale under any."""
    plaintext = b"\0" + text(100_000)
    stored = transformer(rule).to_storage(plaintext, KEY)
    assert stored[:5] == b"\0k8s\0"
    assert transformer(rule).from_storage(stored, KEY) == (plaintext, False)
    with pytest.raises(frame.PlaintextTooLarge):
        transformer(rule).to_storage(bytes(CEILING + 1), KEY)


@pytest.mark.parametrize("rule", [NONE, UNSELECTED, INERT], ids=str)
def test_what_is_not_selected_is_stored_as_it_always_was(rule: Rule) -> None:
    """R36, R43, R144: the very bytes that the undecorated chain gets."""
    below = Locked()
    plaintext = text(5000)
    assert transformer(rule, below).to_storage(plaintext, KEY) == Locked().to_storage(
        plaintext, KEY
    )


RULES = [
    SELECTED,
    Rule(entry=1, algorithm=Algorithm.DEFLATE, min_size=64),
    Rule(entry=1, algorithm=Algorithm.DEFLATE, min_size=3000, ceiling=4000),
    Rule(entry=1, algorithm=Algorithm.DEFLATE, min_size=64, rewrite=Rewrite.ON_WRITE),
    NONE,
    UNSELECTED,
    INERT,
]
plaintexts = st.one_of(
    st.binary(max_size=4000),
    st.builds(
        lambda part, times: part * times, st.binary(min_size=1, max_size=40), st.integers(1, 120)
    ),
)


@given(plaintexts, st.sampled_from(RULES), st.sampled_from(RULES), st.booleans())
def test_staleness_converges_in_one_rewrite_and_reading_never_depends_on_the_rule(
    plaintext: bytes, writer: Rule, reader: Rule, below_stale: bool
) -> None:
    """R29, R47 to R50, R52, R54, R55, R57, R58, R60, R62, R124, R152, R154."""
    stored = transformer(writer, Locked()).to_storage(plaintext, KEY)

    # Written under a rule, never stale under it.
    assert transformer(writer, Locked()).from_storage(stored, KEY) == (plaintext, False)
    # Read under any, and neither staleness masks the other.
    found, stale = transformer(reader, Locked(below_stale)).from_storage(stored, KEY)
    framed = frame.is_framed(Locked().from_storage(stored, KEY)[0])
    disagree = framed is not reader.frames(plaintext) and reader.rewrite is Rewrite.EAGER
    assert (found, stale) == (plaintext, below_stale or disagree)
    # One rewrite, and it is over.
    rewritten = transformer(reader, Locked()).to_storage(found, KEY)
    assert transformer(reader, Locked()).from_storage(rewritten, KEY) == (plaintext, False)


def test_an_incompressible_value_is_rewritten_once_and_no_more() -> None:
    """R37, R38, R52: the stored frame says that it was tried."""
    import random

    plaintext = b"k" + random.Random(1).randbytes(4000)
    subject = transformer(SELECTED)
    value, stale = subject.from_storage(plaintext, KEY)
    assert stale
    value = subject.to_storage(value, KEY)
    assert value[4] == frame.Algorithm.STORED
    for _ in range(10):
        again, stale = subject.from_storage(value, KEY)
        assert not stale
        assert subject.to_storage(again, KEY) == value


def test_two_writers_that_disagree_rewrite_each_other_for_ever_and_lose_nothing() -> None:
    """R58, R141, R190: the counter climbs in both directions."""
    metrics = Recorded()
    one, other = transformer(SELECTED, metrics=metrics), transformer(NONE, metrics=metrics)
    plaintext = text(4000)
    value = one.to_storage(plaintext, KEY)
    for _ in range(5):
        for subject in (other, one):
            found, stale = subject.from_storage(value, KEY)
            assert (found, stale) == (plaintext, True)
            value = subject.to_storage(found, KEY)
    assert metrics.counts["rewrites", "configmaps", Direction.TO_BARE] == 5
    assert metrics.counts["rewrites", "configmaps", Direction.TO_FRAMED] == 5


def never(*_: object, **__: object) -> NoReturn:
    raise AssertionError("this must not be asked for")


def test_another_encoding_of_the_same_plaintext_is_not_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R21, R51: staleness looks at no bytes, and compresses nothing."""
    plaintext = text(4000)
    values = [frame.encode(plaintext), sealed(plaintext, b"\0k8s\0")]
    monkeypatch.setattr(frame, "_deflate", never)
    monkeypatch.setattr("etcdmaint.compression.transformer.encode", never)
    for value in values:
        assert transformer(SELECTED).from_storage(value, KEY) == (plaintext, False)
        assert transformer(NONE).from_storage(value, KEY) == (plaintext, True)
    assert transformer(SELECTED).from_storage(plaintext, KEY) == (plaintext, True)


def test_without_a_file_a_bare_value_costs_a_comparison_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R46: nothing is framed, unframed, measured or counted; the benchmark has the nanoseconds."""
    subject = transformer(INERT, metrics=Recorded())
    for name in ("encode", "decode", "time"):
        monkeypatch.setattr(f"etcdmaint.compression.transformer.{name}", never)
    for size in (0, 1, 1024, CEILING + 1):
        plaintext = text(size)
        assert subject.to_storage(plaintext, KEY) is plaintext
        found, stale = subject.from_storage(plaintext, KEY)
        assert found is plaintext
        assert not stale


@given(
    st.one_of(
        plaintexts,
        plaintexts.map(lambda inner: b"\0" + inner),
        plaintexts.map(lambda inner: b"\0k8s\1" + inner),
        plaintexts.map(lambda inner: sealed(inner, b"\0k8s\2")),
        plaintexts.map(frame.encode),
    ),
    st.sampled_from(RULES),
    st.sampled_from(RULES),
)
def test_nothing_that_a_client_may_store_moves_a_counter_of_errors(
    plaintext: bytes, writer: Rule, reader: Rule
) -> None:
    """R140: a damaged or newer frame, sent as an object's bytes, is wrapped like any other bytes."""
    metrics = Recorded()
    stored = transformer(writer, metrics=metrics).to_storage(plaintext, KEY)
    assert transformer(reader, metrics=metrics).from_storage(stored, KEY)[0] == plaintext
    assert not {"format", "unsupported"} & {counted[0] for counted in metrics.counts}


def test_each_outcome_is_counted_under_its_own_label() -> None:
    """R128 to R132, A12."""
    metrics = Recorded()
    selected = transformer(SELECTED, metrics=metrics)
    compressed = selected.to_storage(text(4000), KEY)
    stored = selected.to_storage(bytes([1, *range(256)]) * 4, KEY)
    assert stored[4] == frame.Algorithm.DEFLATE
    stored = selected.to_storage(b"\0", KEY)
    selected.to_storage(text(10), KEY)
    selected.to_storage(text(CEILING + 1), KEY)
    transformer(NONE, metrics=metrics).to_storage(text(4000), KEY)
    selected.from_storage(compressed, KEY)
    selected.from_storage(stored, KEY)
    selected.from_storage(text(10), KEY)

    write, read = Operation.COMPRESS, Operation.DECOMPRESS
    assert metrics.counts == {
        ("operations", "configmaps", write, Outcome.COMPRESSED): 2,
        ("operations", "configmaps", write, Outcome.STORED): 1,
        ("operations", "configmaps", write, Outcome.UNFRAMED_BELOW_THRESHOLD): 1,
        ("operations", "configmaps", write, Outcome.UNFRAMED_ABOVE_CEILING): 1,
        ("operations", "configmaps", write, Outcome.UNFRAMED_NOT_SELECTED): 1,
        ("operations", "configmaps", read, Outcome.DECOMPRESSED): 1,
        ("operations", "configmaps", read, Outcome.STORED): 1,
        ("operations", "configmaps", read, Outcome.UNFRAMED): 1,
        ("duration", write): 3,
        ("duration", read): 2,
        ("wait",): 1,
    }


def test_a_process_without_a_file_emits_no_sample_until_it_meets_a_frame() -> None:
    """R137, R144, A21: not zeros, nothing; errors are counted all the same."""
    metrics = Recorded()
    subject = transformer(INERT, metrics=metrics)
    for size in (0, 10, 4000, CEILING + 1):
        subject.from_storage(subject.to_storage(text(size), KEY), KEY)
    Transformers(Policy.absent(), lambda *_: Identity(), metrics=metrics)
    assert not metrics.counts

    assert subject.from_storage(frame.encode(text(4000)), KEY) == (text(4000), True)
    with pytest.raises(frame.ChecksumMismatch):
        subject.from_storage(b"\0k8s\0....!", KEY)
    assert metrics.counts["rewrites", "configmaps", Direction.TO_BARE] == 1
    assert metrics.counts["format", "configmaps"] == 1


@pytest.mark.parametrize(
    ("value", "refusal", "counter"),
    [
        (b"\0k8s\1....!", frame.ChecksumMismatch, "format"),
        (sealed(b"\5\xff"), frame.MalformedFrame, "format"),
        (sealed(b"", b"\0k8s\2"), frame.UnsupportedAlgorithm, "unsupported"),
    ],
    ids=["checksum", "malformed", "unsupported"],
)
def test_a_failure_is_counted_in_one_counter_and_carries_the_key(
    value: bytes,
    refusal: type[frame.FrameError],
    counter: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R99, R134 to R136, R138, A22: the key in error and log, the check nowhere but there."""
    metrics = Recorded()
    with caplog.at_level(logging.INFO), pytest.raises(refusal, match="default/one: "):
        transformer(SELECTED, metrics=metrics).from_storage(value, KEY)
    assert metrics.counts[counter, "configmaps"] == 1
    assert {counted[0] for counted in metrics.counts} <= {counter, "wait"}
    # Which check failed is for high verbosity.
    assert ("default/one" in caplog.text) is (refusal is not frame.MalformedFrame)
    assert ("algorithm 2" in caplog.text) is (refusal is frame.UnsupportedAlgorithm)
    assert "invalid" not in caplog.text
    with caplog.at_level(logging.DEBUG), pytest.raises(refusal):
        transformer(SELECTED).from_storage(value, KEY)
    assert ("the DEFLATE stream is invalid" in caplog.text) is (refusal is frame.MalformedFrame)


def test_the_name_of_a_secret_is_in_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """A22: unless whoever builds the transformer says otherwise."""
    key = b"/registry/secrets/team-a/password-of-the-bank"
    with caplog.at_level(logging.DEBUG), pytest.raises(frame.ChecksumMismatch) as refusal:
        Transformers(Policy.absent(), lambda *_: Identity()).for_resource(
            "", "secrets"
        ).from_storage(b"\0k8s\1....!", key)
    assert "/registry/secrets/team-a/…" in str(refusal.value)
    assert "bank" not in str(refusal.value) + caplog.text

    elsewhere = key.replace(b"/registry", b"/kubernetes.io")
    alone = Transformer(SELECTED, Identity(), resource="secrets")
    with caplog.at_level(logging.DEBUG), pytest.raises(frame.ChecksumMismatch) as refusal:
        alone.from_storage(b"\0k8s\1....!", elsewhere)
    assert "/kubernetes.io/secrets/team-a/…" in str(refusal.value)
    assert "bank" not in str(refusal.value) + caplog.text


def test_the_definitions_are_the_proposals_seven_and_tell_no_size() -> None:
    """R128, R129, R133 to R135, R138, A12."""
    names = [definition.name for definition in DEFINITIONS]
    assert names == [
        "apiserver_storage_compression_operations_total",
        "apiserver_storage_compression_duration_seconds",
        "apiserver_storage_compression_rewrites_needed_total",
        "apiserver_storage_compression_inflation_wait_seconds",
        "apiserver_storage_compression_last_config_info",
        "apiserver_storage_compression_unsupported_algorithm_total",
        "apiserver_storage_compression_format_errors_total",
    ]
    assert not [name for name in names if "_ratio" in name or "_bytes" in name]
    labels = {
        definition.name.partition("compression_")[2]: definition.labels
        for definition in DEFINITIONS
    }
    assert labels["operations_total"] == ("resource", "operation", "outcome")
    assert labels["last_config_info"] == ("apiserver_id_hash", "hash")
    assert labels["format_errors_total"] == labels["unsupported_algorithm_total"] == ("resource",)
    buckets = DEFINITIONS[1].buckets
    assert len(buckets) == 16
    assert buckets[0] == pytest.approx(10e-6)
    assert buckets[-1] == pytest.approx(10e-6 * 2**15)


def test_who_waits_too_long_for_a_turn_gets_a_plain_timeout() -> None:
    """R79, R80, R136: nothing is said of the value, nothing is counted as an error."""
    metrics = Recorded()
    limiter = InflationLimiter(1)
    subject = Transformer(
        SELECTED, Identity(), resource="configmaps", metrics=metrics, limiter=limiter
    )
    value = frame.encode(text(4000))
    with limiter.turn():
        start = time.monotonic()
        with pytest.raises(TimeoutError) as gave_up:
            subject.from_storage(value, KEY, timeout=0.02)
        assert time.monotonic() - start < 60
    assert not isinstance(gave_up.value, frame.FrameError)
    assert not metrics.counts
    assert subject.from_storage(value, KEY, timeout=0.02) == (text(4000), False)


def test_what_inflates_nothing_needs_no_turn() -> None:
    """R13, R77: bare values, stored frames and damaged ones pass while every turn is taken."""
    limiter = InflationLimiter(1)
    subject = Transformer(SELECTED, Identity(), limiter=limiter)
    with limiter.turn():
        assert subject.from_storage(b"bare", KEY, timeout=0) == (b"bare", False)
        assert subject.from_storage(frame.encode(b"\0"), KEY, timeout=0) == (b"\0", False)
        with pytest.raises(frame.ChecksumMismatch):
            subject.from_storage(frame.encode(text(4000))[:-1], KEY, timeout=0)


def test_never_more_than_the_cap_inflate_at_once() -> None:
    """R77, R81, R84: counted inside, by many threads, also when streams are bad."""
    limiter = InflationLimiter(4)
    inside = most = 0
    guard = threading.Lock()
    original = limiter.turn

    class Counted:
        def __init__(self) -> None:
            self.turn = original()

        def __enter__(self) -> None:
            nonlocal inside, most
            self.turn.__enter__()
            with guard:
                inside += 1
                most = max(most, inside)

        def __exit__(self, *error: object) -> None:
            nonlocal inside
            with guard:
                inside -= 1
            self.turn.__exit__(None, None, None)

    good, bad = frame.encode(text(200_000)), sealed(b"\x90\x4e\xff")

    def work() -> None:
        for _ in range(15):
            assert frame.decode(good, Counted()) == text(200_000)  # type: ignore[arg-type]
            with pytest.raises(frame.MalformedFrame):
                frame.decode(bad, Counted())  # type: ignore[arg-type]

    threads = [threading.Thread(target=work) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= 4
    assert inside == 0
    for _ in range(4):
        original(timeout=0).__enter__()


POLICY = Policy.load(
    b"apiVersion: apiserver.config.k8s.io/v1alpha1\n"
    b"kind: StorageCompressionConfiguration\n"
    b"resources:\n"
    b"  - {resources: [events], algorithm: None}\n"
    b"  - {resources: ['*.*'], algorithm: Deflate}\n",
    stage=Stage.ALPHA,
    min_compatibility_version="1.38",
)


def test_the_transformer_of_a_key_has_the_rule_and_the_delegate_of_its_resource() -> None:
    """R32, R105, R106, R120: built-ins, custom resources, Secrets, what the API server keeps."""
    asked: list[tuple[str, str]] = []

    def delegate_for(group: str, resource: str) -> Delegate:
        asked.append((group, resource))
        return Locked()

    every = Transformers(POLICY, delegate_for)
    deployment = every.for_key(b"/registry/deployments/default/web")
    widget = every.for_key(b"/registry/example.com/widgets/default/w")
    assert deployment is not None
    assert widget is not None
    assert deployment.rule.entry == widget.rule.entry == 1
    assert (deployment.resource, widget.resource) == ("deployments.apps", "widgets.example.com")
    assert every.for_key(b"/registry/deployments/other/web2") is deployment
    assert asked == [("apps", "deployments"), ("example.com", "widgets")]

    assert every.for_resource("", "events").rule.entry == 0
    assert every.for_resource("", "secrets").rule.entry is None
    internal = every.for_key(b"/registry/ranges/serviceips")
    assert internal is not None
    assert internal.to_storage(text(5000), KEY) == text(5000)


@pytest.mark.parametrize(
    "key",
    [b"compact_rev_key", b"/registry/health", b"/registry/unheardof/a/b", b"/other/pods/a/b", b""],
)
def test_a_key_that_is_no_known_resources_has_no_transformer(key: bytes) -> None:
    assert Transformers(POLICY, lambda *_: Identity()).for_key(key) is None


def test_without_a_file_the_whole_chain_writes_what_it_always_wrote_and_reads_frames() -> None:
    """R43, R60, R101, R115, R165: asserted where the chain is put together; the file is the one switch."""
    metrics = Recorded()
    without = Transformers(Policy.absent(), lambda *_: Locked(), metrics=metrics)
    within = Transformers(POLICY, lambda *_: Locked())
    for key in (KEY, b"/registry/example.com/widgets/a/b", b"/registry/secrets/a/b"):
        subject = without.for_key(key)
        selected = within.for_key(key)
        assert subject is not None
        assert selected is not None
        for size in (0, 1, 1024, 100_000):
            stored = subject.to_storage(text(size), key)
            assert stored == Locked().to_storage(text(size), key)
            assert subject.from_storage(stored, key) == (text(size), False)
        assert not metrics.counts
        framed = Locked().to_storage(frame.encode(text(5000)), key)
        assert subject.from_storage(framed, key) == (text(5000), True)
        assert selected.from_storage(framed, key)[0] == text(5000)
        metrics.counts.clear()


def test_the_hash_of_the_file_is_reported_once() -> None:
    """R127, R133, R139."""
    metrics = Recorded()
    Transformers(POLICY, lambda *_: Identity(), metrics=metrics)
    assert metrics.counts == {("config", POLICY.hash): 1}


def test_hostile_keys_do_not_fill_the_memory() -> None:
    every = Transformers(POLICY, lambda *_: Identity())
    for number in range(12_000):
        assert every.for_key(b"/registry/g.example.com/r%d/a/b" % number)
    assert len(every._known) == 10_000

"""kms against a real plugin on a unix socket: calls, seeds, rotation, and when things go wrong."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression.encryption import data_keys, kms_v2
from etcdmaint.compression.encryption.chain import EncryptionChain
from etcdmaint.compression.encryption.ciphers import Cbc, Gcm
from etcdmaint.compression.encryption.configuration import Kms
from etcdmaint.compression.encryption.kms import (
    SOURCE_KEY,
    SOURCE_SEED,
    EncryptedObject,
    PluginV2,
    Wrapped,
    dump_object,
    parse_object,
)
from etcdmaint.errors import (
    DecryptionFailed,
    EncryptionError,
    EncryptionKeyMissing,
    EncryptionUnsupported,
    KmsRefused,
    KmsUnavailable,
)
from tests.kms_plugin import KmsPlugin

from .conftest import StillClock
from .files import configured, keyed, kms
from .fuzzing import socketless

Serve = Callable[..., KmsPlugin]

KEY = b"/registry/secrets/default/s1"
PREFIX = b"k8s:enc:kms:v2:vault:"
SECRET = b"0123456789abcdef" * 2


def chain_of(plugin: KmsPlugin, clock: StillClock, **options: Any) -> EncryptionChain:
    more = options.pop("kms", {})
    return EncryptionChain(configured(kms(plugin.endpoint, **more)), clock=clock, **options)


def body_of(stored: bytes) -> EncryptedObject:
    assert stored.startswith(PREFIX)
    return parse_object(stored[len(PREFIX) :])


def older_form(plugin: KmsPlugin, key_id: str, plaintext: bytes) -> bytes:
    """What kube-apiserver wrote before 1.29: a data key for many values, without a seed."""
    wrapped = Wrapped(plugin.wrap(SECRET, key_id), key_id, {})
    data = Gcm(SECRET).encrypt(plaintext, KEY)
    return PREFIX + dump_object(EncryptedObject(data, wrapped, SOURCE_KEY))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("did not come true within five seconds")


def test_one_seed_serves_every_write_and_opening_our_own_values_asks_nobody(
    serve: Serve, clock: StillClock
) -> None:
    plugin = serve("kid-1", annotate=True)
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        stored = [one.to_storage(b"value %d" % n, KEY) for n in range(50)]
        read = [one.decrypt(value, KEY) for value in stored]

    assert [found.plaintext for found in read] == [b"value %d" % n for n in range(50)]
    assert {found[1:] for found in read} == {(False, "kms:v2", "vault", "kid-1")}
    assert len({body_of(value).wrapped.ciphertext for value in stored}) == 1
    assert plugin.calls["Encrypt"] == 1
    assert plugin.calls["Decrypt"] == 0
    assert chain.kms_calls == plugin.calls


def test_reading_alone_needs_no_encrypt_and_one_decrypt_for_each_data_key(
    serve: Serve, clock: StillClock
) -> None:
    """Issue 6: one Decrypt for each distinct data key; the number of calls is known."""
    plugin = serve("kid-1")
    with chain_of(plugin, clock) as writer:
        stored = [writer.for_resource("", "secrets").to_storage(b"%d" % n, KEY) for n in range(9)]
    with chain_of(plugin, clock) as writer:
        stored += [writer.for_resource("", "secrets").to_storage(b"%d" % n, KEY) for n in range(9)]
    plugin.calls.clear()

    with chain_of(plugin, clock) as chain:
        for value in stored:
            chain.for_resource("", "secrets").from_storage(value, KEY)

    assert plugin.calls == {"Status": 1, "Decrypt": 2}
    assert chain.kms_calls == plugin.calls


def test_threads_that_want_one_data_key_at_once_ask_once(serve: Serve, clock: StillClock) -> None:
    plugin = serve("kid-1")
    with chain_of(plugin, clock) as writer:
        stored = writer.for_resource("", "secrets").to_storage(b"value", KEY)
    plugin.calls.clear()
    plugin.stall = 0.05
    start = threading.Barrier(8)

    with chain_of(plugin, clock) as chain, ThreadPoolExecutor(8) as pool:
        one = chain.for_resource("", "secrets")

        def read(_: int) -> bytes:
            start.wait()
            return one.from_storage(stored, KEY)[0]

        assert set(pool.map(read, range(8))) == {b"value"}

    assert plugin.calls == {"Status": 1, "Decrypt": 1}


def test_a_new_key_of_the_plugin_makes_a_new_seed_and_the_old_values_stale(
    serve: Serve, clock: StillClock
) -> None:
    """R57: seen at the next status, a minute later at most."""
    plugin = serve("kid-1")
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        old = one.to_storage(b"value", KEY)
        plugin.keys = ["kid-2", "kid-1"]
        assert one.from_storage(old, KEY) == (b"value", False), "not known yet"
        clock.pass_(kms_v2.POLL_SECONDS)
        assert one.from_storage(old, KEY) == (b"value", True)
        new = one.to_storage(b"value", KEY)

        assert one.decrypt(new, KEY)[1:] == (False, "kms:v2", "vault", "kid-2")
        assert body_of(new).wrapped.ciphertext != body_of(old).wrapped.ciphertext


def test_polling_sees_a_new_key_without_any_reader(serve: Serve, clock: StillClock) -> None:
    plugin = serve("kid-1")

    async def poll_for_a_while() -> None:
        await chain.connect()
        polling = asyncio.ensure_future(chain.poll())
        await until(lambda: plugin.calls["Status"] >= 4)
        polling.cancel()

    with chain_of(plugin, clock) as chain:
        asyncio.run(poll_for_a_while())


def test_while_polling_goes_on_no_reader_waits_for_a_status(
    serve: Serve, clock: StillClock
) -> None:
    """The answer is renewed before it is too old, and a plugin that hangs delays no other."""
    plugin = serve("kid-1")
    due: list[bool] = []

    class Watched(StillClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            due.append(chain._envelopes[0]._is_due())  # type: ignore[attr-defined]  # known to be of that kind

    async def poll_for_a_while() -> None:
        await chain.connect()
        polling = asyncio.ensure_future(chain.poll())
        await until(lambda: len(due) >= 3)
        polling.cancel()

    with chain_of(plugin, Watched()) as chain:
        asyncio.run(poll_for_a_while())

    assert not any(due)


def test_polling_outlives_a_plugin_that_does_not_answer(
    serve: Serve, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = serve("kid-1")

    async def poll_through_an_outage() -> None:
        await chain.connect()
        polling = asyncio.ensure_future(chain.poll())
        plugin.fail["Status"] = grpc.StatusCode.UNAVAILABLE
        await until(lambda: bool(caplog.records))
        plugin.fail.clear()
        known = plugin.calls["Status"]
        await until(lambda: plugin.calls["Status"] >= known + 2)
        polling.cancel()

    with chain_of(plugin, clock) as chain:
        asyncio.run(poll_through_an_outage())

    assert "is not known" in caplog.text


def test_connecting_fails_where_there_is_no_plugin(clock: StillClock) -> None:
    for endpoint, why in (
        ("unix:///nowhere/kms.sock", r"'/nowhere/kms.sock': No such file or directory"),
        ("unix:///@etcdmaint-nobody", r"'@etcdmaint-nobody': Connection refused"),
        (f"unix:///{'x' * 200}", r"path too long"),
    ):
        missing = kms(endpoint, timeout="50ms")
        with EncryptionChain(configured(missing), clock=clock) as chain:
            with pytest.raises(KmsUnavailable, match=f"'vault' cannot be reached.*{why}"):
                asyncio.run(chain.connect())
            with pytest.raises(KmsUnavailable):
                chain.for_resource("", "secrets").to_storage(b"value", KEY)


def test_a_data_key_of_the_older_form_is_read_and_never_written_with(
    serve: Serve, clock: StillClock
) -> None:
    """A23: whatever was read before, a write is under a fresh seed, and the old form is stale."""
    plugin = serve("kid-1")
    old = older_form(plugin, "kid-1", b"value")
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        assert one.from_storage(old, KEY) == (b"value", True)
        new = body_of(one.to_storage(b"value", KEY))
        kept = [entry[1] for entry in chain._envelopes[0]._keys._known.values()]

    assert new.source_type == SOURCE_SEED
    assert new.wrapped.ciphertext != body_of(old).wrapped.ciphertext
    assert all(opener.__name__ == "decrypt" for opener in kept)


def test_while_the_status_is_not_known_reads_go_on_and_writes_end_after_three_minutes(
    serve: Serve, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = serve("kid-1")
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        stored = one.to_storage(b"value", KEY)
        plugin.fail["Status"] = grpc.StatusCode.UNAVAILABLE
        clock.pass_(kms_v2.SEED_SECONDS - 1)
        assert one.from_storage(stored, KEY) == (b"value", False)
        one.to_storage(b"value", KEY)
        clock.pass_(1)
        with pytest.raises(KmsUnavailable):
            one.to_storage(b"value", KEY)
        assert one.from_storage(stored, KEY) == (b"value", False)
        plugin.fail.clear()
        one.to_storage(b"value", KEY)

    assert "kms status is not known" in caplog.text
    assert plugin.calls["Encrypt"] == 1, "the seed is as good as before"


def test_a_status_that_fails_is_asked_again_after_ten_seconds_not_by_each_reader(
    serve: Serve, clock: StillClock
) -> None:
    plugin = serve("kid-1")
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        stored = one.to_storage(b"value", KEY)
        plugin.fail["Status"] = grpc.StatusCode.UNAVAILABLE
        clock.pass_(kms_v2.POLL_SECONDS)
        plugin.calls.clear()
        for _ in range(5):
            one.from_storage(stored, KEY)
        assert plugin.calls["Status"] == 1
        clock.pass_(kms_v2.RETRY_SECONDS)
        one.from_storage(stored, KEY)
        assert plugin.calls["Status"] == 2


def test_a_plugin_in_the_middle_of_a_rotation_makes_nothing_stale(
    serve: Serve, clock: StillClock
) -> None:
    """Its status names a key that it does not encrypt with: rewriting would never end."""
    plugin = serve("kid-1")
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        stored = one.to_storage(b"value", KEY)
        plugin.keys, plugin.encrypts_with = ["kid-2", "kid-1"], "kid-1"
        clock.pass_(kms_v2.POLL_SECONDS)
        assert one.from_storage(stored, KEY) == (b"value", False)
        assert body_of(one.to_storage(b"value", KEY)).wrapped.key_id == "kid-1"
        plugin.encrypts_with = None
        clock.pass_(kms_v2.RETRY_SECONDS)
        assert one.from_storage(stored, KEY) == (b"value", True)


def test_a_first_write_is_refused_where_status_and_encrypt_disagree(
    serve: Serve, clock: StillClock
) -> None:
    plugin = serve("kid-1")
    plugin.encrypts_with = "kid-0"
    with (
        chain_of(plugin, clock) as chain,
        pytest.raises(KmsUnavailable, match="another key than its status"),
    ):
        chain.for_resource("", "secrets").to_storage(b"value", KEY)


@pytest.mark.parametrize("key_id", ["", "k" * 1025])
def test_a_status_without_a_usable_key_id_is_refused(
    serve: Serve, clock: StillClock, key_id: str
) -> None:
    plugin = serve(key_id)
    with chain_of(plugin, clock) as chain, pytest.raises(KmsUnavailable, match="key id"):
        chain.for_resource("", "secrets").to_storage(b"value", KEY)


def test_an_unhealthy_plugin_is_used_and_told_once(
    serve: Serve, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As upstream: health is reported, it does not stop a plugin that answers."""
    plugin = serve("kid-1")
    plugin.healthz = "the HSM is asleep"
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        stored = one.to_storage(b"value", KEY)
        clock.pass_(kms_v2.POLL_SECONDS)
        assert one.from_storage(stored, KEY) == (b"value", False)

    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == ["kms plugin is not healthy"]


def test_a_refused_data_key_is_asked_for_once_in_a_while(serve: Serve, clock: StillClock) -> None:
    """A scan of ten thousand values under a key that is gone must not ask ten thousand times."""
    plugin = serve("kid-1")
    with chain_of(plugin, clock) as writer:
        stored = writer.for_resource("", "secrets").to_storage(b"value", KEY)
    plugin.keys = ["kid-2"]
    plugin.calls.clear()
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        for _ in range(5):
            with pytest.raises(KmsRefused, match="INVALID_ARGUMENT: unknown key") as refusal:
                one.from_storage(stored, KEY)
            assert refusal.value.key_name == "vault"
        assert plugin.calls["Decrypt"] == 1
        plugin.keys = ["kid-2", "kid-1"]
        clock.pass_(data_keys.REFUSED_SECONDS)
        assert one.from_storage(stored, KEY) == (b"value", True)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.NOT_FOUND, KmsRefused),
        (grpc.StatusCode.PERMISSION_DENIED, KmsRefused),
        (grpc.StatusCode.UNKNOWN, KmsRefused),
        (grpc.StatusCode.UNAVAILABLE, KmsUnavailable),
        (grpc.StatusCode.UNIMPLEMENTED, KmsUnavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, KmsUnavailable),
    ],
)
def test_a_verdict_of_the_plugin_and_no_answer_are_two_things(
    serve: Serve, clock: StillClock, code: grpc.StatusCode, error: type[EncryptionError]
) -> None:
    """R31: neither of them says that the value is damaged."""
    plugin = serve("kid-1")
    stored = older_form(plugin, "kid-1", b"value")
    plugin.fail["Decrypt"] = code
    with chain_of(plugin, clock) as chain, pytest.raises(error) as refusal:
        chain.for_resource("", "secrets").from_storage(stored, KEY)

    assert code.name in str(refusal.value)
    assert not refusal.value.corrupt


def test_a_plugin_that_hangs_costs_the_timeout_and_no_more(serve: Serve, clock: StillClock) -> None:
    plugin = serve("kid-1")
    plugin.stall = 0.5
    with (
        chain_of(plugin, clock, kms={"timeout": "20ms"}) as chain,
        pytest.raises(KmsUnavailable, match="DEADLINE_EXCEEDED"),
    ):
        chain.for_resource("", "secrets").to_storage(b"value", KEY)


@pytest.mark.parametrize("known", [False, True], ids=["status", "data key"])
@pytest.mark.parametrize("writing", [False, True], ids=["reading", "writing"])
def test_a_plugin_that_hangs_costs_no_thread_the_timeouts_of_the_others(
    serve: Serve, clock: StillClock, known: bool, writing: bool
) -> None:
    """A queue of readers behind a plugin that hangs would outlast the plugin."""
    plugin = serve("kid-1")
    stored = older_form(plugin, "kid-1", b"value")
    start = threading.Barrier(8)
    with (
        chain_of(plugin, clock, kms={"timeout": "300s"}) as chain,
        ThreadPoolExecutor(8) as pool,
    ):
        one = chain.for_resource("", "secrets")
        if known:
            asyncio.run(chain.connect())
            clock.pass_(kms_v2.SEED_SECONDS)
        plugin.calls.clear()
        plugin.fail |= dict.fromkeys(("Status", "Decrypt"), grpc.StatusCode.UNAVAILABLE)

        def work(_: int) -> str:
            start.wait()
            with pytest.raises(KmsUnavailable) as refusal:
                one.to_storage(b"value", KEY) if writing else one.from_storage(stored, KEY)
            return str(refusal.value)

        # Whoever comes late asks again: on a machine that is too busy, it hangs for longer.
        for plugin.stall in (0.2, 2.0, 20.0):
            plugin.calls.clear()
            told = set(pool.map(work, range(8)))
            assert len(told) == 1, "each says it once, and the same"
            if sum(plugin.calls.values()) <= 4:
                break
            clock.pass_(kms_v2.RETRY_SECONDS)
        else:
            pytest.fail(f"{plugin.calls} of eight readers")


def test_a_seed_that_cannot_be_made_keeps_nobody_from_reading(
    serve: Serve, clock: StillClock
) -> None:
    """Credentials that decrypt and do not encrypt are enough to read with."""
    plugin = serve("kid-1")
    stored = older_form(plugin, "kid-1", b"value")
    plugin.fail["Encrypt"] = grpc.StatusCode.PERMISSION_DENIED
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        with pytest.raises(KmsUnavailable, match="PERMISSION_DENIED"):
            one.to_storage(b"value", KEY)
        plugin.fail["Status"] = grpc.StatusCode.UNAVAILABLE
        assert one.from_storage(stored, KEY) == (b"value", True)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_data_key_that_is_none_is_the_plugins_doing_and_no_damage(
    serve: Serve, clock: StillClock, version: str
) -> None:
    """R86, R90: what is called damaged may be deleted, so it is not said on a plugin's word."""
    plugin = serve("kid-1")
    wrapped = plugin.wrap(b"short", "kid-1")
    if version == "v1":
        stored = b"k8s:enc:kms:v1:vault:" + len(wrapped).to_bytes(2, "big") + wrapped + bytes(40)
    else:
        value = EncryptedObject(bytes(80), Wrapped(wrapped, "kid-1", {}), SOURCE_SEED)
        stored = PREFIX + dump_object(value)
    with chain_of(plugin, clock, kms={"version": version}) as chain:
        for _ in range(2):
            with pytest.raises(KmsRefused, match="a data key that is none") as refusal:
                chain.for_resource("", "secrets").from_storage(stored, KEY)
            assert not refusal.value.corrupt

    assert plugin.calls["Decrypt"] == 1


def test_a_plugin_that_was_restarted_is_found_again(serve: Serve, clock: StillClock) -> None:
    plugin = serve("kid-1")
    with chain_of(plugin, clock, kms={"timeout": "1s"}) as chain:
        one = chain.for_resource("", "secrets")
        stored = older_form(plugin, "kid-1", b"value")
        one.to_storage(b"value", KEY)
        plugin.stop()
        told = ""
        for _ in range(20):
            # What is sent over the connection that has ended, before that was noticed, fails otherwise.
            with pytest.raises(KmsUnavailable) as refusal:
                one.from_storage(stored, KEY)
            told = str(refusal.value)
            if "cannot be reached" in told:
                break
        assert "cannot be reached" in told
        plugin.start()
        for _ in range(1000):
            try:
                assert one.from_storage(stored, KEY)[0] == b"value"
                break
            except KmsUnavailable:
                threading.Event().wait(0.02)
        else:
            pytest.fail("not found again")


def test_a_plugin_that_is_being_restarted_fails_nobodys_call(
    serve: Serve, clock: StillClock
) -> None:
    """As with kube-apiserver: the timeout is also that for its socket to come back."""
    plugin = serve("kid-1")
    with chain_of(plugin, clock, kms={"timeout": "30s"}) as chain, ThreadPoolExecutor(1) as pool:
        one = chain.for_resource("", "secrets")
        one.to_storage(b"value", KEY)
        stored = older_form(plugin, "kid-1", b"value")
        plugin.stop()
        for _ in range(20):
            reading = pool.submit(one.from_storage, stored, KEY)
            try:
                reading.result(0.2)
            except TimeoutError:
                break
            except KmsUnavailable:
                # Sent over the connection that has ended, before that was noticed.
                continue
        plugin.start()
        assert reading.result(200) == (b"value", True)


def test_the_pace_is_kept_before_each_decrypt_and_only_there(
    serve: Serve, clock: StillClock
) -> None:
    """Issue 6, --kms-rate."""
    plugin = serve("kid-1")
    paces: list[int] = []
    with chain_of(plugin, clock, pace=lambda: paces.append(plugin.calls["Decrypt"])) as chain:
        one = chain.for_resource("", "secrets")
        one.to_storage(b"value", KEY)
        assert paces == []
        for key_id in ("kid-1", "kid-1", "kid-gone"):
            plugin.keys = ["kid-1", key_id]
            one.from_storage(older_form(plugin, key_id, b"value"), KEY)

    assert paces == [0, 1]


def test_a_failed_call_is_counted_like_any_other_and_told_without_the_plugins_words(
    serve: Serve, clock: StillClock
) -> None:
    plugin = serve("kid-1")
    plugin.fail["Encrypt"] = grpc.StatusCode.INTERNAL
    with chain_of(plugin, clock) as chain:
        with pytest.raises(KmsUnavailable, match="answers Encrypt with INTERNAL") as refusal:
            chain.for_resource("", "secrets").to_storage(b"value", KEY)
        assert chain.kms_calls == plugin.calls

    assert plugin.calls["Encrypt"] == 1
    assert "told to fail" not in str(refusal.value), "a seed was sent: no text of the plugin's"


@pytest.mark.parametrize("name", ["plain", "with space", "with%41percent", "größe", "a:b", "a#b?c"])
def test_any_name_of_a_socket_is_dialled_as_kubernetes_would(name: str, clock: StillClock) -> None:
    """An endpoint is a URL: what has a meaning there is quoted, and gRPC must not see that."""
    with (
        tempfile.TemporaryDirectory(prefix="kms") as short,
        KmsPlugin(f"{short}/{name}", ["kid-1"]) as plugin,
    ):
        endpoint = f"unix://{short}/{quote(name)}"
        with EncryptionChain(configured(kms(endpoint)), clock=clock) as chain:
            chain.for_resource("", "secrets").to_storage(b"value", KEY)
        assert plugin.calls == {"Status": 2, "Encrypt": 1}


def test_no_flipped_bit_of_a_value_gives_another_plaintext(serve: Serve, clock: StillClock) -> None:
    """R95: refused with the right class, or (where the message stays as good) read as it was."""
    plugin = serve("kid-1", annotate=True)
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        stored = one.to_storage(b"value", KEY)
        seen = set()
        for bit in range(len(PREFIX) * 8, len(stored) * 8):
            flipped = bytearray(stored)
            flipped[bit // 8] ^= 1 << bit % 8
            try:
                assert one.from_storage(bytes(flipped), KEY)[0] == b"value"
            except EncryptionError as error:
                seen.add(type(error))

    assert seen == {DecryptionFailed, KmsRefused}


@given(plaintext=st.binary(max_size=300), key=st.binary(max_size=60))
def test_any_value_under_any_etcd_key_comes_back(plaintext: bytes, key: bytes) -> None:
    """R29, R30: one provider for all the examples, without a socket."""
    envelope = socketless()

    assert envelope.decrypt(envelope.encrypt(plaintext, key), key) == (plaintext, False, "kid")


def test_no_seed_and_no_data_key_shows_in_a_repr(serve: Serve, clock: StillClock) -> None:
    plugin = serve("kid-1")
    with chain_of(plugin, clock) as chain:
        one = chain.for_resource("", "secrets")
        stored = one.to_storage(b"value", KEY)
        seed = chain._plugins[0].decrypt(body_of(stored).wrapped)
        envelope: Any = chain._envelopes[0]
        shown = repr([chain, one, envelope, envelope._seed, envelope._keys, body_of(stored)])

    assert repr(seed)[2:-1] not in shown
    assert seed.hex() not in shown
    assert repr(body_of(stored).data)[2:-1] not in shown


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("a.b", True),
        ("a.b.", True),
        ("key.vectors.example.com", True),
        ("a-1.b-2", True),
        ("a", False),
        ("a.", False),
        ("a..b", False),
        ("a.b..", False),
        ("-a.b", False),
        ("a-.b", False),
        ("A.b", False),
        ("a_b.c", False),
        ("a.b\n", False),
        ("", False),
        (f"{'a' * 63}.b", True),
        (f"{'a' * 64}.b", False),
    ],
)
def test_an_annotation_is_named_by_a_domain(name: str, good: bool) -> None:
    wrapped = Wrapped(b"x", "kid", {name: b""})

    assert bool(kms_v2._fault_of_wrapped(wrapped)) is not good


# kms v1


def v1_value(plugin: KmsPlugin, key_id: str, data: bytes) -> bytes:
    wrapped = plugin.wrap(SECRET, key_id)
    return b"k8s:enc:kms:v1:vault:" + len(wrapped).to_bytes(2, "big") + wrapped + data


def test_kms_v1_is_read_in_both_its_forms_and_greeted_once(serve: Serve, clock: StillClock) -> None:
    """R96: the form from before 1.25 is stale."""
    plugin = serve("k-one")
    new = v1_value(plugin, "k-one", Gcm(SECRET).encrypt(b"value", KEY))
    old = v1_value(plugin, "k-one", Cbc(SECRET).encrypt(b"value", KEY))
    with chain_of(plugin, clock, kms={"version": "v1"}) as chain:
        one = chain.for_resource("", "secrets")
        assert one.decrypt(new, KEY) == (b"value", False, "kms:v1", "vault", "")
        assert one.from_storage(old, KEY) == (b"value", True)
        with pytest.raises(DecryptionFailed, match="as AES-GCM"):
            one.from_storage(new[:-1], KEY)

    assert plugin.calls == {"Version": 1, "Decrypt": 1}


def test_kms_v1_is_not_written(serve: Serve, clock: StillClock) -> None:
    plugin = serve("k-one")
    with (
        chain_of(plugin, clock, kms={"version": "v1"}) as chain,
        pytest.raises(EncryptionUnsupported, match="another provider the first"),
    ):
        chain.for_resource("", "secrets").to_storage(b"value", KEY)


def test_a_negative_cache_size_of_kms_v1_keeps_nothing(serve: Serve, clock: StillClock) -> None:
    plugin = serve("k-one")
    stored = v1_value(plugin, "k-one", Gcm(SECRET).encrypt(b"value", KEY))
    with chain_of(plugin, clock, kms={"version": "v1", "cachesize": -1}) as chain:
        for _ in range(3):
            chain.for_resource("", "secrets").from_storage(stored, KEY)

    assert plugin.calls["Decrypt"] == 3


def test_a_plugin_of_another_version_is_no_kms_v1(serve: Serve, clock: StillClock) -> None:
    plugin = serve("k-one")
    plugin.version = "v1alpha1"
    stored = v1_value(plugin, "k-one", Gcm(SECRET).encrypt(b"value", KEY))
    with (
        chain_of(plugin, clock, kms={"version": "v1"}) as chain,
        pytest.raises(KmsUnavailable, match="v1beta1"),
    ):
        chain.for_resource("", "secrets").from_storage(stored, KEY)


def test_a_value_of_no_configured_provider_never_reaches_a_plugin(
    serve: Serve, clock: StillClock
) -> None:
    plugin = serve("kid-1")
    with EncryptionChain(configured(kms(plugin.endpoint), keyed("aesgcm", "one"))) as chain:
        one = chain.for_resource("", "secrets")
        with pytest.raises(EncryptionKeyMissing) as refusal:
            one.from_storage(b"k8s:enc:kms:v2:other:rest", KEY)

    assert (refusal.value.provider, refusal.value.key_name) == ("kms:v2", "other")
    assert not plugin.calls


def test_a_plugin_that_ends_well_and_answers_nothing_is_unavailable() -> None:
    """Status OK without a message, which gRPC hands out as None."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_stream_rpc_method_handler(lambda _request, _context: iter(()))

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((Handler(),))
        server.add_insecure_port(f"unix:{folder}/kms.sock")
        server.start()
        provider = Kms(2, "vault", f"{folder}/kms.sock", 3.0, 10)
        plugin = PluginV2(provider)
        try:
            with pytest.raises(KmsUnavailable, match="answers Status with nothing"):
                plugin.status()
            with pytest.raises(KmsUnavailable, match="answers Decrypt with nothing"):
                plugin.decrypt(Wrapped(b"x", "key", {}))
        finally:
            plugin.close()
            server.stop(None).wait()

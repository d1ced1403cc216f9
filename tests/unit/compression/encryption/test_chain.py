"""Who writes, who reads, what is stale, and what an error says."""

from __future__ import annotations

import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from etcdmaint.compression.encryption.chain import EncryptionChain
from etcdmaint.compression.encryption.configuration import EncryptionConfiguration
from etcdmaint.compression.policy import Policy, Stage
from etcdmaint.compression.transformer import Transformer
from etcdmaint.errors import DecryptionFailed, EncryptionKeyMissing

from .files import IDENTITY, configured, document, entry, keyed

KEY = b"/registry/secrets/default/s1"
LOCAL = ["aescbc", "aesgcm", "secretbox"]
POLICY = b"""
apiVersion: apiserver.config.k8s.io/v1alpha1
kind: StorageCompressionConfiguration
resources:
  - resources: [secrets]
    algorithm: Deflate
    minSize: 64
"""
RULE = Policy.load(POLICY, stage=Stage.ALPHA, min_compatibility_version="1.38").rule_for(
    "", "secrets"
)


def secrets(*providers: dict[str, object]) -> EncryptionChain:
    return EncryptionChain(configured(*providers))


@given(
    plaintext=st.binary(max_size=2000),
    key=st.binary(max_size=60),
    providers=st.lists(st.sampled_from([*LOCAL, "identity"]), min_size=1, max_size=4),
    writer=st.integers(0, 3),
)
def test_any_value_of_any_provider_of_a_chain_comes_back_stale_unless_it_is_the_first(
    plaintext: bytes, key: bytes, providers: list[str], writer: int
) -> None:
    """R29, R48, R57: each provider twice over is the same provider; the first that fits reads."""
    elements = [IDENTITY if name == "identity" else keyed(name, "one") for name in providers]
    chosen = providers[writer % len(providers)]
    alone = secrets(elements[writer % len(providers)]).for_resource("", "secrets")
    whole = secrets(*elements).for_resource("", "secrets")
    assume(chosen != "identity" or not plaintext.startswith(b"k8s:enc:"))

    stored = alone.to_storage(plaintext, key)

    assert whole.from_storage(stored, key) == (plaintext, providers.index(chosen) > 0)


@pytest.mark.parametrize("provider", [*LOCAL, "identity"])
@given(plaintext=st.binary(max_size=3000))
def test_a_frame_inside_an_envelope_comes_back_and_is_current(
    provider: str, plaintext: bytes
) -> None:
    """R17, R19, R26, R29: the same transformer with or without encryption."""
    assume(provider != "identity" or not plaintext.startswith(b"k8s:enc:"))
    element = IDENTITY if provider == "identity" else keyed(provider, "one")
    delegate = secrets(element).for_resource("", "secrets")
    transformer = Transformer(RULE, delegate)

    stored = transformer.to_storage(plaintext, KEY)

    assert stored.startswith(delegate.prefix)
    assert transformer.from_storage(stored, KEY) == (plaintext, False)


def test_a_rotated_key_makes_a_compressed_value_stale_and_leaves_the_frame() -> None:
    """R57."""
    plaintext = b"k8s" * 100
    before = Transformer(RULE, secrets(keyed("aesgcm", "a")).for_resource("", "secrets"))
    after = Transformer(RULE, secrets(keyed("aesgcm", "b", "a")).for_resource("", "secrets"))
    stored = before.to_storage(plaintext, KEY)

    assert after.from_storage(stored, KEY) == (plaintext, True)
    assert after.from_storage(after.to_storage(plaintext, KEY), KEY) == (plaintext, False)


def test_a_delegates_error_passes_the_transformer_untouched() -> None:
    """R31, R95: no frame error, nothing inflated."""
    delegate = secrets(keyed("aesgcm", "one")).for_resource("", "secrets")
    transformer = Transformer(RULE, delegate)
    stored = transformer.to_storage(b"k8s" * 100, KEY)

    with pytest.raises(DecryptionFailed):
        transformer.from_storage(stored[:-1], KEY)
    with pytest.raises(DecryptionFailed):
        transformer.from_storage(stored, KEY + b"-copy")


def test_without_a_configuration_everything_is_plain_and_ciphertext_is_refused() -> None:
    """R18."""
    plain = EncryptionChain().for_resource("apps", "deployments")

    assert plain.writes == ("identity", "")
    assert plain.to_storage(b"\0k8s", KEY) == b"\0k8s"
    assert plain.from_storage(b"\0k8s", KEY) == (b"\0k8s", False)
    with pytest.raises(EncryptionKeyMissing, match="not configured to be") as refusal:
        plain.from_storage(b"k8s:enc:aesgcm:v1:key1:...", KEY)
    assert (refusal.value.provider, refusal.value.key_name) == ("aesgcm", "key1")


@pytest.mark.parametrize(
    ("group", "resource", "writer"),
    [
        ("", "secrets", "two"),
        ("", "events", "two"),
        ("events.k8s.io", "events", "two"),
        ("apps", "deployments", "one"),
        ("", "apiServerIPInfo", ""),
        ("", "apiServerPeerIPInfo", ""),
        ("", "serviceipallocations", ""),
        ("", "servicenodeportallocations", ""),
    ],
)
def test_what_the_api_server_keeps_for_itself_no_wildcard_encrypts(
    group: str, resource: str, writer: str
) -> None:
    """R32: and both groups of events are one store."""
    configuration = EncryptionConfiguration.load(
        document(entry([keyed("aesgcm", "two")], "*."), entry([keyed("aesgcm", "one")], "*.*"))
    )

    assert EncryptionChain(configuration).for_resource(group, resource).writes[1] == writer


def test_a_value_says_which_key_opened_it() -> None:
    """Issue 6: encrypted by provider and key name."""
    chain = secrets(keyed("secretbox", "new", "old"), keyed("aescbc", "legacy"), IDENTITY)
    one = chain.for_resource("", "secrets")
    old = secrets(keyed("secretbox", "old")).for_resource("", "secrets").to_storage(b"x", KEY)
    legacy = secrets(keyed("aescbc", "legacy")).for_resource("", "secrets").to_storage(b"x", KEY)

    assert one.decrypt(one.to_storage(b"x", KEY), KEY) == (b"x", False, "secretbox", "new", "")
    assert one.decrypt(old, KEY) == (b"x", True, "secretbox", "old", "")
    assert one.decrypt(legacy, KEY) == (b"x", True, "aescbc", "legacy", "")
    assert one.decrypt(b"x", KEY) == (b"x", True, "identity", "", "")


def test_a_key_that_fails_says_more_than_a_key_that_is_not_there() -> None:
    """R31: of several failures the worst is raised, and all of them are told once."""
    other = keyed("aesgcm", "one", size=16)
    stored = secrets(keyed("aesgcm", "one")).for_resource("", "secrets").to_storage(b"x", KEY)
    one = secrets(other, keyed("aesgcm", "two"), other).for_resource("", "secrets")

    with pytest.raises(DecryptionFailed) as refusal:
        one.from_storage(stored, KEY)

    assert str(refusal.value) == "aesgcm key 'one': the value's authentication failed"


@pytest.mark.parametrize(
    ("stored", "provider", "name"),
    [
        (b"k8s:enc:", "", ""),
        (b"k8s:enc:aesgcm", "aesgcm", ""),
        (b"k8s:enc:aesgcm:v1:", "aesgcm", ""),
        (b"k8s:enc:aesgcm:v2:one:rest", "aesgcm", "one"),
        (b"k8s:enc:kms:v2:vault:rest", "kms:v2", "vault"),
        (b"k8s:enc:\x1b[31m:v1:\xff\xfe\n:rest", "\x1b[31m", "\ufffd\ufffd\n"),
    ],
)
def test_a_missing_key_is_named_as_the_value_names_it(
    stored: bytes, provider: str, name: str
) -> None:
    """And what a hostile value holds is escaped in the message."""
    with pytest.raises(EncryptionKeyMissing) as refusal:
        secrets(keyed("aesgcm", "other")).for_resource("", "secrets").from_storage(stored, KEY)

    assert (refusal.value.provider, refusal.value.key_name) == (provider, name)
    assert str(refusal.value).isprintable()
    assert str(refusal.value).isascii()


def test_a_long_hostile_name_is_cut() -> None:
    with pytest.raises(EncryptionKeyMissing) as refusal:
        EncryptionChain().for_resource("", "secrets").from_storage(b"k8s:enc:" + b"a" * 10**6, KEY)

    assert len(str(refusal.value)) < 300
    assert len(refusal.value.provider) < 300


@pytest.mark.parametrize("provider", LOCAL)
def test_no_error_holds_a_byte_of_the_value_or_of_the_key(provider: str) -> None:
    """R31, and the rule that secrets reach no traceback."""
    one = secrets(keyed(provider, "one")).for_resource("", "secrets")
    stored = one.to_storage(b"a very secret value" * 10, KEY)
    for damaged in (stored[:-1], stored[: len(one.prefix) + 3], stored + b"more"):
        try:
            one.from_storage(damaged, KEY)
        except DecryptionFailed as error:
            shown = "".join(traceback.format_exception(error)) + repr(error.__context__)
            body = stored[len(one.prefix) :]
            for secret in (b"secret value", b"oneoneone", body[:6], body[-6:]):
                assert repr(secret)[2:-1] not in shown
                assert secret.hex() not in shown


@pytest.mark.parametrize("provider", LOCAL)
def test_one_chain_serves_many_threads(provider: str) -> None:
    """Codec and transformer are synchronous and thread-safe."""
    one = secrets(keyed(provider, "one", "two"), IDENTITY).for_resource("", "secrets")

    def work(number: int) -> bool:
        plaintext = b"%d" % number * 500
        return one.from_storage(one.to_storage(plaintext, KEY), KEY) == (plaintext, False)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(400)))


def test_any_number_of_resources_costs_no_memory() -> None:
    """Etcd keys come from outside: what they name must not pile up."""
    chain = secrets(keyed("aesgcm", "one"))

    assert len({id(chain.for_resource(f"g{n}", f"r{n}")) for n in range(1000)}) == 1
    assert chain.for_resource("", "secrets") is chain.for_resource("", "secrets")


def test_a_key_counts_what_it_writes_for_all_entries_together_and_is_told_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Random nonces bound how much one key may write, whichever resource it is for."""
    monkeypatch.setattr("etcdmaint.compression.encryption.ciphers.GCM_WRITES_PER_KEY", 4)
    chain = EncryptionChain(
        EncryptionConfiguration.load(
            document(
                entry([keyed("aesgcm", "one", "two")], "secrets"),
                entry([keyed("aesgcm", "one")], "configmaps"),
            )
        )
    )
    for _ in range(2):
        chain.for_resource("", "secrets").to_storage(b"x", KEY)
        assert not caplog.records
        chain.for_resource("", "configmaps").to_storage(b"x", KEY)

    (warning,) = caplog.records
    assert warning.__dict__["key_name"] == "one"

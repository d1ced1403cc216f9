"""Every cipher over any bytes: round trips, one flipped bit, what an envelope costs."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression import frame
from etcdmaint.compression.encryption import ciphers
from etcdmaint.compression.encryption.chain import EncryptionChain, ResourceChain
from etcdmaint.compression.encryption.ciphers import Box, Cbc, Cipher, ExtendedGcm, Gcm
from etcdmaint.errors import ChecksumMismatch, DecryptionFailed, EncryptionKeyMissing

from .files import IDENTITY, configured, keyed

KEY = b"/registry/secrets/default/s1"
PLAINTEXT = bytes.fromhex("6b38730068656c6c6f")
SECRET = b"0123456789abcdef" * 2
COUNTING = bytes(range(32))

CIPHERS: dict[str, Callable[[bytes], Cipher]] = {
    "aescbc": Cbc,
    "aesgcm": Gcm,
    "secretbox": Box,
    "seed": ExtendedGcm,
}
AUTHENTICATED = ["aesgcm", "secretbox", "seed"]
each = pytest.mark.parametrize("name", CIPHERS)
octets = st.binary(max_size=300)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("aescbc", "000102030405060708090a0b0c0d0e0ff83446fa5a8326d80516e516be98f193"),
        ("aesgcm", "000102030405060708090a0b46ddc87cb17dbec0c7f5348a6ca6a32411bfaa7f3b99f0e403"),
        (
            "secretbox",
            (
                "000102030405060708090a0b0c0d0e0f1011121314151617f5edadd46dd4d88517aac5ec371f366ba7351d"
                "0418143dcc48"
            ),
        ),
        (
            "seed",
            (
                "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f000102030405060708090a"
                "0b7e842a30dc12e434742760180c8cb9ce6eaf7d49b5e590ae35"
            ),
        ),
    ],
)
def test_bytes_are_those_of_the_published_formats(
    name: str, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R29: with a counting source of randomness, as in the page on encryption at rest."""
    cipher = CIPHERS[name](SECRET)
    monkeypatch.setattr(ciphers.os, "urandom", lambda size: COUNTING[:size])

    assert cipher.encrypt(PLAINTEXT, KEY) == bytes.fromhex(stored)
    assert cipher.decrypt(bytes.fromhex(stored), KEY) == PLAINTEXT


@each
@given(plaintext=octets, key=octets)
def test_any_bytes_come_back_under_any_etcd_key(name: str, plaintext: bytes, key: bytes) -> None:
    """R29, R30."""
    cipher = CIPHERS[name](SECRET)

    assert cipher.decrypt(cipher.encrypt(plaintext, key), key) == plaintext


@each
def test_one_plaintext_is_never_stored_alike_twice(name: str) -> None:
    """R22: every write draws its own randomness."""
    cipher = CIPHERS[name](SECRET)

    assert len({cipher.encrypt(PLAINTEXT, KEY) for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("name", "most"), [("aescbc", 32), ("aesgcm", 28), ("secretbox", 40), ("seed", 60)]
)
@given(plaintext=octets)
def test_an_envelope_has_a_known_cost(name: str, most: int, plaintext: bytes) -> None:
    """R17: bytes beyond the plaintext."""
    cost = len(CIPHERS[name](SECRET).encrypt(plaintext, KEY)) - len(plaintext)

    assert most - (15 if name == "aescbc" else 0) <= cost <= most


@pytest.mark.parametrize("name", AUTHENTICATED)
@given(plaintext=octets, data=st.data())
def test_a_flipped_bit_a_cut_or_an_append_is_noticed_by_what_authenticates(
    name: str, plaintext: bytes, data: st.DataObject
) -> None:
    """R95."""
    cipher = CIPHERS[name](SECRET)
    stored = cipher.encrypt(plaintext, KEY)
    bit = data.draw(st.integers(0, len(stored) * 8 - 1))
    flipped = bytearray(stored)
    flipped[bit // 8] ^= 1 << bit % 8
    cut = stored[: data.draw(st.integers(0, len(stored) - 1))]

    for damaged in (bytes(flipped), cut, stored + b"\0"):
        with pytest.raises(DecryptionFailed):
            cipher.decrypt(damaged, KEY)


@pytest.mark.parametrize("name", AUTHENTICATED)
def test_every_single_bit_of_a_value_is_covered(name: str) -> None:
    """R95: exhaustively, for one short value."""
    cipher = CIPHERS[name](SECRET)
    stored = cipher.encrypt(PLAINTEXT, KEY)

    for bit in range(len(stored) * 8):
        flipped = bytearray(stored)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecryptionFailed):
            cipher.decrypt(bytes(flipped), KEY)


@given(st.binary(max_size=64))
def test_cbc_never_fails_but_with_its_own_error(body: bytes) -> None:
    """R96: any bytes are a plaintext or refused; an IV alone, which makes Go panic, is refused."""
    try:
        plaintext = Cbc(SECRET).decrypt(body, KEY)
    except DecryptionFailed:
        return
    assert len(plaintext) < len(body) - 16 < 64


@given(plaintext=st.binary(min_size=200, max_size=2000), data=st.data())
def test_damage_under_cbc_and_identity_is_found_by_the_frame(
    plaintext: bytes, data: st.DataObject
) -> None:
    """R96, R18: no bit of the body can flip unnoticed, but where the frame is a frame no more."""
    framed = frame.encode(plaintext)
    one = chain(data.draw(st.sampled_from(["aescbc", "identity"])))
    stored = bytearray(one.to_storage(framed, KEY))
    bit = data.draw(st.integers(len(one.prefix) * 8, len(stored) * 8 - 1))
    stored[bit // 8] ^= 1 << bit % 8

    try:
        inside = one.from_storage(bytes(stored), KEY)[0]
    except DecryptionFailed:
        return  # the last block's padding
    if frame.is_framed(inside):
        with pytest.raises(ChecksumMismatch):
            frame.decode(inside)
    else:
        assert inside != framed


@pytest.mark.parametrize("provider", ["aescbc", "aesgcm", "secretbox"])
def test_every_bit_of_a_whole_value_is_refused_with_the_right_class(provider: str) -> None:
    """R31, R95, R96: in the prefix no key is meant for it, behind it the key does not open it."""
    one = chain(provider)
    stored = one.to_storage(PLAINTEXT, KEY)

    for bit in range(len(stored) * 8):
        flipped = bytearray(stored)
        flipped[bit // 8] ^= 1 << bit % 8
        inside_prefix = bit // 8 < len(one.prefix)
        try:
            plaintext = one.from_storage(bytes(flipped), KEY)[0]
        except EncryptionKeyMissing:
            assert inside_prefix
        except DecryptionFailed:
            assert not inside_prefix
        else:
            assert provider == "aescbc"
            assert plaintext != PLAINTEXT


def chain(provider: str) -> ResourceChain:
    configuration = configured(IDENTITY if provider == "identity" else keyed(provider, "one"))
    return EncryptionChain(configuration).for_resource("", "secrets")


@pytest.mark.parametrize("size", [16, 24, 32])
@pytest.mark.parametrize("make", [Gcm, Cbc])
def test_aes_takes_its_three_key_lengths(make: Callable[[bytes], Cipher], size: int) -> None:
    """R29."""
    cipher = make(SECRET[:size])

    assert cipher.decrypt(cipher.encrypt(PLAINTEXT, KEY), KEY) == PLAINTEXT


@pytest.mark.parametrize("make", [Gcm, Cbc, ExtendedGcm])
@pytest.mark.parametrize("size", [0, 15, 31])
def test_a_data_key_of_a_wrong_length_is_damage(make: Callable[[bytes], Cipher], size: int) -> None:
    """R31."""
    with pytest.raises(DecryptionFailed, match=str(size)):
        make(bytes(size))


def test_an_aesgcm_key_that_has_written_its_share_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """200,000 writes of one process; a test has no time for so many."""
    monkeypatch.setattr(ciphers, "GCM_WRITES_PER_KEY", 3)
    cipher = Gcm(SECRET, name="key1")

    with caplog.at_level(logging.WARNING):
        for _ in range(7):
            cipher.encrypt(PLAINTEXT, KEY)

    (record,) = caplog.records
    assert "rotate" in record.getMessage()
    assert record.__dict__["key_name"] == "key1"

"""The frame's properties, for any bytes."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import google_crc32c
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etcdmaint import errors
from etcdmaint.compression import frame
from tests.bench.bench_compression_objects import Objects
from tests.fuzz.mutation import sealed, varint

from .vectors import cases, octets

CEILING = frame.MAX_PLAINTEXT_BYTES
RANDOM = random.Random(6264)

# Plain bytes hardly ever compress; repeated ones do.
plaintexts = st.one_of(
    st.binary(max_size=600),
    st.builds(
        lambda part, times: part * times, st.binary(min_size=1, max_size=40), st.integers(1, 90)
    ),
)
# Frames long enough that a cut or a splice leaves something of them.
framed = plaintexts.map(frame.encode)


def deflated(plaintext: bytes, level: int = 1, declared: int | None = None) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    stream = packer.compress(plaintext) + packer.flush()
    return sealed(varint(len(plaintext) if declared is None else declared) + stream)


def test_the_checksum_is_castagnoli_in_c() -> None:
    """R4, A14: the check value of CRC-32C, from the C implementation."""
    assert google_crc32c.implementation == "c"
    assert google_crc32c.value(b"123456789") == 0xE3069283


def test_the_ceiling_leaves_64_kib_of_etcds_default_request() -> None:
    """R42, A7."""
    assert CEILING == 1_507_328 == 1536 * 1024 - 64 * 1024


@pytest.mark.parametrize(
    ("plaintext", "golden"),
    [
        (b"", "006b387300c3139e8f"),
        (b"\0", "006b38730072182f8200"),
        (b"abc", "006b387300f912d5a5616263"),
    ],
)
def test_a_stored_frame_has_these_bytes_for_ever(plaintext: bytes, golden: str) -> None:
    """R2, R4, R6, R9, R10, R16, R25, R33, A6: the header byte by byte, pinned as literals."""
    assert frame.encode(plaintext).hex() == golden
    assert frame.decode(bytes.fromhex(golden)) == plaintext


def test_a_deflate_frame_pinned_as_a_literal_decodes_for_ever() -> None:
    """R7, R16, A19: for decoding only, another writer may compress better."""
    pinned = "006b3873013d46812480084b4c1c05a321301a0223350400"
    assert frame.decode(bytes.fromhex(pinned)) == b"a" * 1024


def test_a_frame_of_the_future_with_a_longer_header_is_skew() -> None:
    """R5, R15, R24, R92: nothing behind the ninth byte is looked at."""
    pinned = (
        "006b3873020b8662fa6675747572652d6865616465722d6c6f6e6765722d7468616e2d746f646179"
        "7878787878787878787878787878787878787878"
    )
    with pytest.raises(frame.UnsupportedAlgorithm, match="algorithm 2"):
        frame.decode(bytes.fromhex(pinned))
    for algorithm in range(2, 256):
        head = b"\0k8s" + bytes([algorithm])
        for body in (b"", b"\xff" * 40):
            with pytest.raises(frame.UnsupportedAlgorithm):
                frame.decode(sealed(body, head))


@given(plaintexts)
@example(b"")
@example(b"\0" * 5000)
def test_any_plaintext_comes_back(plaintext: bytes) -> None:
    """R6 to R9, R38, R39, R160, R161, A8: round trip, and growth of nine bytes at the most."""
    value = frame.encode(plaintext)

    assert frame.is_framed(value)
    assert frame.decode(value) == plaintext
    assert len(value) <= len(plaintext) + frame.HEADER_BYTES
    if value[4] == frame.Algorithm.STORED:
        assert value[9:] == plaintext
    else:
        width = 1 if len(plaintext) < 128 else 2
        assert value[9 : 9 + width] == varint(len(plaintext))
        assert zlib.decompress(value[9 + width :], -15) == plaintext
        # Smaller counts the length too.
        assert len(value) < len(plaintext) + frame.HEADER_BYTES


@given(plaintexts.filter(lambda plaintext: plaintext[:1] != b"\0"))
def test_a_value_that_begins_otherwise_is_never_touched(value: bytes) -> None:
    """R1, R61, R63: one byte decides, and the very same object comes back."""
    assert not frame.is_framed(value)
    assert frame.decode(value) is value


@given(plaintexts, st.integers(1, 20))
def test_a_chain_of_frames_unfolds_one_at_a_time(plaintext: bytes, links: int) -> None:
    """R33, R34: a plaintext that begins with a zero byte is stored, never deflated."""
    value = plaintext
    for _ in range(links):
        inner, value = value, frame.encode(value)
        assert inner[:1] != b"\0" or value[4] == frame.Algorithm.STORED
    for _ in range(links):
        value = frame.decode(value)
    assert value == plaintext


@given(framed)
def test_any_single_bit_flipped_is_damage_or_no_frame_any_more(value: bytes) -> None:
    """R86, R91, A1: byte 0 alone turns a frame into something that is none."""
    for position in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[position >> 3] ^= 1 << (position & 7)
        if position < 8:
            assert frame.decode(bytes(damaged)) == damaged
        else:
            with pytest.raises(frame.ChecksumMismatch):
                frame.decode(bytes(damaged))


@given(framed)
def test_any_truncation_is_damage(value: bytes) -> None:
    """R69, A2."""
    for length in range(1, len(value)):
        with pytest.raises(frame.ChecksumMismatch):
            frame.decode(value[:length])


@given(framed, st.binary(min_size=1, max_size=40))
def test_anything_appended_is_damage_unless_the_checksum_covers_it(
    value: bytes, tail: bytes
) -> None:
    """R21, R68, A9."""
    with pytest.raises(frame.ChecksumMismatch):
        frame.decode(value + tail)
    if value[4] == frame.Algorithm.DEFLATE:
        assert frame.decode(sealed(value[9:] + tail)) == frame.decode(value)


@given(framed, framed, st.data())
def test_a_splice_of_two_frames_is_damage_or_one_of_them(
    one: bytes, other: bytes, data: st.DataObject
) -> None:
    """R86, R97."""
    cut = data.draw(st.integers(1, len(one)))
    spliced = one[:cut] + other[data.draw(st.integers(1, len(other))) :]
    if spliced in (one, other):
        return
    with pytest.raises(frame.ChecksumMismatch):
        frame.decode(spliced)


@given(framed, st.integers(8, 10**9), st.integers(1, 2**32 - 1))
def test_any_burst_of_up_to_32_bits_is_damage(value: bytes, start: int, burst: int) -> None:
    """R97."""
    room = len(value) * 8
    if room <= 40:
        return
    start = 8 + start % (room - 40)
    number = int.from_bytes(value, "little") ^ (burst << start)
    with pytest.raises(frame.ChecksumMismatch):
        frame.decode(number.to_bytes(len(value), "little"))


@given(st.binary(max_size=80), st.binary(max_size=4))
def test_what_carries_its_own_checksum_is_never_called_damaged(body: bytes, head: bytes) -> None:
    """R64, R65, R85, R88, R90: a plaintext, skew or a bug."""
    value = sealed(body, b"\0" + head.ljust(4, b"\1"))
    try:
        plaintext = frame.decode(value)
    except (frame.UnsupportedAlgorithm, frame.MalformedFrame):
        return
    assert len(plaintext) <= CEILING


@given(st.binary(max_size=60))
def test_describing_never_raises(value: bytes) -> None:
    """Tools ask about anything."""
    for candidate in (value, b"\0" + value, b"\0k8s\1" + value, sealed(value)):
        description = frame.describe(candidate)
        assert description.framed is (candidate[:1] == b"\0")


def test_a_description_tells_both_checksums_and_both_lengths() -> None:
    value = frame.encode(b"k" * 1024)
    damaged = value[:-1] + b"!"
    good, bad = frame.describe(value), frame.describe(damaged)

    assert (good.algorithm, good.magic, good.declared_length) == (1, b"k8s", 1024)
    assert good.body_length == len(value) - 9 - 2
    assert good.intact
    assert good.stored_checksum == bad.stored_checksum != bad.computed_checksum
    assert not bad.intact
    stored = frame.describe(frame.encode(b"abc"))
    assert (stored.algorithm, stored.declared_length, stored.body_length) == (0, 3, 3)


@pytest.mark.parametrize("level", range(10))
def test_the_level_of_the_writer_does_not_matter(level: int) -> None:
    """R12, R184."""
    plaintext = b"apiVersion: v1\n" * 300
    assert frame.decode(deflated(plaintext, level)) == plaintext


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, CEILING - 1, CEILING])
def test_lengths_at_every_boundary_of_the_varint_come_back(size: int) -> None:
    """R8, R35, R161."""
    width = 1 if size < 128 else 2 if size < 16_384 else 3
    for plaintext in (b"k" * size, RANDOM.randbytes(size - 1).join((b"k", b""))):
        value = frame.encode(plaintext)
        assert frame.decode(value) == plaintext
        if value[4] == frame.Algorithm.DEFLATE:
            stream = len(value) - frame.describe(value).body_length  # type: ignore[operator]
            assert stream == 9 + width


def test_a_plaintext_above_the_ceiling_is_refused_and_is_no_format_error() -> None:
    """R41, R45, A6, A7."""
    for plaintext in (b"k" * (CEILING + 1), b"\0" * (CEILING + 1)):
        with pytest.raises(frame.PlaintextTooLarge) as refusal:
            frame.encode(plaintext)
        assert isinstance(refusal.value, ValueError)
        assert not isinstance(refusal.value, frame.FrameError)


@pytest.mark.parametrize(
    "declared", [CEILING + 1, 1 << 31, 1 << 40, (1 << 64) - 1, (1 << 70) - 1], ids=hex
)
def test_a_declared_length_above_the_ceiling_allocates_nothing(declared: int) -> None:
    """R69, R70, R164, A10: measured in bytes, not only by the error."""
    value = sealed(varint(declared) + zlib.compress(b"k" * 100, wbits=-15))
    assert peak_of(value, frame.MalformedFrame) < 20_000


@pytest.mark.parametrize(
    ("declared", "yields"), [(2048, 1 << 28), (CEILING, 1 << 28), (1, 1 << 26), (4095, 4096)]
)
def test_a_bomb_costs_what_it_declares(declared: int, yields: int) -> None:
    """R66, R72, R73, R74, R164: a stream is not followed beyond its declaration."""
    zeros = bytes(min(yields, 1 << 20))
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    # After a full flush a block needs nothing of those before it, so one is packed for all.
    block = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    value = sealed(varint(declared) + block * (yields // len(zeros)) + packer.flush())

    # Its body is copied, and what was not read of it once more; the output grows by doubling.
    assert peak_of(value, frame.MalformedFrame) < 2 * (len(value) + declared) + 128 * 1024


def test_reading_a_frame_of_the_ceiling_stays_within_twice_the_ceiling() -> None:
    """R72, R82: the memory that the cap on inflations is multiplied with."""
    value = deflated(b"k" * CEILING)
    assert peak_of(value, None) < 2 * CEILING + 128 * 1024


def peak_of(value: bytes, refusal: type[Exception] | None) -> int:
    """The least of several: what other threads allocate meanwhile is counted, too."""
    return min(_peak(value, refusal) for _ in range(3))


def _peak(value: bytes, refusal: type[Exception] | None) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(refusal) if refusal else contextlib.nullcontext():
            frame.decode(value)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_slot_is_entered_for_an_inflation_and_for_nothing_else() -> None:
    """R13, R70, R77, R81: after the checks of the header, and left again when the stream is bad."""
    entered: list[str] = []

    @contextlib.contextmanager
    def slot() -> Iterator[None]:
        entered.append("in")
        try:
            yield
        finally:
            entered.append("out")

    good = deflated(b"k" * 500)
    for value in (
        good[:-1],
        sealed(varint(CEILING + 1)),
        sealed(b"abc", b"\0k8s\2"),
        frame.encode(b"abc"),
        b"plain",
    ):
        with contextlib.suppress(frame.FrameError):
            frame.decode(value, slot())
    assert entered == []
    frame.decode(good, slot())
    assert entered == ["in", "out"]
    with pytest.raises(frame.MalformedFrame):
        frame.decode(sealed(varint(500) + b"\xff"), slot())
    assert entered == ["in", "out"] * 2


@given(framed, st.lists(st.integers(8, 10**9), min_size=2, max_size=3))
def test_any_two_or_three_bits_flipped_are_damage(value: bytes, positions: list[int]) -> None:
    """R97: wherever they are, in the checksum too; byte 0 is another matter (A1)."""
    damaged = bytearray(value)
    flipped = {8 + position % (len(value) * 8 - 8) for position in positions}
    for position in flipped:
        damaged[position >> 3] ^= 1 << (position & 7)
    with pytest.raises(frame.ChecksumMismatch):
        frame.decode(bytes(damaged))


def test_whoever_writes_into_etcd_can_forge_a_checksum() -> None:
    """R98: it protects against accidents; only authenticated encryption protects against people."""
    value = frame.encode(b"replicas: 1 " * 100)
    forged = sealed(frame.encode(b"replicas: 9 " * 100)[9:])
    assert forged != value
    assert frame.decode(forged) == b"replicas: 9 " * 100


REALISTIC = [
    case
    for case in cases("frames")
    if case["kind"] in ("realistic", "deflate_level1") and case["declared_length"] >= 1024
]


@pytest.mark.parametrize("case", REALISTIC, ids=[case["name"] for case in REALISTIC])
def test_a_frame_is_not_larger_than_gos_by_more_than_a_hundredth(case: dict[str, Any]) -> None:
    """R11, A19: the same objects, framed by compress/flate at level 1."""
    theirs = octets(case["value"])
    ours = frame.encode(frame.decode(theirs))
    assert len(ours) <= 1.01 * len(theirs)


@pytest.mark.parametrize(
    ("kind", "sizes", "told"),
    [
        ("pod", (6_700,), 2.43),
        ("pod", (14_600,), 2.75),
        ("pod", (34_200,), 2.56),
        ("node", (), 2.05),
        ("event", (), 1.85),
        ("lease", (), 1.35),
    ],
)
def test_a_realistic_object_compresses_about_as_the_proposal_says(
    kind: str, sizes: tuple[int, ...], told: float
) -> None:
    """A18: its medians of production Pods by size and its fixtures, within three tenths."""
    source = Objects(6264)
    values = [getattr(source, kind)(*sizes) for _ in range(8)]
    ratio = sum(map(len, values)) / sum(len(frame.encode(value)) for value in values)
    assert ratio == pytest.approx(told, rel=0.3)


def test_what_was_compressed_before_leaves_no_trace() -> None:
    """R22: no dictionary, no state from one value to the next."""
    plaintext = b"the same words again and again " * 40
    alone = frame.encode(plaintext)
    for _ in range(50):
        frame.encode(RANDOM.randbytes(3000) + plaintext)
    assert frame.encode(plaintext) == alone


def test_many_threads_read_and_write_each_their_own() -> None:
    """R84, R166."""
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(150):
            plaintext = rng.randbytes(20) * rng.randrange(1, 800)
            if frame.decode(frame.encode(plaintext)) != plaintext:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_only_the_checksum_class_is_corruption() -> None:
    """R86 to R88, R100: what a wrapper may take for damage is an attribute of the class."""
    assert frame.ChecksumMismatch.corrupt
    assert not frame.UnsupportedAlgorithm.corrupt
    assert not frame.MalformedFrame.corrupt
    assert not issubclass(TimeoutError, frame.FrameError)
    assert frame.FrameError is errors.FrameError


BARE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
{body}
print(*sorted(m for m in ("grpc", "kopf", "pydantic", "cryptography", "google.protobuf", "zlib")
              if m in sys.modules))
"""


def run_bare(body: str, blocked: set[str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", BARE.format(body=body, blocked=blocked)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_the_codec_and_the_policy_need_none_of_the_extras() -> None:
    """R23: `pip install etcdmaint` alone reads and writes; grpc, kopf and pydantic stay out."""
    extras = {"grpc", "kopf", "pydantic", "cryptography", "nacl", "kubernetes", "click", "rich"}
    modules = ("frame", "policy", "transformer", "resources", "stored_value", "metrics")
    body = "\n".join(f"import etcdmaint.compression.{module}" for module in modules)
    assert run_bare(body, extras) in ("", "zlib")


def test_without_isal_and_zlib_ng_the_standard_library_does_the_same() -> None:
    """A14: the fallback reads and writes frames that the fast libraries read and wrote."""
    plaintext = "b'kubernetes ' * 500"
    told = run_bare(
        "from etcdmaint.compression import frame\n"
        f"value = frame.encode({plaintext})\n"
        f"assert frame.decode(bytes.fromhex('{frame.encode(b'kubernetes ' * 500).hex()}'))"
        f" == {plaintext} == frame.decode(value)\n"
        "print(value.hex())",
        {"isal", "zlib_ng"},
    )
    value = bytes.fromhex(told.splitlines()[0])
    assert value[4] == frame.Algorithm.DEFLATE
    assert frame.decode(value) == b"kubernetes " * 500

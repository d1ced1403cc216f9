"""`etcdmaint storage`: layers on and off, exit codes, and what never reaches a terminal."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from etcdmaint.cli import main
from etcdmaint.compression import frame
from etcdmaint.files import MOST_OF_A_VALUE
from tests.fuzz.mutation import sealed
from tests.unit.compression.vectors import SHARED, cases, octets

POD = octets(
    next(case for case in cases("storage_values") if case["object_kind"] == "Pod")["value"]
)
LEASE = next(case for case in cases("storage_values") if case["object_kind"] == "Lease")
SECRET = next(case for case in cases("storage_values") if case["object_kind"] == "Secret")
SECRET_VALUE = octets(SECRET["value"])
CONFIG = """\
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
  - resources: [secrets, configmaps]
    providers:
      - aesgcm:
          keys:
            - {name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}
      - identity: {}
"""
# 32 random bytes that must turn up nowhere.
KEY_BYTES = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: bytes
    err: str

    def document(self) -> Any:
        return json.loads(self.out)


Storage = Callable[..., Said]


@pytest.fixture
def storage(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Runs `etcdmaint storage …` with these bytes on standard input."""

    def run(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Said:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            if terminal:
                patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            code = main.run(["storage", *arguments])
        captured = capsysbinary.readouterr()
        assert b"Traceback" not in captured.err
        return Said(code, captured.out, captured.err.decode())

    return run


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "encryption.yaml"
    path.write_text(CONFIG)
    return str(path)


def test_a_value_is_told_layer_by_layer(storage: Storage) -> None:
    """R25, R189: frame and content, each with what its bytes tell."""
    said = storage("identify", "-o", "json", stdin=frame.encode(POD))
    outer, inner = said.document()
    assert said.code == 0
    assert (outer["form"], outer["algorithm"]) == ("frame", "deflate")
    assert outer["checksum"] == outer["computed_checksum"]
    assert outer["declared_length"] == len(POD) == inner["size"]
    assert (inner["form"], inner["kind"]) == ("protobuf", "Pod")


@pytest.mark.parametrize(
    ("value", "code", "reason"),
    [
        (frame.encode(b"k" * 500)[:-1], 10, "ChecksumMismatch"),
        (b"\0", 10, "ChecksumMismatch"),
        (sealed(b"", b"\0k8s\7"), 11, "UnsupportedAlgorithm"),
        (sealed(b"\5\xff"), 12, "MalformedFrame"),
    ],
    ids=["cut", "one byte", "newer", "malformed"],
)
@pytest.mark.parametrize("command", ["identify", "show", "unframe"])
def test_each_class_of_error_has_its_exit_code(
    storage: Storage, command: str, value: bytes, code: int, reason: str
) -> None:
    """R24, R85 to R88: an unknown algorithm is reported, never guessed at."""
    said = storage(command, stdin=value)
    assert said.code == code
    if command == "identify":
        assert reason in said.out.decode()
    else:
        assert said.out == b""
        assert len(said.err.strip().splitlines()) == 1


@pytest.mark.parametrize("cut", [5, 60])
def test_a_secret_that_is_too_damaged_to_say_what_it_is_is_not_shown_either(
    storage: Storage, cut: int
) -> None:
    """Cut off, in protobuf and in JSON, bare and in a stored frame under a wrong checksum."""
    text = b'{"apiVersion":"v1","kind":"Secret","data":{"password":"' + b"c2VjcmV0" * 20
    damaged = sealed(SECRET_VALUE, b"\0k8s\0")[:-cut]
    for value in (SECRET_VALUE[:-cut], text[:-cut], damaged):
        for command in (("show", "-o", "json"), ("frame", "-o", "hex"), ("frame",)):
            said = storage(*command, stdin=value)
            for piece in secrets_of(value):
                assert piece not in said.out.decode("latin-1") + said.err


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r\n", b"\0"])
def test_no_byte_of_the_input_is_eaten(storage: Storage, tail: bytes, tmp_path: Path) -> None:
    """A frame may end with a line feed."""
    plaintext = b"apiVersion: v1\n" * 100 + tail
    framed = storage("frame", stdin=plaintext).out
    assert frame.decode(framed) == plaintext
    assert storage("unframe", stdin=framed).out == plaintext
    file = tmp_path / "value"
    file.write_bytes(framed)
    assert storage("unframe", str(file)).out == plaintext
    assert storage("unframe", "--hex", framed.hex()).out == plaintext
    hexed = storage("frame", "-o", "hex", stdin=plaintext).out
    assert bytes.fromhex(hexed.decode()) == framed
    assert storage("unframe", stdin=framed + b"\n").code == 10


def test_a_value_without_a_frame_comes_out_as_it_went_in(storage: Storage) -> None:
    assert storage("unframe", stdin=POD).out == POD


def test_an_object_is_shown_whatever_its_form(storage: Storage) -> None:
    for case in cases("storage_values"):
        if case["object_kind"] == "Secret":
            continue
        for value in (octets(case["value"]), frame.encode(octets(case["value"]))):
            said = storage("show", "-o", "json", stdin=value)
            assert said.code == 0
            document = said.document()
            if "object" in case:
                assert document == case["object"]
            elif case["form"] == "protobuf":
                assert document["kind"] == case["object_kind"]
                metadata = document.get("metadata") or document["fields"]["1"]
                assert case["object_name"] in (metadata.get("name"), metadata.get("1"))
            assert case["object_name"] in said.out.decode()
    shown = storage("show", stdin=octets(LEASE["value"]))
    assert yaml.safe_load(shown.out)["kind"] == "Lease"


def test_json_that_breaks_off_is_shown_as_what_it_is(storage: Storage) -> None:
    value = b'{"apiVersion":"v1","kind":"Pod","metadata":{},"spec":'
    document = storage("show", "-o", "json", stdin=value).document()
    assert (document["form"], document["kind"]) == ("json", "Pod")
    assert bytes.fromhex(document["hex"]) == value


@pytest.mark.parametrize("style", ["json", "yaml"])
@pytest.mark.parametrize("depth", [100, 300, 900])
def test_an_object_that_is_nested_without_end_is_shown_all_the_same(
    storage: Storage, style: str, depth: int
) -> None:
    """Hostile bytes: as a document, or where no writer could follow it, in hex."""
    head = b'{"apiVersion":"v1","kind":"Pod","metadata":{},"spec":'
    value = head + b"[" * depth + b"]" * depth + b"}"
    said = storage("show", "-o", style, stdin=value)
    assert said.code == 0, said.err
    document = yaml.safe_load(said.out) if depth > 100 else {}
    assert document.get("hex", value.hex()) == value.hex()


@pytest.mark.parametrize("command", ["identify", "show"])
def test_a_hit_in_the_first_byte_of_a_frame_is_damage_where_an_object_must_be(
    storage: Storage, command: str
) -> None:
    """A1: the format lets it pass, the key does not; without one, opaque is all that is known."""
    value = b"\x40" + frame.encode(POD)[1:]
    for key, code in (
        ("/registry/pods/a/b", 10),
        ("/registry/unheardof/a/b", 0),
        ("compact_rev_key", 0),
        ("", 0),
    ):
        said = storage(command, "--etcd-key", key, stdin=value)
        assert said.code == code
        assert (b"it is damaged" in said.out + said.err.encode()) is (code == 10)
    assert storage(command, "--etcd-key", "/registry/pods/a/b", stdin=b"").code == 10
    assert storage(command, "--etcd-key", "/registry/pods/a/b", stdin=POD).code == 0


def secrets_of(value: bytes) -> list[str]:
    """Pieces of a Secret's data that must not turn up, in every way that they could be written."""
    middle = value[len(value) // 2 : len(value) // 2 + 12]
    return [middle.hex(), middle.decode("latin-1")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", "-o", "json"),
        ("show", "-o", "hex"),
        ("show", "-o", "raw"),
        ("unframe", "-o", "hex"),
        ("unframe",),
        ("frame", "-o", "hex"),
        ("frame",),
        ("identify", "-o", "json"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("layers", [0, 1, 2, 9])
def test_a_secrets_value_is_never_shown_unless_asked_for(
    storage: Storage, arguments: tuple[str, ...], layers: int
) -> None:
    """By its kind, through frames, in documents, hex, raw bytes and errors."""
    value = SECRET_VALUE
    for _ in range(layers):
        value = frame.encode(value)
    for said in (storage(*arguments, stdin=value), storage(*arguments, "--hex", value.hex())):
        everything = said.out.decode("latin-1") + said.err
        for piece in secrets_of(SECRET_VALUE):
            assert piece not in everything
        if arguments[-1] in ("hex", "raw", "unframe", "frame"):
            assert said.code == 2
            assert "--show-secrets" in said.err
    open_ = storage(*arguments, "--show-secrets", stdin=value)
    assert open_.code == 0


def test_a_secret_is_known_by_its_key_too(storage: Storage) -> None:
    """What lies under /registry/secrets is one, whatever the bytes say; other prefixes count."""
    value = b"not even an object"
    for key, prefix in (("/registry/secrets/a/b", "/registry"), ("/k.io/secrets/a/b", "/k.io")):
        flags = ("--etcd-key", key, "--storage-prefix", prefix)
        assert storage("unframe", "-o", "hex", *flags, stdin=value).code == 2
        shown = storage("show", *flags, stdin=value)
        assert value.hex() not in shown.out.decode()
        assert b"hidden" in shown.out
    assert storage("unframe", "--etcd-key", "/registry/pods/a/b", stdin=value).out == value


def test_encryption_goes_on_and_off_with_the_key_as_authenticated_data(
    storage: Storage, config: str
) -> None:
    """R19: frame inside, encryption outside; another etcd key does not open it."""
    flags = ("--encryption-config", config, "--etcd-key", "/registry/secrets/default/s1")
    framed = frame.encode(SECRET_VALUE)
    stored = storage("encrypt", *flags, stdin=framed).out
    assert stored.startswith(b"k8s:enc:aesgcm:v1:key1:")
    assert storage("decrypt", "--show-secrets", *flags, stdin=stored).out == framed
    assert storage("decrypt", *flags, stdin=stored).code == 2

    told = storage("identify", "-o", "json", *flags, stdin=stored).document()
    assert [layer["form"] for layer in told] == ["encrypted", "frame", "protobuf"]
    assert (told[0]["provider"], told[0]["key_name"]) == ("aesgcm", "key1")
    elsewhere = (*flags[:3], "/registry/secrets/default/s2")
    refused = storage("decrypt", "--show-secrets", *elsewhere, stdin=stored)
    assert refused.code == 10
    assert refused.out == b""


def test_without_a_key_an_encrypted_value_is_told_and_stays_shut(
    storage: Storage, config: str
) -> None:
    stored = b"k8s:enc:aescbc:v1:other:" + b"\x01" * 32
    told = storage("identify", stdin=stored)
    assert told.code == 0
    assert "key_name: other" in told.out.decode()
    key = ("--etcd-key", "/registry/configmaps/default/c")
    assert storage("show", stdin=stored).code == 13
    assert storage("decrypt", *key, stdin=stored).code == 13
    assert storage("decrypt", "--encryption-config", config, *key, stdin=stored).code == 13
    assert storage("decrypt", "--encryption-config", config, stdin=stored).code == 2
    unknown = ("--etcd-key", "/registry/unheardof/x")
    assert storage("decrypt", "--encryption-config", config, *unknown, stdin=stored).code == 2
    assert storage("encrypt", stdin=b"x").code == 13


def test_no_byte_of_a_key_is_in_any_answer(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(CONFIG.replace("secret:", "secrets:"))
    said = storage(
        "decrypt",
        "--encryption-config",
        str(path),
        "--etcd-key",
        "/registry/secrets/a/b",
        stdin=b"k8s:enc:",
    )
    assert said.code == 2
    assert KEY_BYTES not in said.err


@pytest.mark.parametrize("command", ["identify", "show", "unframe", "decrypt"])
def test_a_key_of_etcd_is_read_where_a_flag_says_how_to_reach_it(
    storage: Storage, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The flags of etcdctl, after the command or before it; --key stays the one of TLS."""
    nobody = ("--endpoints=127.0.0.1:1", "--dial-timeout=60s")
    key = ("--etcd-key", "/registry/pods/a/b")
    said = storage(command, *nobody, *key)
    assert said.code == 1
    assert "127.0.0.1:1" in said.err
    assert storage(*nobody, command, *key).err == said.err
    for arguments, told in (
        ((command, *nobody), "--etcd-key"),
        ((command, *nobody, *key, "--hex", "00"), "--endpoints"),
        ((command, *nobody, *key, str(tmp_path / "value")), "--endpoints"),
        ((command, *nobody, *key, "--key", str(tmp_path / "none")), "--cert: is missing"),
    ):
        said = storage(*arguments)
        assert (said.code, told in said.err) == (2, True), said.err
    # What etcdctl's users have in their environment does not make a file a key of etcd.
    monkeypatch.setenv("ETCDCTL_ENDPOINTS", "127.0.0.1:1")
    monkeypatch.setenv("ETCDCTL_CACERT", str(tmp_path / "none"))
    assert storage("unframe", *key, stdin=b"k").out == b"k"


def test_raw_bytes_reach_a_terminal_only_when_asked_to(storage: Storage) -> None:
    refused = storage("frame", stdin=b"k" * 50, terminal=True)
    assert refused.code == 2
    assert refused.out == b""
    assert "-o hex" in refused.err
    assert storage("frame", "--to-terminal", stdin=b"k" * 50, terminal=True).code == 0
    assert storage("frame", "-o", "hex", stdin=b"k" * 50, terminal=True).code == 0


@pytest.mark.parametrize(
    "command", [("identify",), ("identify", "-o", "yaml"), ("show",), ("show", "-o", "json")]
)
def test_escapes_of_a_terminal_are_shown_not_obeyed(
    storage: Storage, command: tuple[str, ...]
) -> None:
    """Control characters, line ends, bidirectional overrides and markup in a name."""
    name = "a\x1b[31m\r\nb\x9b1m\u202e[bold]x[/]"
    values = [
        json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}).encode(),
        b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12"
        + bytes([len(name.encode()) + 4, 10])
        + bytes([len(name.encode()) + 2, 10, len(name.encode())])
        + name.encode(),
    ]
    for value in values:
        said = storage(*command, stdin=value)
        assert said.code == 0
        text = said.out.decode()
        assert not {"\x1b", "\r", "\x9b", "\u202e"} & set(text)
        assert "u202e" in text.lower(), "what it is can be seen"
        assert "[bold]x[/]" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("identify", "--hex", "0"), "--hex"),
        (("identify", "--hex", "zz"), "--hex"),
        (("identify", "x", "--hex", "00"), "--hex"),
        (("identify", "/nowhere/at/all"), "cannot be read"),
        (("identify", "/dev/zero"), "/dev/zero: is larger than 16 MiB"),
        (("show", "/dev/zero"), "/dev/zero: is larger than 16 MiB"),
        (("frame", "/dev/zero"), "/dev/zero: is larger than 16 MiB"),
        (("check-vectors", "/dev/zero", "--", "true"), "/dev/zero: is larger than 4 MiB"),
        (("identify", "-o", "xml"), "xml"),
        (("frame", "-o", "json"), "json"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    storage: Storage, arguments: tuple[str, ...], told: str
) -> None:
    said = storage(*arguments)
    assert said.code == 2
    assert told in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_standard_input_without_an_end_is_refused_by_its_name(storage: Storage) -> None:
    said = storage("identify", stdin=bytes(MOST_OF_A_VALUE + 1))
    assert said.code == 2
    assert "standard input: is larger than 16 MiB" in said.err


def test_what_is_too_large_for_a_frame_is_refused(storage: Storage) -> None:
    """R41, A7."""
    said = storage("frame", stdin=b"k" * (frame.MAX_PLAINTEXT_BYTES + 1))
    assert said.code == 2
    assert str(frame.MAX_PLAINTEXT_BYTES) in said.err


def vectors_file(tmp_path: Path, name: str, count: int = 8) -> Path:
    """A vector of each of so many kinds, so that a process for each does not take minutes."""
    chosen: dict[str, dict[str, Any]] = {}
    for case in cases(name):
        chosen.setdefault(case["kind"], case)
    some = list(chosen.values())[:count]
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"format": f"etcdmaint/{name}/1", "cases": some}))
    return path


READER = """
import sys
from etcdmaint.compression import frame
from etcdmaint.files import MOST_OF_A_VALUE
value = sys.stdin.buffer.read()
codes = {frame.ChecksumMismatch: 10, frame.UnsupportedAlgorithm: 11, frame.MalformedFrame: 12}
try:
    plaintext = frame.decode(value)
except frame.FrameError as error:
    sys.exit(codes[type(error)])
sys.stdout.buffer.write(plaintext)
"""


@pytest.mark.parametrize("name", ["frames", "frames_rejected"])
def test_a_right_reader_agrees_with_every_vector(
    storage: Storage, tmp_path: Path, name: str
) -> None:
    path = vectors_file(tmp_path, name)
    said = storage("check-vectors", str(path), "--", sys.executable, "-c", READER)
    assert said.code == 0, said.out.decode()
    assert b" vectors, 0 different" in said.out


@pytest.mark.parametrize(
    ("reader", "told"),
    [
        (
            "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())",
            "accepted, and is checksum",
        ),
        ("import sys; sys.exit(12)", "malformed, and is checksum"),
        ("import sys; sys.exit(3)", "exit code 3, and is checksum"),
    ],
    ids=["takes all", "wrong class", "crashes"],
)
def test_a_wrong_reader_is_told_what_differs(
    storage: Storage, tmp_path: Path, reader: str, told: str
) -> None:
    path = vectors_file(tmp_path, "frames_rejected", 2)
    said = storage(
        "check-vectors", "--timeout", "60", str(path), "--", sys.executable, "-c", reader
    )
    assert said.code == 1
    assert told in said.out.decode()


def test_a_reader_that_hangs_is_told_so(storage: Storage, tmp_path: Path) -> None:
    path = vectors_file(tmp_path, "frames_rejected", 1)
    said = storage("check-vectors", "--timeout", "0.1", str(path), "--", "sleep", "100")
    assert said.code == 1
    assert "no answer within 0.1 s" in said.out.decode()


def test_a_reader_that_inflates_a_bomb_does_not_fill_our_memory(
    storage: Storage, tmp_path: Path
) -> None:
    """And what it started ends with it."""
    path = vectors_file(tmp_path, "frames_rejected", 1)
    endless = "import sys\nwhile True: sys.stdout.buffer.write(bytes(1 << 16))"
    for reader in (
        [sys.executable, "-c", endless],
        ["sh", "-c", f"'{sys.executable}' -c '{endless}' & wait"],
    ):
        said = storage("check-vectors", "--timeout", "60", str(path), "--", *reader)
        assert said.code == 1
        assert b"more than 4194304 bytes" in said.out


def test_a_reader_that_refuses_or_changes_good_values_is_told(
    storage: Storage, tmp_path: Path
) -> None:
    path = vectors_file(tmp_path, "frames", 2)
    for reader, told in (
        ("exit(10)", "refused (checksum), and is good"),
        ("print(1)", "another plaintext"),
    ):
        said = storage("check-vectors", str(path), "--", sys.executable, "-c", reader)
        assert said.code == 1
        assert told in said.out.decode()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format":"other/1","cases":[]}'])
def test_a_file_that_holds_no_vectors_is_refused(
    storage: Storage, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "vectors.json"
    path.write_text(content)
    assert storage("check-vectors", str(path), "--", "true").code == 2
    assert storage("check-vectors", str(tmp_path / "none"), "--", "true").code == 2


@pytest.mark.parametrize(
    "cases",
    [
        "3",
        "[3]",
        "[{}]",
        '[{"kind":"a","name":"b","value":"zz"}]',
        '[{"kind":"a","name":"b","value":{"repeat":"00","count":1e30}}]',
        '[{"kind":"a","name":"b","value":"00","class":"checksum"}]',
        "[" * 100_000,
    ],
    ids=["no list", "a number", "empty", "no hex", "endless", "no reason", "nested"],
)
def test_a_file_of_vectors_that_are_none_is_refused(
    storage: Storage, tmp_path: Path, cases: str
) -> None:
    path = tmp_path / "vectors.json"
    path.write_text(f'{{"format":"etcdmaint/frames/1","cases":{cases}}}')
    said = storage("check-vectors", str(path), "--", "true")
    assert said.code == 2
    assert "vector" in str(said.err)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "0", "1e308"])
def test_a_timeout_that_no_clock_can_keep_is_refused(
    storage: Storage, tmp_path: Path, seconds: str
) -> None:
    path = vectors_file(tmp_path, "frames", 1)
    said = storage("check-vectors", "--timeout", seconds, str(path), "--", "cat")
    assert said.code == 2
    assert "--timeout" in said.err


def test_a_command_that_does_not_exist_is_refused(storage: Storage, tmp_path: Path) -> None:
    path = vectors_file(tmp_path, "frames", 1)
    assert storage("check-vectors", str(path), "--", "/nowhere/reader").code == 2


def test_the_published_vectors_are_those_that_others_made() -> None:
    """Whoever implements the proposal elsewhere gets the very cases that this project answers to."""
    published = Path(__file__).parents[3] / "vectors"
    for name in ("frames", "frames_rejected", "policy", "encryption", "storage_values"):
        mine = json.loads((published / f"{name}.json").read_text())
        assert mine["format"] == f"etcdmaint/{name}/1"
        theirs = SHARED / "vectors" / f"{name}.json"
        if theirs.exists():
            assert mine == json.loads(theirs.read_text())


def test_a_look_into_one_value_loads_neither_a_client_of_etcd_nor_a_cipher() -> None:
    """It must answer at once."""
    code = (
        "import sys; from etcdmaint.cli.main import run; run(['storage', 'identify']);"
        "print(*({'grpc', 'google.protobuf', 'cryptography', 'nacl', 'yaml', 'etcdmaint.etcd'}"
        " & set(sys.modules)), file=sys.stderr)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], input=b"k8s", capture_output=True, check=True
    )
    assert said.stdout.startswith(b"form: opaque")
    assert said.stderr.strip() == b""

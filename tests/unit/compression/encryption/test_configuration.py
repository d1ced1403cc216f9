"""The file: every fault at once, with its path and line, and not one byte of it repeated."""

from __future__ import annotations

import base64
import json
import re
import traceback
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression.encryption.chain import EncryptionChain
from etcdmaint.compression.encryption.configuration import (
    EncryptionConfiguration,
    Keyed,
    Kms,
    problems,
)
from etcdmaint.errors import InvalidInput

from .files import IDENTITY, document, entry, keyed, kms

SECRET = base64.b64encode(b"a key that nobody may ever see!!").decode()
GOOD = f"""\
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
  - resources: [secrets]
    providers:
      - aesgcm:
          keys:
            - name: key1
              secret: {SECRET}
      - identity: {{}}
"""
FAULTY = f"""\
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
level: {SECRET}
resources:
  - resources: [Secrets, "*"]
    providers:
      - aesgcm:
          keys:
            - name: ""
              secret: {SECRET[:-8]}
            - {SECRET}: key2
      - identity: {{}}
        secretbox: {{keys: [{{name: a, secret: {SECRET}}}]}}
  - resources: [configmaps]
    providers:
      - kms: {{apiVersion: v2, name: "{SECRET}:", endpoint: "tcp://{SECRET}", timeout: {SECRET}}}
      - {SECRET}
"""


def faults(text: str | bytes) -> list[str]:
    return [str(problem) for problem in problems(text.encode() if isinstance(text, str) else text)]


def test_every_fault_of_a_file_is_told_at_once_with_path_and_line() -> None:
    """R31; issue 6, validate: all faults, with the line number."""
    assert faults(FAULTY) == [
        "line 3: unknown field; there are apiVersion, kind, resources",
        (
            "line 5: resources[0].resources: a wildcard covers another resource of the same list, "
            "and would mask it"
        ),
        "line 5: resources[0].resources[0]: must not contain capital letters",
        (
            "line 5: resources[0].resources[1]: use '*.' for all resources of the core group, or '*.*' "
            "for all resources"
        ),
        "line 9: resources[0].providers[0].aesgcm.keys[0].name: a key must have a name",
        (
            "line 10: resources[0].providers[0].aesgcm.keys[0].secret: must be 16 or 24 or 32 bytes "
            "long, not 27"
        ),
        "line 11: resources[0].providers[0].aesgcm.keys[1]: unknown field; there are name, secret",
        "line 11: resources[0].providers[0].aesgcm.keys[1].name: a key must have a name",
        "line 11: resources[0].providers[0].aesgcm.keys[1].secret: a key must have a secret",
        (
            "line 12: resources[0].providers[1]: has more than one provider: one list element each "
            "(aesgcm, aescbc, secretbox, identity, kms)"
        ),
        "line 16: resources[1].providers[0].kms.endpoint: must be a unix socket (unix:///…)",
        "line 16: resources[1].providers[0].kms.name: must not contain a colon",
        "line 16: resources[1].providers[0].kms.timeout: must be a duration such as 3s",
        (
            "line 17: resources[1].providers[1]: has no provider "
            "(aesgcm, aescbc, secretbox, identity, kms)"
        ),
        "line 17: resources[1].providers[1]: must be a mapping",
    ]


# Each one puts key bytes where they do not belong.
LEAKS = [
    FAULTY,
    GOOD.replace("name: key1", f"name: [{SECRET}"),
    GOOD.replace("secret: ", "secret: *"),
    GOOD.replace("secret: ", "secret: @"),
    GOOD.replace("secret: ", "secret: !"),
    GOOD.replace("secret: ", 'secret: "\\q'),
    GOOD.replace("secret: ", "secret: %"),
    GOOD.replace("secret: ", "secret"),
    GOOD.replace("secret: ", "secret: {"),
    GOOD.replace("  secret: ", "secret: - "),
    GOOD.replace("kind: ", f"kind: {SECRET}"),
    GOOD.replace("apiVersion: ", f"apiVersion: {SECRET}"),
    GOOD.replace("[secrets]", f'["{SECRET}"]'),
    GOOD.replace(SECRET, f"{SECRET} {SECRET}"),
    GOOD.replace(SECRET, f"[{SECRET}]"),
    GOOD.replace(SECRET, f"{SECRET}\n{SECRET}"),
    GOOD.replace(
        "- identity: {}", f"- kms: {{apiVersion: {SECRET}, name: a, cachesize: {SECRET}}}"
    ),
]


@pytest.mark.parametrize("text", LEAKS)
def test_no_message_repr_or_traceback_holds_a_byte_of_a_key(text: str) -> None:
    """Validation never repeats its input; any eight characters of the key in a row are a leak."""
    pieces = [SECRET[start : start + 8] for start in range(len(SECRET) - 8)]
    with pytest.raises(InvalidInput) as refusal:
        EncryptionConfiguration.load(text.encode())

    chain: BaseException | None = refusal.value
    shown = "\n".join(
        [
            *traceback.format_exception(refusal.value),
            repr(refusal.value),
            repr(problems(text.encode())),
        ]
    )
    while chain is not None:
        shown += repr(chain.args)
        chain = chain.__cause__ or chain.__context__
    assert not [piece for piece in pieces if piece in shown]


def test_what_was_loaded_shows_no_key_either() -> None:
    """repr of the configuration, of the chain and of its parts."""
    configuration = EncryptionConfiguration.load(GOOD.encode())
    provider = configuration.entries[0].providers[0]
    assert isinstance(provider, Keyed)
    chain = EncryptionChain(configuration)
    shown = repr([configuration, provider, provider.keys, chain, chain.for_resource("", "secrets")])
    shown += repr(chain.for_resource("", "secrets")._links)

    raw = base64.b64decode(SECRET)
    assert provider.keys[0].secret == raw
    assert "key1" in shown
    assert SECRET not in shown
    assert repr(raw)[2:-1] not in shown
    assert raw.hex() not in shown


def test_one_fault_is_told_as_field_and_fault() -> None:
    with pytest.raises(InvalidInput) as refusal:
        EncryptionConfiguration.load(GOOD.replace("secret: ", "secret: AAAA").encode())

    assert refusal.value.field == "resources[0].providers[0].aesgcm.keys[0].secret"
    assert "(line 9)" in refusal.value.fault


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("2026-01-31", "2026-01-31"),
        ("12:30:45", "12:30:45"),
        ("'123'", "123"),
        ("key-1", "key-1"),
        ("a:b", "a:b"),
        ("größe", "größe"),
        ("=", "="),
    ],
)
def test_a_name_is_text_where_it_is_text_to_kubernetes(written: str, name: str) -> None:
    """Keys are often named after the day of their making."""
    loaded = EncryptionConfiguration.load(GOOD.replace("key1", written).encode())

    provider = loaded.entries[0].providers[0]
    assert isinstance(provider, Keyed)
    assert provider.keys[0].name == name


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        EncryptionConfiguration.read(tmp_path / "missing.yaml")
    (tmp_path / "there.yaml").write_text(GOOD)
    assert EncryptionConfiguration.read(tmp_path / "there.yaml").entries


@pytest.mark.parametrize("loader", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
def test_half_a_character_is_no_name(loader: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """One loader of YAML takes it for text, which could not be encoded; the other does not."""
    monkeypatch.setattr("etcdmaint.compression.document._LOADER", loader)

    assert problems(GOOD.replace("key1", r'"\ud800"').encode())


@pytest.mark.parametrize(
    "written", ["123", "1.5", "1e3", ".5", "yes", "true", "y", "N", "0o7", "[a]", "{}", "0x1f"]
)
def test_a_name_that_is_no_text_to_kubernetes_is_refused(written: str) -> None:
    assert faults(GOOD.replace("key1", written)) == [
        "line 8: resources[0].providers[0].aesgcm.keys[0].name: must be a string (quote it)"
    ]


def test_json_is_read_as_well_with_tabs_too() -> None:
    data = json.dumps(yaml.safe_load(GOOD), indent="\t").encode()

    assert EncryptionConfiguration.load(data).entries == (
        EncryptionConfiguration.load(GOOD.encode()).entries
    )


def test_null_is_what_is_not_there() -> None:
    """To Kubernetes `identity:` with nothing behind it is no provider at all."""
    assert faults(GOOD.replace("identity: {}", "identity:")) == [
        (
            "line 10: resources[0].providers[1]: has no provider "
            "(aesgcm, aescbc, secretbox, identity, kms)"
        )
    ]


def test_providers_may_be_shared_by_an_anchor() -> None:
    shared = GOOD.replace("providers:", "providers: &all") + (
        "  - resources: [configmaps]\n    providers: *all\n"
    )
    first, second = EncryptionConfiguration.load(shared.encode()).entries

    assert first.providers == second.providers


def test_the_defaults_of_a_plugin_are_those_of_kubernetes() -> None:
    plugin = {"kms": {"name": "old", "endpoint": "unix:///run/kms.sock"}}
    loaded = EncryptionConfiguration.load(document(entry([plugin])))

    assert loaded.entries[0].providers == (Kms(1, "old", "/run/kms.sock", 3.0, 1000),)


@pytest.mark.parametrize(
    ("endpoint", "socket"),
    [
        ("unix:///run/kms.sock", "/run/kms.sock"),
        ("unix:///@abstract", "@abstract"),
        ("unix:///run/a%20b.sock", "/run/a b.sock"),
    ],
)
def test_an_endpoint_is_a_path_or_an_abstract_name(endpoint: str, socket: str) -> None:
    loaded = EncryptionConfiguration.load(document(entry([kms(endpoint, timeout="1.5s")])))

    (plugin,) = loaded.entries[0].providers
    assert isinstance(plugin, Kms)
    assert (plugin.socket, plugin.timeout) == (socket, 1.5)


@pytest.mark.parametrize("timeout", ["-1s", "0", "3", "soon", ""])
def test_a_timeout_is_a_positive_duration(timeout: str) -> None:
    (found,) = problems(document(entry([kms("unix:///a", timeout=timeout)])))

    assert found.field == "resources[0].providers[0].kms.timeout"


def test_v1_may_repeat_a_name_and_v2_may_not() -> None:
    """Upstream's rule without automatic reload."""
    old, new = kms("unix:///a", version="v1"), kms("unix:///a")

    assert not problems(document(entry([old, old])))
    assert not problems(document(entry([old, new])))
    (found,) = problems(document(entry([new]), entry([new], "configmaps")))
    assert found.fault == "is also the name of resources[0].providers[0].kms"


def test_a_masked_selector_says_by_which_line() -> None:
    (found,) = problems(
        document(entry([IDENTITY], "*.apps"), entry([IDENTITY], "pods", "deployments.apps"))
    )

    assert found.field == "resources[1].resources[1]"
    assert re.fullmatch(r"is masked by resources\[0\]\.resources\[0\] \(line 7\)", found.fault)


def test_a_list_does_not_mask_itself_twice() -> None:
    assert len(problems(document(entry([IDENTITY], "*.", "secrets")))) == 1


def test_what_ought_to_be_thought_about_is_a_warning_with_its_line() -> None:
    loaded = EncryptionConfiguration.load(
        document(
            entry([keyed("aesgcm", "a")]),
            entry([keyed("aescbc", "a")], "configmaps"),
            entry([kms("unix:///a", version="v1")], "pods"),
            entry([keyed("secretbox", "a"), keyed("aesgcm", "a")], "nodes"),
        )
    )

    assert [warning.field for warning in loaded.warnings] == [
        f"resources[{index}].providers[0]" for index in range(3)
    ]
    assert all(warning.line for warning in loaded.warnings)


def test_the_hash_is_that_of_the_bytes() -> None:
    """R133, A15: the same that kube-apiserver reports for its own file."""
    loaded = EncryptionConfiguration.load(GOOD.encode())
    assert loaded.hash != EncryptionConfiguration.load(GOOD.encode() + b"\n").hash
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", loaded.hash)


HOSTILE = {
    "nested a hundred thousand deep": b"[" * 100_000,
    "as deep in block style": b"".join(b" " * depth + b"a:\n" for depth in range(400)),
    "aliases of aliases": b"a0: &a0 [x, x]\n"
    + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 60)),
    "an alias to what is around it": b"resources: &r [*r, *r]",
    "a million items": b"- a\n" * 250_000,
    "more than a mebibyte": b"#" * (1 << 20) + b"\n",
    "two documents": GOOD.encode() + b"---\n" + GOOD.encode(),
    "no UTF-8": b"\xff\xfe\xfd\xfc",
    "a control character": b"a: \x07",
    "a merge key": GOOD.replace("- identity", "- <<: {identity: {}}\n        identity").encode(),
    "a list that calls itself a name": GOOD.replace("secret:", "!!str [secret]:").encode(),
    "a list that calls itself a number": GOOD.replace("key1", "!!int [1]").encode(),
    "a mapping that calls itself nothing": GOOD.replace("key1", "!!null {a: b}").encode(),
    "only a comment": b"# nothing\n",
    "a scalar": b"hello",
    "a list": b"[]",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_no_time(data: bytes) -> None:
    """Depth, size and aliases are bounded."""
    assert problems(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_configuration_or_refused(data: bytes) -> None:
    for content in (data, GOOD.encode()[:170] + data, GOOD.replace("key1", "k").encode() + data):
        if not problems(content):
            assert EncryptionConfiguration.load(content).entries


@given(st.text(max_size=40))
def test_any_text_in_any_place_is_read_or_refused(text: str) -> None:
    providers = [keyed("aesgcm", text or "x"), kms(text, name=text, timeout=text), {text: {}}]
    for provider in providers:
        assert problems(document(entry([provider], text))) is not None


@pytest.mark.parametrize(
    ("secret", "good"),
    [
        ("A" * 32, True),
        ("A" * 16 + "\\n" + "A" * 16, True),
        ("A" * 32 + "=", False),
        ("A" * 32 + "==", False),
        ("A" * 32 + "===", False),
        ("A" * 32 + "====", False),
        ("A" * 43, False),
        ("A" * 43 + "=", True),
        ("A" * 43 + "==", False),
        ("A" * 43 + "\\r\\n=", True),
        ("A" * 43 + "=A", False),
        ("A" * 42 + "-=", False),
    ],
)
def test_a_secret_is_base64_as_go_reads_it(secret: str, good: bool) -> None:
    """Neither too little padding nor too much: kube-apiserver would not start with this file."""
    text = GOOD.replace(SECRET, f'"{secret}"')

    assert [problem.fault for problem in problems(text.encode())] == (
        [] if good else ["must be base64, with its padding"]
    )


@pytest.mark.parametrize(
    "endpoint",
    ["unix:kms.sock", "unix:@kms", "unix:///a%zz", "unix:///a\nb", "unix:///a\tb", "unix:///a\x7f"],
)
def test_an_endpoint_that_go_takes_for_no_url_with_a_path_is_refused(endpoint: str) -> None:
    """kube-apiserver would not start, or dial nothing."""
    (found,) = problems(document(entry([kms(endpoint)])))

    assert (found.field, found.fault) == (
        "resources[0].providers[0].kms.endpoint",
        "must be a unix socket (unix:///…)",
    )


def test_an_endpoint_with_two_slashes_is_warned_of() -> None:
    """kube-apiserver takes the first part for a host and dials what is left."""
    loaded = EncryptionConfiguration.load(document(entry([kms("unix://var/run/kms.sock")])))

    provider = loaded.entries[0].providers[0]
    assert isinstance(provider, Kms)
    assert provider.socket == "/run/kms.sock"
    assert "names a host" in loaded.warnings[0].fault
    assert not EncryptionConfiguration.load(document(entry([kms("unix:///run/kms.sock")]))).warnings

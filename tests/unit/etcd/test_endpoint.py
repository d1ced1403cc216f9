"""Addresses in every form that people write, and the map to reachable ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.errors import InvalidInput
from etcdmaint.etcd.endpoint import AddressMap, Endpoint


@pytest.mark.parametrize(
    ("text", "host", "port", "secure"),
    [
        ("etcd-0", "etcd-0", 2379, False),
        ("etcd-0.etcd.ns.svc:2380", "etcd-0.etcd.ns.svc", 2380, False),
        ("http://10.0.0.1:2379", "10.0.0.1", 2379, False),
        ("https://10.0.0.1", "10.0.0.1", 2379, True),
        ("HTTPS://ETCD.Example:2379/", "etcd.example", 2379, True),
        ("https://[fd00::1]:2379", "fd00::1", 2379, True),
        ("[FD00:0::1]", "fd00::1", 2379, False),
        ("::1", "::1", 2379, False),
        (" 127.0.0.1:2379 ", "127.0.0.1", 2379, False),
        ("under_score:1", "under_score", 1, False),
        ("with.dot.:65535", "with.dot.", 65535, False),
    ],
)
def test_an_endpoint_is_read_in_every_form_that_people_write(text, host, port, secure) -> None:
    assert Endpoint.parse(text) == Endpoint(host, port, secure)


def test_an_address_without_a_scheme_is_as_secure_as_its_reader_says() -> None:
    assert Endpoint.parse("a:1", secure=True).url == "https://a:1"
    assert Endpoint.parse("http://a:1", secure=True).url == "http://a:1"
    assert str(Endpoint.parse("::1")) == "http://[::1]:2379"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        ("unix:///run/etcd.sock", "unix sockets are not supported"),
        ("unix:/run/etcd.sock", "unix sockets are not supported"),
        ("unixs://x", "unix sockets are not supported"),
        ("unix:2379", "unix sockets are not supported"),
        ("unix/", "unix sockets are not supported"),
        ("UNIX", "unix sockets are not supported"),
        ("http://unixs:2379", "unix sockets are not supported"),
        ("ftp://a:1", "neither http nor https"),
        ("http://root:hunter2@a:1", "user name or password"),
        ("a:1/path", "path"),
        ("http://a:1//", "path"),
        ("a?x=hunter2", "path"),
        ("a:", "port"),
        ("a:0", "port"),
        ("a:65536", "port"),
        ("a:12x", "port"),
        ("a:١٢", "port"),
        ("a:+1", "port"),
        (":2379", "host is missing"),
        ("http://", "host is missing"),
        ("[::1", "brackets"),
        ("[::1]2379", "brackets"),
        ("[a.b]:1", "not an IPv6"),
        ("fe80::1%eth0", "zone"),
        ("a..b:1", "neither a DNS name"),
        ("-a:1", "neither a DNS name"),
        ("a b:1", "neither a DNS name"),
        ("a\n:1", "neither a DNS name"),
        ("a.b\n.c", "neither a DNS name"),
        ("ä:1", "neither a DNS name"),
        ("a,b:1", "neither a DNS name"),
        ("1.2.3:1", "not a valid IPv4"),
        ("256.1.1.1", "not a valid IPv4"),
        ("x" * 64, "neither a DNS name"),
        (".".join(["x" * 60] * 5), "neither a DNS name"),
    ],
)
def test_anything_else_is_refused_naming_the_field_and_never_quoted(text, fault) -> None:
    with pytest.raises(InvalidInput, match=fault) as refused:
        Endpoint.parse(text, field="spec.endpoints[0]")
    assert refused.value.field == "spec.endpoints[0]"
    assert "hunter2" not in str(refused.value)


@given(st.text(max_size=40))
def test_any_text_is_either_refused_or_read_into_something_that_reads_back_as_itself(text) -> None:
    try:
        endpoint = Endpoint.parse(text)
    except InvalidInput:
        return
    assert Endpoint.parse(endpoint.url) == endpoint
    assert Endpoint.parse(endpoint.target, secure=endpoint.secure) == endpoint


def test_the_address_map_replaces_the_address_and_keeps_the_scheme(tmp_path: Path) -> None:
    path = tmp_path / "map"
    path.write_text(
        "# advertised      reachable\n"
        "etcd-0.etcd:2379  127.0.0.1:30001  # port-forward\n"
        "\n"
        "https://[fd00::1]:2379 [::1]:30002\n"
    )
    found = AddressMap.load(path)
    assert found.resolve(Endpoint("etcd-0.etcd", 2379, True)) == Endpoint("127.0.0.1", 30001, True)
    assert found.resolve(Endpoint("fd00::1")) == Endpoint("::1", 30002)
    assert found.resolve(Endpoint("etcd-1.etcd")) == Endpoint("etcd-1.etcd")
    assert AddressMap().resolve(Endpoint("a")) == Endpoint("a")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a:1\n", "line 1: needs two"),
        ("a:1 b:2 c:3", "line 1: needs two"),
        ("a:1 b:2\nb:3 c:x", "line 2: the port"),
        ("a:1 b:2\na:1 b:3", "line 2: a:1 is already mapped"),
    ],
)
def test_a_broken_address_map_is_refused_with_its_line(text, fault) -> None:
    with pytest.raises(InvalidInput, match=fault):
        AddressMap.parse(text)


def test_an_address_map_that_cannot_be_read_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="missing: cannot be read"):
        AddressMap.load(tmp_path / "missing")
    (tmp_path / "latin").write_bytes(b"\xe4")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        AddressMap.load(tmp_path / "latin")

"""Etcd keys: there and back, the irregular ones, the unknown ones."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression.resources import Keyspace, Location, shown
from etcdmaint.errors import InvalidInput

from .vectors import parameters

KEYS = Keyspace()

IRREGULAR = {
    b"/registry/controllers/default/rc": Location("", "replicationcontrollers", "default", "rc"),
    b"/registry/services/endpoints/default/e": Location("", "endpoints", "default", "e"),
    b"/registry/services/specs/default/s": Location("", "services", "default", "s"),
    b"/registry/minions/node-1": Location("", "nodes", "", "node-1"),
    b"/registry/ingress/default/i": Location("networking.k8s.io", "ingresses", "default", "i"),
    b"/registry/ingressclasses/nginx": Location("networking.k8s.io", "ingressclasses", "", "nginx"),
    b"/registry/events/default/e.1": Location("", "events", "default", "e.1"),
    b"/registry/apiextensions.k8s.io/customresourcedefinitions/ws.a.b": Location(
        "apiextensions.k8s.io", "customresourcedefinitions", "", "ws.a.b"
    ),
    b"/registry/apiregistration.k8s.io/apiservices/v1.apps": Location(
        "apiregistration.k8s.io", "apiservices", "", "v1.apps"
    ),
    b"/registry/gateway.networking.k8s.io/httproutes/default/h": Location(
        "gateway.networking.k8s.io", "httproutes", "default", "h"
    ),
    b"/registry/masterleases/10.0.0.1": Location("", "apiServerIPInfo", "", "10.0.0.1"),
    b"/registry/peerserverleases/a": Location("", "apiServerPeerIPInfo", "", "a"),
    b"/registry/ranges/serviceips": Location("", "serviceipallocations", "", "serviceips"),
    b"/registry/ranges/secondaryserviceips": Location(
        "", "serviceipallocations", "", "secondaryserviceips"
    ),
    b"/registry/ranges/servicenodeports": Location(
        "", "servicenodeportallocations", "", "servicenodeports"
    ),
    b"/registry/clusterroles/system:node": Location(
        "rbac.authorization.k8s.io", "clusterroles", "", "system:node"
    ),
}


@pytest.mark.parametrize(("key", "location"), IRREGULAR.items(), ids=lambda value: str(value)[:60])
def test_an_irregular_key_goes_there_and_back(key: bytes, location: Location) -> None:
    assert KEYS.locate(key) == location
    assert KEYS.key(location) == key


@pytest.mark.parametrize(
    ("group", "plural"),
    [
        ("scheduling.k8s.io", "compositepodgroups"),
        ("lifecycle.k8s.io", "evictions"),
        ("lifecycle.k8s.io", "evictionrequests"),
        ("storagemigration.k8s.io", "storageversionmigrations"),
    ],
)
def test_what_is_new_in_kubernetes_1_37_is_known(group: str, plural: str) -> None:
    """Compared with every path of its test/integration/etcd/data.go."""
    assert KEYS.resource(f"/registry/{plural}/a/b".encode()) == (group, plural)


@pytest.mark.parametrize("case", parameters("storage_values"))
def test_the_key_that_kube_apiserver_uses_is_taken_apart(case: dict[str, Any]) -> None:
    key = case["etcd_key"].encode()
    location = Location(case["group"], case["resource"], case["namespace"], case["object_name"])
    assert KEYS.locate(key) == location
    assert KEYS.key(location) == key


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"compact_rev_key",
        b"/registry",
        b"/registry/",
        b"/registry/pods",
        b"/registry/pods/",
        b"/registry/pods/default/",
        b"/registry/pods//web",
        b"/registry/pods/default/web/status",
        b"/registry/health",
        b"/registry/services",
        b"/registry/services/other/default/x",
        b"/registry/ranges",
        b"/registry/ranges/other",
        b"/registry/ranges/serviceips/x",
        b"/registry/newresources/default/x",
        b"/registry/example.com",
        b"/registry/example.com/widgets",
        b"/registry2/pods/default/web",
        b"registry/pods/default/web",
        b"/kubernetes.io/pods/default/web",
    ],
)
def test_what_is_not_known_is_not_guessed(key: bytes) -> None:
    assert KEYS.locate(key) is None


@pytest.mark.parametrize("prefix", [b"/kubernetes.io", b"kubernetes.io/", b"/a/b", b"/"])
def test_another_prefix_is_only_another_prefix(prefix: bytes) -> None:
    keys = Keyspace(prefix)
    for key, location in IRREGULAR.items():
        moved = keys.root + key.removeprefix(b"/registry/")
        assert keys.locate(moved) == location
        assert keys.key(location) == moved


names = st.binary(min_size=1, max_size=30).filter(lambda name: b"/" not in name)


@given(
    st.sampled_from(
        [b"pods", b"deployments", b"services/specs", b"minions", b"example.com/widgets"]
    ),
    st.one_of(st.just(None), names),
    names,
)
def test_any_bytes_in_a_name_survive_the_way_there_and_back(
    prefix: bytes, namespace: bytes | None, name: bytes
) -> None:
    key = b"/".join(filter(None, (b"/registry", prefix, namespace, name)))
    location = KEYS.locate(key)
    assert location is not None
    assert KEYS.key(location) == key


@given(st.binary(max_size=200))
def test_any_bytes_are_a_location_or_none(key: bytes) -> None:
    for candidate in (key, b"/registry/" + key):
        location = KEYS.locate(candidate)
        assert location is None or KEYS.key(location) == candidate
        assert KEYS.resource(candidate) or location is None
        assert shown(candidate).isprintable()


def test_locating_does_not_take_longer_in_a_hostile_key() -> None:
    start = time.thread_time()
    assert KEYS.locate(b"/registry/pods" + b"/" * 1_000_000) is None
    assert time.thread_time() - start < 5


def test_a_scan_of_a_resource_begins_with_its_prefix() -> None:
    assert KEYS.prefix("apps", "deployments") == b"/registry/deployments/"
    assert KEYS.prefix("", "services") == b"/registry/services/specs/"
    assert KEYS.prefix("events.k8s.io", "events") == KEYS.prefix("", "events")
    assert KEYS.prefix("example.com", "widgets") == b"/registry/example.com/widgets/"
    for group, resource in (("", "widgets"), ("apps", "widgets")):
        with pytest.raises(InvalidInput, match="no resource of Kubernetes"):
            KEYS.prefix(group, resource)


def test_a_secrets_key_is_shortened_to_its_namespace_and_others_are_not() -> None:
    """A22."""
    assert KEYS.redacted(b"/registry/secrets/team-a/token") == "/registry/secrets/team-a/…"
    assert KEYS.redacted(b"/registry/secrets/team-a/token/x") == "/registry/secrets/team-a/…"
    assert KEYS.redacted(b"/registry/secrets/token") == "/registry/secrets/…"
    assert KEYS.redacted(b"/registry/pods/team-a/web") == "/registry/pods/team-a/web"


def test_control_characters_and_escapes_of_a_terminal_are_shown_not_obeyed() -> None:
    assert shown(b"a\x1b[31m\r\n\x00\xff\xc2\x9b\xe2\x80\xae") == r"a\x1b[31m\r\n\x00\xff\x9b\u202e"
    assert shown("größe".encode()) == "größe"

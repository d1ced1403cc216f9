"""An endpoint that the resource takes is one that the etcd client takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etcdmaint.api.connection import parse_connection
from etcdmaint.errors import InvalidInput
from etcdmaint.etcd.endpoint import Endpoint
from tests.unit.api.cases import ENDPOINTS, TLS
from tests.unit.api.test_specs import stored

TEXTS = st.text(alphabet="aA0127.:[]/-_fhtps", max_size=24) | st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "http://", "https://", "HTTP://"]),
    st.sampled_from(["etcd", "10.0.0.1", "1.2.3", "[::1]", "::1", "fd00::1:2", "a.b.", "a_b", "9"]),
    st.sampled_from(["", ":2379", ":1", ":65535", ":65536", ":0", ":"]),
    st.sampled_from(["", "/", "//", "/x", "."]),
)


def taken(endpoints: list[str]) -> bool:
    """Whether the resource takes them, with whatever TLS they need."""
    secure = endpoints[0].lower().startswith("https")
    spec: dict[str, Any] = {"endpoints": endpoints, **({"tls": TLS} if secure else {})}
    try:
        parse_connection(stored(spec))
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize("text", ENDPOINTS)
def test_each_form_that_is_documented_can_be_dialled(text: str) -> None:
    assert taken([text])
    assert Endpoint.parse(text).port


@settings(max_examples=50)
@given(TEXTS)
def test_whatever_is_taken_can_be_dialled(text: str) -> None:
    if taken([text]):
        Endpoint.parse(text)


@settings(max_examples=50)
@given(TEXTS, TEXTS)
def test_two_endpoints_that_are_taken_together_are_two(one: str, two: str) -> None:
    if taken([one, two]):
        assert Endpoint.parse(one) != Endpoint.parse(two)

"""Sizes, shares and durations, held against what Go's own parsers said (quantities_go.json)."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import (
    MAX_BYTES,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration,
    parse_percent,
    parse_quantity,
    quoted,
)

GO = json.loads(Path(__file__).with_name("quantities_go.json").read_text())


@pytest.mark.parametrize(("text", "value"), GO["quantities"].items())
def test_a_quantity_is_worth_what_kubernetes_says(text: str, value: str | None) -> None:
    if value is None:
        with pytest.raises(InvalidInput):
            parse_quantity(text)
    else:
        assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(("text", "nanoseconds"), GO["durations"].items())
def test_a_duration_is_as_long_as_go_says(text: str, nanoseconds: str | None) -> None:
    if nanoseconds is None:
        with pytest.raises(InvalidInput):
            parse_duration(text)
    else:
        assert parse_duration(text) == int(nanoseconds) / 10**9


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("200Mi", 200 * 2**20),
        ("200M", 200_000_000),
        (209715200, 209715200),
        ("1e9", 10**9),
        ("0.5", 1),
        ("100m", 1),
        ("1n", 1),
        ("1.5", 2),
        ("-0.5", 0),
        ("-1.5Ki", -1536),
        ("0", 0),
        ("7Ei", 7 * 2**60),
        ("9223372036854775807", MAX_BYTES),
        (MAX_BYTES, MAX_BYTES),
    ],
)
def test_a_part_of_a_byte_counts_as_a_byte(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


RUBBISH_SIZES: list[Any] = [
    "",
    " ",
    "abc",
    "Gi",
    "-",
    "+",
    ".",
    "2Gi\n",
    " 2Gi",
    "2Gi ",
    "\t2Gi",
    "2 Gi",
    "2\u00a0Gi",
    "1_000",
    "NaN",
    "nan",
    "Infinity",
    "-inf",
    "0x10",
    "1e3Ki",
    "1e1.5",
    "1e",
    "1Yi",
    "5K",
    "2GiB",
    "2gi",
    "\u0662Gi",
    "\uff12Gi",
    "\u00b2Gi",
    "2G\u0131",
    "2Gi\x00",
    "\ud800",
    "1,5Gi",
    "--1",
    "$(reboot)",
    "8Ei",
    "1000Ei",
    "9223372036854775808",
    "1e19",
    "1e999999999",
    "1e-999999999",
    "1e99999999999999999999",
    "9" * 65,
    "9" * 100_000,
    2**63,
    -(2**63),
    10**5000,
    None,
    True,
    False,
    1.5,
    math.nan,
    [],
    {},
    b"2Gi",
]


@pytest.mark.parametrize("value", RUBBISH_SIZES, ids=lambda value: quoted(value))
def test_a_size_that_is_none_is_refused_with_its_field(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_bytes(value, "spec.rule.minReclaim")
    assert caught.value.field == "spec.rule.minReclaim"
    assert str(caught.value).startswith("spec.rule.minReclaim: ")
    assert str(caught.value).isascii()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    try:
        size = parse_bytes(text)
    except InvalidInput:
        return
    assert re.fullmatch(r"[0-9.+\-a-zA-Z]+", text, re.ASCII)
    assert abs(size) <= MAX_BYTES


@given(st.from_regex(r"\A[+-]?[0-9]{1,5}(\.[0-9]{1,8})?([KMGT]i|[numkMGT]|e-?[0-9])?\Z"))
def test_bytes_are_the_quantity_rounded_up(text: str) -> None:
    exact = Fraction(parse_quantity(text))
    assert 0 <= parse_bytes(text) - exact < 1


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1.5Ki"),
        (32 * 2**20, "32Mi"),
        (200 * 2**20, "200Mi"),
        (2**30 - 1, "1.0Gi"),
        (2**30, "1Gi"),
        (1288490189, "1.2Gi"),
        (8 * 2**30, "8Gi"),
        (-3584, "-3.5Ki"),
        (2**60, "1Ei"),
    ],
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(-(2**62), 2**62))
def test_what_is_written_for_people_is_a_quantity_within_five_percent(size: int) -> None:
    again = parse_bytes(format_bytes(size))
    assert abs(again - size) <= abs(size) * 0.05 + 1


@pytest.mark.parametrize("percent", range(1, 100))
def test_percentages_are_exact(percent: int) -> None:
    assert parse_percent(f"{percent}%") == Fraction(percent, 100)


@pytest.mark.parametrize(
    "value",
    # Row 19 of the admission table, and worse.
    [
        *("", "0%", "101%", "80", "80.5%", "080%", "-5%", "+5%", "80 %", " 80%", "80%\n", "80%%"),
        *("%", "\u0668\u0660%", "80\uff05", "8_0%", "1e1%", "NaN%", "9999999999%"),
        *(80, 0.8, True, None, [], {}),
    ],
    ids=lambda value: quoted(value),
)
def test_a_percentage_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_percent(value, "spec.rule.quotaUsageAbove")
    assert caught.value.field == "spec.rule.quotaUsageAbove"


def test_a_hundred_percent_is_refused_with_its_own_reason() -> None:
    with pytest.raises(InvalidInput, match="never be exceeded"):
        parse_percent("100%")


@pytest.mark.parametrize("value", [None, True, 5, 5.0, [], {}, b"5m", "5m" * 100_000 + "x"])
def test_a_duration_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(value, "--wait")
    assert caught.value.field == "--wait"
    assert len(str(caught.value)) < 200


@given(st.text(alphabet="0123456789.+-nuµμmsh e_\u0661", max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except InvalidInput:
        return
    assert text.lstrip("+-") == "0" or text[-1] in "smh"
    assert math.isfinite(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "0s"),
        (0.25, "250ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.999, "59.999s"),
        (59.9996, "1m"),
        (300, "5m"),
        (2715, "45m15s"),
        (5400, "1h30m"),
        (86400, "24h"),
        (-90, "-1m30s"),
    ],
)
def test_durations_are_written_as_go_would_read_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(-(10**12), 10**12))
def test_a_written_duration_is_read_back_to_the_millisecond(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000

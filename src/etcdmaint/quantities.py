"""Sizes, shares and durations as people write them: `200Mi`, `80%`, `1h30m`.

Each parser takes exactly what the original takes (Kubernetes' `resource.ParseQuantity`, Go's
`time.ParseDuration`), without rounding errors, and refuses everything else with the field and the
fault: a threshold that means one thing here and another to the API server defragments the wrong
member. This module must not know which fields exist, nor their limits.
"""

from __future__ import annotations

import decimal
import re
from decimal import Decimal
from fractions import Fraction

from etcdmaint.errors import InvalidInput

MAX_BYTES = 2**63 - 1

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?", re.ASCII
)
_BINARY = {
    unit: 1 << (10 * power) for power, unit in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
}
_DECIMAL = dict(zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True))
# Nothing that is measured in bytes needs more.
_MAX_LENGTH = 64
_MAX_EXPONENT = 999
_EXACT = decimal.Context(prec=2 * (_MAX_LENGTH + _MAX_EXPONENT), rounding=decimal.ROUND_UP)
_NANO = Decimal("1e-9")

_PERCENT = re.compile(r"([1-9][0-9]?)%", re.ASCII)

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,  # micro sign
    "\u03bcs": 10**3,  # Greek mu
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_DURATION_TERM = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^.0-9]*)", re.ASCII)
_MAX_NANOSECONDS = 2**63 - 1


def parse_quantity(value: str | int, field: str = "") -> Decimal:
    """The exact value of a Kubernetes quantity: `200Mi`, `1e3`, `0.5`, or a bare JSON integer.

    As in Kubernetes, what is finer than a billionth is rounded away from zero. Raises InvalidInput.
    Source: k8s.io/apimachinery/pkg/api/resource, ParseQuantity.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > MAX_BYTES:
            raise InvalidInput(field, "is too large: the most is 2^63-1")
        return Decimal(value)
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a quantity such as 200Mi, not {kind(value)}")
    if not value:
        raise InvalidInput(field, "is empty: a quantity such as 200Mi is needed")
    if len(value) > _MAX_LENGTH:
        raise InvalidInput(field, f"is too long: a quantity has at most {_MAX_LENGTH} characters")
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise InvalidInput(
            field, f"{quoted(value)} is not a quantity such as 200Mi, 1.5Gi or 1000000"
        )
    number, suffix = match[1], match[2] or ""
    if suffix in _BINARY:
        exact = _EXACT.multiply(Decimal(number), Decimal(_BINARY[suffix]))
    else:
        # The order matters: E alone is exa, E3 is an exponent.
        exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        if abs(exponent) > _MAX_EXPONENT:
            raise InvalidInput(field, f"{quoted(value)} has an absurd exponent")
        exact = _EXACT.scaleb(Decimal(number), exponent)
    return exact.quantize(_NANO, context=_EXACT)


def parse_bytes(value: str | int, field: str = "") -> int:
    """A quantity as whole bytes, parts of a byte rounded up; may be zero or negative.

    Raises InvalidInput, also for what no 64-bit size can hold.
    """
    size = parse_quantity(value, field)
    if abs(size) > MAX_BYTES:
        raise InvalidInput(field, f"{quoted(value)} is too large: the most is 2^63-1 bytes")
    return int(size.to_integral_value(rounding=decimal.ROUND_CEILING))


def format_bytes(size: int) -> str:
    """For people, and still a quantity: `1.2Gi`, `200Mi`, `-3.5Ki`, `512`. Off by 5 % at most."""
    sign, amount = ("-", -size) if size < 0 else ("", size)
    if amount < 1024:
        return str(size)
    for unit, factor in reversed(_BINARY.items()):
        tenths = (20 * amount + factor) // (2 * factor)  # half up, in integers
        if tenths >= 10:
            whole, tenth = divmod(tenths, 10)
            return (
                f"{sign}{whole}{unit}" if amount % factor == 0 else f"{sign}{whole}.{tenth}{unit}"
            )
    raise AssertionError("1024 bytes are at least 1Ki")


def parse_percent(value: str, field: str = "") -> Fraction:
    """A whole percentage from `1%` to `99%` as a fraction. Raises InvalidInput."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a percentage such as 80%, not {kind(value)}")
    if value == "100%":
        raise InvalidInput(
            field, "100% can never be exceeded, so it would never fire; the most is 99%"
        )
    match = _PERCENT.fullmatch(value)
    if match is None:
        raise InvalidInput(field, f"{quoted(value)} is not a whole percentage from 1% to 99%")
    return Fraction(int(match[1]), 100)


def parse_duration(text: str, field: str = "") -> float:
    """A Go duration in seconds: `5m`, `1h30m`, `1.5h`, `100ms`, `0`; may be negative.

    Raises InvalidInput. Source: Go's time.ParseDuration, to the nanosecond.
    """
    if not isinstance(text, str):
        raise InvalidInput(field, f"must be a duration such as 5m, not {kind(text)}")
    negative = text[:1] == "-"
    position = 1 if text[:1] in ("+", "-") else 0
    if text[position:] == "0":
        return 0.0
    if position == len(text):
        raise InvalidInput(field, f"{quoted(text)} is not a duration such as 5m or 1h30m")
    total = 0
    while position < len(text):
        match = _DURATION_TERM.match(text, position)
        assert match is not None, "the pattern matches the empty string"
        whole, fraction, unit = match[1], match[2] or "", match[3]
        if not (whole or fraction):
            raise InvalidInput(field, f"{quoted(text)} is not a duration such as 5m or 1h30m")
        if not unit:
            raise InvalidInput(field, f"{quoted(text)} lacks a unit: ns, us, ms, s, m or h")
        if unit not in _NANOSECONDS:
            fault = f"has an unknown unit {quoted(unit)}; there are ns, us, ms, s, m and h"
            raise InvalidInput(field, f"{quoted(text)} {fault}")
        total += _go_nanoseconds(whole, fraction, _NANOSECONDS[unit])
        if total > _MAX_NANOSECONDS + negative:
            raise InvalidInput(field, f"{quoted(text)} is too long: the most is about 292 years")
        position = match.end()
    return (-total if negative else total) / 10**9


def format_duration(seconds: float) -> str:
    """A Go duration for people: `1h30m`, `45m15s`, `1.5s`, `250ms`, `0s`; to the millisecond."""
    milliseconds = round(abs(seconds) * 1000)
    if milliseconds == 0:
        return "0s"
    sign = "-" if seconds < 0 else ""
    if milliseconds < 1000:
        return f"{sign}{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    if milliseconds:
        parts.append(f"{milliseconds / 1000:g}s")
    return sign + "".join(parts)


def quoted(value: object) -> str:
    """A value for an error message: short, on one line, plain ASCII, whatever it holds."""
    if isinstance(value, str):
        return ascii(value) if len(value) <= 48 else f"{value[:44]!a} and so on"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**20:
        return str(value)
    return kind(value)


def _go_nanoseconds(whole: str, fraction: str, unit: int) -> int:
    """One term of a duration, with the very float arithmetic that Go uses for its fraction."""
    digits = whole.lstrip("0")
    value = int(digits or "0") if len(digits) <= 19 else 2**64
    kept, scale = 0, 1.0
    for digit in fraction:
        longer = kept * 10 + int(digit)
        if kept > _MAX_NANOSECONDS // 10 or longer > 2**63:
            break
        kept, scale = longer, scale * 10
    return value * unit + int(float(kept) * (float(unit) / scale))


def kind(value: object) -> str:
    """What a JSON value is, in JSON's words, for an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float, Decimal)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return (
        "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else "this"
    )

"""The protobuf objects whose fields are known here: those that are looked at when something is wrong.

A handful of kinds and the metadata that all of them have, read into what `kubectl get -o yaml` shows.
A field that is not known is told by its number. Bytes may be hostile: depth and number of fields
are bounded by `protobuf_wire`. Numbers: generated.proto of k8s.io/api and k8s.io/apimachinery.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from etcdmaint.compression import protobuf_wire

__all__ = ["KNOWN", "read"]

# How a field is written: text, a number, a truth, bytes, a moment, a message; alone, listed, or by name.
_TEXT, _NUMBER, _BOOL, _BYTES, _TIME, _RAW = "text", "number", "bool", "bytes", "time", "raw"
_Field = tuple[str, Any]


def _list(of: Any) -> tuple[str, Any]:
    return ("list", of)


def _map(of: Any) -> tuple[str, Any]:
    return ("map", of)


_OWNER: Final[dict[int, _Field]] = {
    5: ("apiVersion", _TEXT),
    1: ("kind", _TEXT),
    3: ("name", _TEXT),
    4: ("uid", _TEXT),
    6: ("controller", _BOOL),
    7: ("blockOwnerDeletion", _BOOL),
}
_MANAGED: Final[dict[int, _Field]] = {
    1: ("manager", _TEXT),
    2: ("operation", _TEXT),
    3: ("apiVersion", _TEXT),
    4: ("time", _TIME),
    6: ("fieldsType", _TEXT),
    7: ("fieldsV1", _RAW),
    8: ("subresource", _TEXT),
}
_META: Final[dict[int, _Field]] = {
    1: ("name", _TEXT),
    2: ("generateName", _TEXT),
    3: ("namespace", _TEXT),
    4: ("selfLink", _TEXT),
    5: ("uid", _TEXT),
    6: ("resourceVersion", _TEXT),
    7: ("generation", _NUMBER),
    8: ("creationTimestamp", _TIME),
    9: ("deletionTimestamp", _TIME),
    10: ("deletionGracePeriodSeconds", _NUMBER),
    11: ("labels", _map(_TEXT)),
    12: ("annotations", _map(_TEXT)),
    13: ("ownerReferences", _list(_OWNER)),
    14: ("finalizers", _list(_TEXT)),
    17: ("managedFields", _list(_MANAGED)),
}
_REFERENCE: Final[dict[int, _Field]] = {
    1: ("kind", _TEXT),
    2: ("namespace", _TEXT),
    3: ("name", _TEXT),
    4: ("uid", _TEXT),
    5: ("apiVersion", _TEXT),
    6: ("resourceVersion", _TEXT),
    7: ("fieldPath", _TEXT),
}
KNOWN: Final[dict[tuple[str, str], dict[int, _Field]]] = {
    ("v1", "ConfigMap"): {
        2: ("data", _map(_TEXT)),
        3: ("binaryData", _map(_BYTES)),
        4: ("immutable", _BOOL),
    },
    ("v1", "Secret"): {2: ("data", _map(_BYTES)), 3: ("type", _TEXT), 5: ("immutable", _BOOL)},
    ("v1", "Namespace"): {
        2: ("spec", {1: ("finalizers", _list(_TEXT))}),
        3: ("status", {1: ("phase", _TEXT)}),
    },
    ("v1", "ServiceAccount"): {
        2: ("secrets", _list(_REFERENCE)),
        3: ("imagePullSecrets", _list({1: ("name", _TEXT)})),
        4: ("automountServiceAccountToken", _BOOL),
    },
    ("v1", "Event"): {
        2: ("involvedObject", _REFERENCE),
        3: ("reason", _TEXT),
        4: ("message", _TEXT),
        5: ("source", {1: ("component", _TEXT), 2: ("host", _TEXT)}),
        6: ("firstTimestamp", _TIME),
        7: ("lastTimestamp", _TIME),
        8: ("count", _NUMBER),
        9: ("type", _TEXT),
        10: ("eventTime", _TIME),
        12: ("action", _TEXT),
        13: ("related", _REFERENCE),
        14: ("reportingComponent", _TEXT),
        15: ("reportingInstance", _TEXT),
    },
    ("coordination.k8s.io/v1", "Lease"): {
        2: (
            "spec",
            {
                1: ("holderIdentity", _TEXT),
                2: ("leaseDurationSeconds", _NUMBER),
                3: ("acquireTime", _TIME),
                4: ("renewTime", _TIME),
                5: ("leaseTransitions", _NUMBER),
                6: ("strategy", _TEXT),
                7: ("preferredHolder", _TEXT),
            },
        )
    },
}
_MOST_DEPTH: Final = 16


def read(raw: bytes, api_version: str, kind: str) -> dict[str, Any] | None:
    """The object inside an envelope; None where the kind is not known here. Raises ValueError."""
    fields = KNOWN.get((api_version, kind))
    if fields is None:
        return None
    found = _message(raw, {1: ("metadata", _META), **fields}, 0)
    return {"apiVersion": api_version, "kind": kind, **found}


def _message(octets: bytes, known: dict[int, _Field], depth: int) -> dict[str, Any]:
    if depth > _MOST_DEPTH:
        raise ValueError("nested too deeply")
    found: dict[str, Any] = {}
    unknown: dict[int, None] = {}
    for number, value in protobuf_wire.fields(octets):
        if number not in known:
            unknown[number] = None
            continue
        name, form = known[number]
        how, of = form if isinstance(form, tuple) else ("", form)
        if how == "list":
            found.setdefault(name, []).append(_value(value, of, depth))
        elif how == "map":
            entry = _message(_octets(value), {1: ("key", _TEXT), 2: ("value", of)}, depth + 1)
            found.setdefault(name, {})[entry.get("key", "")] = entry.get("value", "")
        elif told := _value(value, of, depth):
            found[name] = told
    if unknown:
        found["fieldsNotKnown"] = list(unknown)
    return found


def _value(value: int | bytes, form: Any, depth: int) -> Any:
    if form in (_NUMBER, _BOOL):
        if not isinstance(value, int):
            raise ValueError("no number")
        return bool(value) if form == _BOOL else value - (1 << 64) * (value >> 63)
    octets = _octets(value)
    if form == _TEXT:
        return octets.decode("utf-8", "replace")
    if form == _BYTES:
        return base64.b64encode(octets).decode()
    if form == _TIME:
        return _time(octets)
    if form == _RAW:
        (content,) = protobuf_wire.last(octets, 1)
        return json.loads(content) if content else None
    return _message(octets, form, depth + 1)


def _octets(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where none belongs")
    return value


def _time(octets: bytes) -> str | None:
    """Seconds and nanoseconds, as Kubernetes writes a moment; None for the zero of Go's time."""
    seconds = nanos = 0
    for number, value in protobuf_wire.fields(octets):
        if isinstance(value, int):
            seconds, nanos = (value, nanos) if number == 1 else (seconds, value)
    seconds -= (1 << 64) * (seconds >> 63)
    if not octets or seconds <= -62_135_596_800:
        return None
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError("no moment") from None
    fraction = f".{nanos // 1000:06d}" if nanos else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"

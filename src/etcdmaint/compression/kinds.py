"""The protobuf objects whose fields are known here: those that are looked at when something is wrong.

A handful of kinds and the metadata that all of them have, read into what `kubectl get -o yaml` shows.
A field that is not known is told by its number. Bytes may be hostile: depth and number of fields
are bounded by `protobuf_wire`. Numbers: generated.proto of k8s.io/api and k8s.io/apimachinery.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from etcdmaint.compression import protobuf_wire

# As a .proto has it: number, name and what is written there, `text` where nothing is said. Several in
# a list have brackets, several by name braces, and a capital is a message.
_MESSAGES: Final = {
    "Owner": "5 apiVersion, 1 kind, 3 name, 4 uid, 6 controller bool, 7 blockOwnerDeletion bool",
    "Managed": "1 manager, 2 operation, 3 apiVersion, 4 time time, 6 fieldsType, 7 fieldsV1 raw, "
    "8 subresource",
    "Meta": "1 name, 2 generateName, 3 namespace, 4 selfLink, 5 uid, 6 resourceVersion, "
    "7 generation number, 8 creationTimestamp time, 9 deletionTimestamp time, "
    "10 deletionGracePeriodSeconds number, 11 labels {text}, 12 annotations {text}, "
    "13 ownerReferences [Owner], 14 finalizers [text], 17 managedFields [Managed]",
    "Reference": "1 kind, 2 namespace, 3 name, 4 uid, 5 apiVersion, 6 resourceVersion, 7 fieldPath",
    "Named": "1 name",
    "NamespaceSpec": "1 finalizers [text]",
    "NamespaceStatus": "1 phase",
    "Source": "1 component, 2 host",
    "LeaseSpec": "1 holderIdentity, 2 leaseDurationSeconds number, 3 acquireTime time, "
    "4 renewTime time, 5 leaseTransitions number, 6 strategy, 7 preferredHolder",
}
KINDS: Final = {
    ("v1", "ConfigMap"): "2 data {text}, 3 binaryData {bytes}, 4 immutable bool",
    ("v1", "Secret"): "2 data {bytes}, 3 type, 5 immutable bool",
    ("v1", "Namespace"): "2 spec NamespaceSpec, 3 status NamespaceStatus",
    ("v1", "ServiceAccount"): "2 secrets [Reference], 3 imagePullSecrets [Named], "
    "4 automountServiceAccountToken bool",
    ("v1", "Event"): "2 involvedObject Reference, 3 reason, 4 message, 5 source Source, "
    "6 firstTimestamp time, 7 lastTimestamp time, 8 count number, 9 type, 10 eventTime time, "
    "12 action, 13 related Reference, 14 reportingComponent, 15 reportingInstance",
    ("coordination.k8s.io/v1", "Lease"): "2 spec LeaseSpec",
}
_MOST_DEPTH: Final = 16


def read(raw: bytes, api_version: str, kind: str) -> dict[str, Any] | None:
    """The object inside an envelope; None where the kind is not known here. Raises ValueError."""
    fields = KINDS.get((api_version, kind))
    if fields is None:
        return None
    found = _message(raw, f"1 metadata Meta, {fields}", 0)
    return {"apiVersion": api_version, "kind": kind, **found}


@cache
def _fields(described: str) -> dict[int, tuple[str, str]]:
    """Of each number the field's name and form."""
    fields = (f"{each} text".split()[:3] for each in described.split(", "))
    return {int(number): (name, form) for number, name, form in fields}


def _message(octets: bytes, described: str, depth: int) -> dict[str, Any]:
    if depth > _MOST_DEPTH:
        raise ValueError("nested too deeply")
    known = _fields(described)
    found: dict[str, Any] = {}
    unknown: dict[int, None] = {}
    for number, value in protobuf_wire.fields(octets):
        if number not in known:
            unknown[number] = None
            continue
        name, form = known[number]
        if form[0] == "[":
            found.setdefault(name, []).append(_value(value, form[1:-1], depth))
        elif form[0] == "{":
            entry = _message(_octets(value), f"1 key, 2 value {form[1:-1]}", depth + 1)
            found.setdefault(name, {})[entry.get("key", "")] = entry.get("value", "")
        elif told := _value(value, form, depth):
            found[name] = told
    if unknown:
        found["fieldsNotKnown"] = list(unknown)
    return found


def _value(value: int | bytes, form: str, depth: int) -> Any:
    if form in ("number", "bool"):
        if not isinstance(value, int):
            raise ValueError("no number")
        return bool(value) if form == "bool" else value - (1 << 64) * (value >> 63)
    octets = _octets(value)
    if form == "text":
        return octets.decode("utf-8", "replace")
    if form == "bytes":
        return base64.b64encode(octets).decode()
    if form == "time":
        return _time(octets)
    if form == "raw":
        (content,) = protobuf_wire.last(octets, 1)
        return json.loads(content) if content else None
    return _message(octets, _MESSAGES[form], depth + 1)


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

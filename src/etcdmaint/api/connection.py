"""EtcdConnection: an etcd that no operator on this Kubernetes manages, and how to reach it.

Says what a person wrote and what was measured; turning endpoints and Secrets into something that
can be dialled is done elsewhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from etcdmaint.api.fields import (
    AS_TUPLE,
    Count,
    Int64,
    MemberId,
    ObjectName,
    SecretKey,
    SecretRef,
    Size,
    Time,
    parse_compaction_interval,
)
from etcdmaint.api.metadata import Resource
from etcdmaint.api.schema import OBJECTS, OR_NONE, Spec, Status, parse, readable, status_of
from etcdmaint.api.vocabulary import Role
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import quoted

MAX_ENDPOINTS: Final = 32

# As in the CRD; where an IPv6 address stands, ipaddress has the last word.
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_ENDPOINT = re.compile(
    r"([hH][tT][tT][pP][sS]?://)?"
    rf"((?P<name>({_LABEL}\.)*{_LABEL}\.?)(:{_PORT})?"
    rf"|\[(?P<v6>[0-9A-Fa-f:.]{{2,45}})\](:{_PORT})?"
    r"|(?P<bare>[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{0,37}))/?"
)
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_V4 = re.compile(rf"{_OCTET}(\.{_OCTET}){{3}}")
_SERVER_NAME = re.compile(rf"({_LABEL}\.)*{_LABEL}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
_PREFIX = re.compile(r"(/[A-Za-z0-9._-]+)+")


def _endpoint(text: str) -> str:
    match = _ENDPOINT.fullmatch(text) if len(text) <= 300 else None
    if match is None or not _is_host(match["name"], match["v6"] or match["bare"]):
        raise InvalidInput("", f"{quoted(text)} is not an endpoint such as https://10.0.0.11:2379")
    return text


def _is_host(name: str | None, v6: str | None) -> bool:
    if name is not None:
        return bool(name.strip("0123456789.")) or _V4.fullmatch(name) is not None
    try:
        ipaddress.IPv6Address(v6 or "")
    except ValueError:
        return False
    return True


def _server_name(text: str) -> str:
    if len(text) > 253 or not _SERVER_NAME.fullmatch(text):
        raise InvalidInput("", f"{quoted(text)} is not a name that a certificate can have")
    return text


def _prefix(text: str) -> str:
    if len(text) > 256 or not _PREFIX.fullmatch(text):
        raise InvalidInput("", f"{quoted(text)} is not a prefix of etcd keys such as /registry")
    return text


def _spelling(endpoint: str) -> str:
    """One text for what is surely one endpoint; the CRD's CEL rule folds in the same way."""
    bare = endpoint.lower().replace("https://", "").replace("http://", "")
    bare = bare.replace("/", "").replace("[", "").replace("]", "") + "/"
    return bare.replace(":2379/", "/")


def _no_endpoint_twice(endpoints: tuple[str, ...]) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for endpoint in endpoints:
        earlier = seen.get(_spelling(endpoint))
        if earlier is not None:
            raise InvalidInput("", f"{quoted(earlier)} and {quoted(endpoint)} are one endpoint")
        seen[_spelling(endpoint)] = endpoint
    return endpoints


class CASecretRef(Spec):
    """The certificates to trust: one key of a Secret in the object's own namespace."""

    name: ObjectName
    key: SecretKey = "ca.crt"


class TlsSpec(Spec):
    """TLS to every member; without it the connection is in plaintext."""

    ca_secret_ref: CASecretRef
    client_cert_secret_ref: SecretRef | None = None
    server_name: Annotated[str, AfterValidator(_server_name)] | None = None


class AuthSpec(Spec):
    """etcd's own users: the Secret has `username` (default root) and `password`."""

    credentials_secret_ref: SecretRef


class CompactionSpec(Spec):
    """Seconds between two compactions; 0 for off."""

    interval: Annotated[float, BeforeValidator(parse_compaction_interval)]


class KubernetesStorageSpec(Spec):
    """Where a Kubernetes API server keeps its objects in this etcd."""

    prefix: Annotated[str, AfterValidator(_prefix)] = "/registry"


class EtcdConnectionSpec(Spec):
    """How to reach the cluster, and what is known about it beside etcd itself."""

    endpoints: Annotated[
        tuple[Annotated[str, AfterValidator(_endpoint)], ...],
        AS_TUPLE,
        Field(min_length=1, max_length=MAX_ENDPOINTS),
        AfterValidator(_no_endpoint_twice),
    ]
    tls: TlsSpec | None = None
    auth: AuthSpec | None = None
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    volume_size: Size | None = None
    quota_backend_bytes: Size | None = None
    compaction: CompactionSpec | None = None
    kubernetes_storage: KubernetesStorageSpec | None = None

    @model_validator(mode="after")
    def _contradicts_itself(self) -> EtcdConnectionSpec:
        if self.auth is not None and self.tls is None:
            raise InvalidInput("auth", "a password needs spec.tls: it never goes over plaintext")
        wrong = "https://" if self.tls is None else "http://"
        for index, endpoint in enumerate(self.endpoints):
            if endpoint.lower().startswith(wrong):
                fault = "needs spec.tls" if self.tls is None else "contradicts spec.tls"
                raise InvalidInput(f"endpoints[{index}]", f"{quoted(endpoint)} {fault}")
        return self


class ConnectionMember(Status):
    """One member as it was measured last; None for what is unknown."""

    member_id: MemberId
    name: Annotated[str | None, OR_NONE] = None
    endpoint: Annotated[str | None, OR_NONE] = None
    role: Annotated[Role | None, Field(strict=False), OR_NONE] = None
    version: Annotated[str | None, OR_NONE] = None
    db_size: Annotated[Count | None, OR_NONE] = None
    db_size_in_use: Annotated[Count | None, OR_NONE] = None
    quota: Annotated[Count | None, OR_NONE] = None


class CompactionStatus(Status):
    """What is known about compaction."""

    revision: Annotated[Int64 | None, OR_NONE] = None
    clock: Annotated[Count | None, OR_NONE] = None
    last_won_at: Annotated[Time | None, OR_NONE] = None
    last_seen_at: Annotated[Time | None, OR_NONE] = None


class EtcdConnectionStatus(Status):
    """What was measured last and written."""

    cluster_id: Annotated[MemberId | None, OR_NONE] = None
    measured_at: Annotated[Time | None, OR_NONE] = None
    members: Annotated[tuple[ConnectionMember, ...], readable(ConnectionMember, "member_id")] = ()
    compaction: Annotated[CompactionStatus | None, OR_NONE] = None
    conditions: Annotated[tuple[dict[str, Any], ...], OBJECTS] = ()


class EtcdConnection(Resource):
    """One EtcdConnection as the API server has it."""

    spec: EtcdConnectionSpec


def connection_status(obj: Mapping[str, Any]) -> EtcdConnectionStatus:
    """Only the status, also of an object whose spec is refused; never raises."""
    return status_of(EtcdConnectionStatus, obj)


def parse_connection(obj: Mapping[str, Any]) -> EtcdConnection:
    """Read an EtcdConnection, whatever was stored under that name.

    Raises InvalidInput and nothing else, with the path of the field at fault.
    """
    return parse(EtcdConnection, obj)

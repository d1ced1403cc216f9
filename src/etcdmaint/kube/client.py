"""The few requests that the operator makes of the Kubernetes API, over plain dictionaries.

It stands on the official client's connection and credentials, but not on its generated API classes:
each of those costs 9 MiB resident and its first use a second. An answer is a plain JSON object; what
goes wrong is one of five classes. This module must not know what the objects mean.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Protocol
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject

from etcdmaint.api.fields import parse_time
from etcdmaint.clock import Clock, SystemClock
from etcdmaint.errors import EtcdmaintError, InvalidInput
from etcdmaint.kube.access import ApiAccess
from etcdmaint.kube.resources import FIELD_MANAGER, ObjectRef, Resource

Json = dict[str, Any]
"""An object of the API, as it came. It is taken apart at once by whoever asked for it."""

_PAGE = 500
_MERGE_PATCH = "application/merge-patch+json"


class KubeError(EtcdmaintError):
    """A request to the Kubernetes API failed."""

    reason: ClassVar[str] = "KubernetesError"

    def __init__(self, message: str, *, status: int | None = None, cause: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.cause = cause


class NotFound(KubeError):
    """No such object, or no such resource."""

    reason = "NotFound"


class Conflict(KubeError):
    """The object has changed meanwhile, or exists already."""

    reason = "Conflict"
    retryable = True


class Forbidden(KubeError):
    """Not allowed; `cause` is `NamespaceTerminating` where the namespace is on its way out."""

    reason = "Forbidden"


class Rejected(KubeError):
    """The API server will never take this request as it is."""

    reason = "Rejected"


class Unavailable(KubeError):
    """No answer, or one that says: later. The request may have been carried out."""

    reason = "KubernetesUnavailable"
    retryable = True


class RequestObserver(Protocol):
    """Who counts requests."""

    def request(self, verb: str, resource: str, status: int | None, seconds: float) -> None:
        """One request is over; `status` is HTTP's, None when there was no answer."""

    def status_conflict(self) -> None:
        """A status write met a conflict and is tried again."""


class Unobserved:
    """Counts nothing."""

    def request(self, verb: str, resource: str, status: int | None, seconds: float) -> None:
        """Ignore it."""

    def status_conflict(self) -> None:
        """Ignore it."""


class KubeApi:
    """Get, list, create, replace, patch and delete; every call raises only KubeError subclasses.

    `timeout` is in seconds and covers a whole request. `reachable` says whether the latest request was
    answered, and not by an excuse; None before the first.
    """

    def __init__(
        self,
        access: ApiAccess,
        *,
        observer: RequestObserver | None = None,
        clock: Clock | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._access = access
        self._rest = RESTClientObject(access.configuration)
        self.observer: RequestObserver = observer or Unobserved()
        self._clock = clock or SystemClock()
        self._timeout = timeout
        self._offset = timedelta()
        self.reachable: bool | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._rest.close()

    def server_now(self) -> datetime:
        """The API server's time, from the Date of its last answer (D4); to the second."""
        return self._clock.now() + self._offset

    def age(self, obj: Json) -> float:
        """Seconds since the object was created, by the API server's clock; never negative."""
        created = read_time(obj.get("metadata", {}).get("creationTimestamp"))
        return 0.0 if created is None else max(0.0, (self.server_now() - created).total_seconds())

    async def get(
        self, resource: Resource, namespace: str, name: str, *, timeout: float | None = None
    ) -> Json:
        """One object."""
        path = resource.path(namespace, name)
        return await self._request("get", resource.plural, path, timeout=timeout)

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
    ) -> list[Json]:
        """Every object, of one namespace or of all; read in pages."""
        items: list[Json] = []
        query = {"limit": str(_PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            path = resource.path(namespace) + "?" + urlencode({k: v for k, v in query.items() if v})
            page = await self._request("list", resource.plural, path)
            items += page.get("items") or []
            query["continue"] = page.get("metadata", {}).get("continue") or ""
            if not query["continue"]:
                return items

    async def create(
        self, resource: Resource, namespace: str, body: Json, *, timeout: float | None = None
    ) -> Json:
        """A new object; Conflict when there is one of that name."""
        path = resource.path(namespace) + f"?fieldManager={FIELD_MANAGER}"
        return await self._request("create", resource.plural, path, body, timeout=timeout)

    async def replace(
        self, resource: Resource, namespace: str, body: Json, *, timeout: float | None = None
    ) -> Json:
        """The whole object; Conflict unless its resourceVersion is still the one in `body`."""
        name = body["metadata"]["name"]
        path = resource.path(namespace, name) + f"?fieldManager={FIELD_MANAGER}"
        return await self._request("update", resource.plural, path, body, timeout=timeout)

    async def patch_status(self, ref: ObjectRef, status: Json, resource_version: str) -> Json:
        """Merge into the status; Conflict unless the object is still at that version."""
        path = ref.resource.path(ref.namespace, ref.name, "status")
        return await self._request(
            "patch",
            f"{ref.resource.plural}/status",
            f"{path}?fieldManager={FIELD_MANAGER}",
            {"metadata": {"resourceVersion": resource_version}, "status": status},
            content_type=_MERGE_PATCH,
        )

    async def delete(self, ref: ObjectRef, *, resource_version: str = "") -> None:
        """Delete exactly this object: its UID, and its version where given, must still be the same."""
        conditions = {"uid": ref.uid, "resourceVersion": resource_version}
        body = {"preconditions": {key: value for key, value in conditions.items() if value}}
        path = ref.resource.path(ref.namespace, ref.name)
        await self._request("delete", ref.resource.plural, path, body)

    async def schema(self, resource: Resource) -> Json:
        """The OpenAPI document of the resource's group and version; anybody may read it."""
        path = f"/openapi/v3/apis/{resource.group}/{resource.version}"
        return await self._request("get", "openapi", path)

    async def server_version(self) -> Json:
        """What the API server says of its release; anybody may ask it."""
        return await self._request("get", "version", "/version")

    async def _request(
        self,
        verb: str,
        resource: str,
        path: str,
        body: Json | None = None,
        *,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> Json:
        method = {"list": "GET", "create": "POST", "update": "PUT"}.get(verb, verb.upper())
        started = self._clock.monotonic()
        status: int | None = None
        try:
            headers = {"Accept": "application/json", "Content-Type": content_type}
            if authorization := await self._access.authorization():
                headers["Authorization"] = authorization
            seconds = timeout or self._timeout
            async with asyncio.timeout(seconds):
                response = await self._rest.request(  # type: ignore[no-untyped-call]  # the library has no types
                    method,
                    self._access.server + path,
                    headers=headers,
                    body=body,
                    _request_timeout=aiohttp.ClientTimeout(total=seconds),
                )
                status = response.status
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            status, self.reachable = None, False
            kind = str(error) or type(error).__name__
            raise Unavailable(f"the Kubernetes API did not answer: {kind}") from error
        finally:
            self.observer.request(verb, resource, status, self._clock.monotonic() - started)
        self.reachable = status < 500
        self._note_date(response.headers)
        answer = _decode(data)
        what = f"{verb} {path.partition('?')[0]}"
        if status >= 400:
            raise _error(status, answer or {}, what)
        if answer is None:
            # Whoever stands in between: taken for an empty list, every object would be gone.
            self.reachable = False
            raise Unavailable(f"{what}: HTTP {status}, but no JSON object", status=status)
        return answer

    def _note_date(self, headers: Mapping[str, str]) -> None:
        try:
            date = parsedate_to_datetime(headers["Date"])
        except (KeyError, ValueError):
            return
        offset = date.astimezone(UTC) - self._clock.now()
        # The header has whole seconds, rounded down: below that, the clocks are taken to agree.
        self._offset = offset if abs(offset.total_seconds()) > 1.5 else timedelta()


async def read_exactly(api: KubeApi, ref: ObjectRef) -> Json:
    """The object. Raises NotFound when it is not there, or another one has its name by now."""
    try:
        obj = await api.get(ref.resource, ref.namespace, ref.name)
    except NotFound:
        raise NotFound(f"{ref.resource.kind} {ref} is not there any more") from None
    if ref.uid and obj["metadata"].get("uid") != ref.uid:
        raise NotFound(f"{ref.resource.kind} {ref} is another object now")
    return obj


def _decode(data: bytes) -> Json | None:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _error(status: int, answer: Json, what: str) -> KubeError:
    message = str(answer.get("message") or f"HTTP {status}")[:500]
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    cause = str(causes[0].get("reason", "")) if causes else ""
    text = f"{what}: {message}"
    if status == 404:
        return NotFound(text, status=status)
    if status == 409:
        return Conflict(text, status=status)
    if status in (401, 403):
        return Forbidden(text, status=status, cause=cause)
    if status in (410, 429) or status >= 500:  # 410: a page of a list that took too long
        return Unavailable(text, status=status)
    return Rejected(text, status=status)


def read_time(value: object) -> datetime | None:
    """A time as the API has it; None for anything else."""
    try:
        return parse_time(value) if isinstance(value, str) else None
    except InvalidInput:
        return None


def format_micro_time(when: datetime) -> str:
    """A `metav1.MicroTime`, as Leases have."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

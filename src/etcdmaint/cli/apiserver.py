"""The few questions that verifying a downgrade puts to API servers.

Imported when they are asked, since the Kubernetes client is not needed for anything else here. Only
metadata is listed: no object's content leaves the API server.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject

from etcdmaint.api.fields import parse_time
from etcdmaint.compression.verification import ApiServer
from etcdmaint.errors import EtcdmaintError, InvalidInput
from etcdmaint.kube.access import ApiAccess
from etcdmaint.kube.client import NotFound, Unavailable

Json = dict[str, Any]

_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 500
_LATER = (429, 503, 504)
_RETRY_SECONDS = 1.0
_POLICY_HASH = re.compile(
    r'^apiserver_storage_compression_last_config_info\{[^}]*\bhash="([^"]*)"[^}]*\} 1', re.MULTILINE
)
# Two processes have not begun in the same hundredth of a second.
_PROCESS = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)
# An identity Lease is renewed every ten seconds.
_FRESH = timedelta(seconds=3600)


class ListExpired(EtcdmaintError):
    """The revision to list at has been compacted away."""

    reason = "ListExpired"
    retryable = True


class ApiServerClient:
    """One API server, at `url` if that is given and else where the kubeconfig says.

    `timeout` is for each request; a server that says "later" is asked again for `patience`, in
    seconds.
    """

    def __init__(
        self, access: ApiAccess, url: str = "", *, timeout: float = 60.0, patience: float = 30.0
    ) -> None:
        configuration = access.configuration
        if url:
            configuration = copy(configuration)
            configuration.host = url.rstrip("/")
        self.url = str(configuration.host)
        self._access = access
        self._rest = RESTClientObject(configuration)
        self._timeout = timeout
        self._patience = patience
        self._versions: dict[str, list[str]] = {}
        self._resources: dict[str, set[str]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._rest.close()

    async def facts(self) -> ApiServer:
        """Its release and its policy."""
        version = str((await self._json("/version")).get("gitVersion", ""))
        try:
            metrics = (await self._get("/metrics", accept="text/plain")).decode("utf-8", "replace")
        except EtcdmaintError:
            return ApiServer(self.url, version, None)
        policy, process = _POLICY_HASH.search(metrics), _PROCESS.search(metrics)
        return ApiServer(
            self.url, version, policy[1] if policy else "", process[1] if process else ""
        )

    async def cluster_uid(self) -> str:
        """The UID of Namespace kube-system, which no two clusters share."""
        path = "/api/v1/namespaces/kube-system"
        namespace = await self._json(path)
        with self._understanding(path):
            return str(namespace["metadata"]["uid"])

    async def known_servers(self) -> int | None:
        """How many API servers keep an identity Lease; None where that cannot be told."""
        query = urlencode({"labelSelector": "apiserver.kubernetes.io/identity=kube-apiserver"})
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?{query}"
        try:
            leases = (await self._json(path)).get("items", [])
        except EtcdmaintError:
            return None
        now = datetime.now(UTC)
        fresh = 0
        for lease in leases:
            try:
                renewed = parse_time(str(lease["spec"]["renewTime"]))
            except (KeyError, TypeError, InvalidInput):
                return None
            fresh += now - renewed < _FRESH
        return fresh or None

    async def count(self, group: str, resource: str, revision: int) -> int | None:
        """How many objects there are at exactly this revision; None where none are served.

        Raises ListExpired.
        """
        for version in await self._served(group):
            base = f"/apis/{group}/{version}" if group else f"/api/{version}"
            if resource in await self._listable(base):
                return await self._count(f"{base}/{resource}", revision)
        return None

    async def _count(self, path: str, revision: int) -> int:
        query = {
            "limit": str(_PAGE),
            "resourceVersion": str(revision),
            "resourceVersionMatch": "Exact",
        }
        number = 0
        while True:
            page = await self._json(f"{path}?{urlencode(query)}", accept=_METADATA)
            with self._understanding(path):
                number += len(page["items"] or [])
                more = page["metadata"].get("continue") or ""
            if not more:
                return number
            query = {"limit": str(_PAGE), "continue": more}

    async def _served(self, group: str) -> list[str]:
        """The versions of a group, the preferred one first."""
        if not group:
            return ["v1"]
        if not self._versions:
            groups = await self._json("/apis")
            with self._understanding("/apis"):
                for each in groups["groups"]:
                    preferred = each["preferredVersion"]["version"]
                    others = [version["version"] for version in each["versions"]]
                    self._versions[each["name"]] = list(dict.fromkeys([preferred, *others]))
        return self._versions.get(group, [])

    async def _listable(self, base: str) -> set[str]:
        if base not in self._resources:
            served = await self._json(base)
            with self._understanding(base):
                self._resources[base] = {
                    each["name"] for each in served["resources"] if "list" in each["verbs"]
                }
        return self._resources[base]

    async def _json(self, path: str, accept: str = _JSON) -> Json:
        data = await self._get(path, accept=accept)
        with self._understanding(path):
            return dict(json.loads(data))

    @contextmanager
    def _understanding(self, path: str) -> Iterator[None]:
        """Whatever is not there or not so is the fault of whoever answered."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Unavailable(
                f"{self.url}: the answer to {_plain(path)} is not an API server's"
            ) from None

    async def _get(self, path: str, accept: str = _JSON) -> bytes:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            try:
                return await self._once(path, accept)
            except Unavailable as error:
                # While its cache of a resource is made anew, lists are put off for some seconds.
                if error.status not in _LATER or loop.time() >= deadline:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def _once(self, path: str, accept: str) -> bytes:
        headers = {"Accept": accept}
        if authorization := await self._access.authorization():
            headers["Authorization"] = authorization
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._rest.request(  # type: ignore[no-untyped-call]  # the library has no types
                    "GET",
                    self.url + path,
                    headers=headers,
                    _request_timeout=aiohttp.ClientTimeout(total=self._timeout),
                )
                data: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            kind = str(error) or type(error).__name__
            raise Unavailable(f"{self.url} did not answer: {kind}") from error
        if response.status == 410:
            raise ListExpired(f"{self.url}: the revision has been compacted away")
        if response.status == 404:
            raise NotFound(f"{self.url}: there is no {_plain(path)}", status=404)
        if response.status >= 400:
            raise Unavailable(
                f"{self.url} answers {response.status} to {_plain(path)}", status=response.status
            )
        return data


def _plain(path: str) -> str:
    return path.partition("?")[0]

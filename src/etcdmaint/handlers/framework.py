"""How kopf is to behave in this operator: settings, login, patience. Nothing about any kind.

Reasons in short: every write but the finalizer is our own, so kopf keeps no progress; a Kubernetes API
that is away or answers 401 must never end the process, so it is asked again for ever; and election is
ours, so there is no peering.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import aiohttp
import kopf

from etcdmaint.api.names import FINALIZER
from etcdmaint.kube.access import ApiAccess
from etcdmaint.kube.resources import FIELD_MANAGER

_ANNOTATIONS = FINALIZER.partition("/")[0]
_CREDENTIALS_KEEP = timedelta(minutes=10)
_AT_ONCE = 16
_PATIENCE = 30.0
"""Seconds that a request of kopf's may take, once it has its place."""


class EverMorePatience:
    """Pauses between attempts, without end: doubling to 30 s, jittered. May be iterated again."""

    def __iter__(self) -> Iterator[float]:
        pause = 0.5
        while True:
            yield pause * random.uniform(0.75, 1.25)  # noqa: S311  # to spread the load
            pause = min(30.0, pause * 2)


class _NoProgress(kopf.AnnotationsProgressStorage):
    """Keeps nothing of a handler's progress on an object: ours begin anew, and need none."""

    def store(self, **_: object) -> None:
        """Forget it."""


class _NoDiffBase(kopf.AnnotationsDiffBaseStorage):
    """Keeps no copy of a spec on its object: nobody asks what has changed."""

    def store(self, **_: object) -> None:
        """Forget it."""


def make_settings(*, instance: str, namespaces: Sequence[str]) -> kopf.OperatorSettings:
    """The settings, in force before kopf's first request."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = _NoProgress(prefix=_ANNOTATIONS, v1=False)
    settings.persistence.diffbase_storage = _NoDiffBase(prefix=_ANNOTATIONS, v1=False)
    settings.posting.enabled = False
    settings.posting.reporting_component = FIELD_MANAGER
    settings.posting.reporting_instance = instance
    settings.queueing.error_delays = (1, 2, 3, 5, 8, 13, 21, 34, 60)
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    # The turnstile's: kopf would count the wait for a place, and send whoever waits long to the end.
    settings.networking.request_timeout = None
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = EverMorePatience()
    settings.networking.enforce_retry_after = True
    settings.networking.trust_env = False
    # With Roles only there are no rights to list kinds or namespaces.
    settings.scanning.disabled = bool(namespaces)
    settings.execution.default_backoff = 15
    settings.background.cancellation_polling = 1
    settings.background.instant_exit_zero_time_cycles = 50
    return settings


class _Connection(kopf.ConnectionInfo):
    """What kopf connects with; on Python 3.13 and later it verifies as our own requests do."""

    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


class Turnstile:
    """Lets only so many of kopf's requests of each verb through at a time; watches stay, and go past it.

    For a thousand new objects kopf would open a thousand connections, each of a third of a MiB. By verb,
    so that nothing is read late because writes hang in somebody's webhook.
    """

    def __init__(self, connector: aiohttp.BaseConnector, at_once: int) -> None:
        self._connector = connector
        self._places = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(at_once))

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Wait for a place, and keep it until the answer is there, or takes too long: TimeoutError."""
        if request.url.query.get("watch") == "true":
            return await handler(request)
        async with self._places[request.method]:
            if self._connector.closed:
                # kopf has logged in anew meanwhile: it asks again there, and for this alone.
                raise aiohttp.ClientConnectionError("the session was closed")
            async with asyncio.timeout(_PATIENCE):
                return await handler(request)


async def whole_answer(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Read an answer to its end, as long as kopf still asks again when that fails; watches have none.

    kopf reads it later, and takes an API server that ends in the middle, its own new login at that moment
    or a gateway's page for the end of everything: the operator ended.
    """
    response = await handler(request)
    if response.status < 400 and response.content_type != "application/json":
        response.close()
        raise aiohttp.ClientConnectionError(f"the answer is {response.content_type}")
    if request.url.query.get("watch") == "true":
        return response
    try:
        await response.read()
    except aiohttp.ClientPayloadError as error:
        raise aiohttp.ClientConnectionError(f"the answer was cut short: {error}") from error
    return response


def register_login(registry: kopf.OperatorRegistry, access: ApiAccess) -> None:
    """Log in with the very credentials that our own requests use.

    They expire after ten minutes: a projected token is rotated, and a 401 that was a mistake must not
    end the operator.
    """
    again = False

    @kopf.on.login(registry=registry, errors=kopf.ErrorsMode.TEMPORARY, backoff=5)
    async def login(**_: object) -> kopf.AiohttpSession:
        nonlocal again
        if again:  # otherwise a server that refuses is asked as fast as it answers
            await asyncio.sleep(random.uniform(0.5, 1.5))  # noqa: S311  # to spread the load
        again = True
        scheme, _space, token = (await access.authorization()).partition(" ")
        connection = _Connection(
            server=access.server,
            ca_path=access.configuration.ssl_ca_cert or None,
            insecure=access.insecure or None,
            scheme=scheme.capitalize() if token else None,
            token=token or None,
            certificate_path=access.configuration.cert_file or None,
            private_key_path=access.configuration.key_file or None,
        )
        connector = aiohttp.TCPConnector(limit=0, ssl=connection.as_ssl_context())
        return kopf.AiohttpSession(
            server=access.server,
            default_namespace=access.namespace,
            expiration=datetime.now(UTC) + _CREDENTIALS_KEEP,
            aiohttp_session=aiohttp.ClientSession(
                connector=connector,
                headers=connection.as_http_headers(),
                # The one that the kubeconfig names; those of the environment are not used.
                proxy=access.configuration.proxy or None,
                trust_env=False,
                middlewares=(Turnstile(connector, _AT_ONCE), whole_answer),
            ),
        )

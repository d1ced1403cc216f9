"""Answers /metrics, /healthz and /readyz on one port.

It must be started before kopf, which cancels every task that began after it. This module must not
know what is checked or counted.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler

from etcdmaint.errors import InvalidInput
from etcdmaint.observability.liveness import Checks
from etcdmaint.quantities import quoted


def application(registry: CollectorRegistry, live: Checks, ready: Checks) -> web.Application:
    """The three paths; /healthz fails by the checks of `live`, /readyz by those of `ready`."""
    app = web.Application()
    app.router.add_get("/metrics", make_aiohttp_handler(registry))
    app.router.add_get("/healthz", _probe(live))
    app.router.add_get("/readyz", _probe(ready))
    return app


@asynccontextmanager
async def serving(app: web.Application, listen_address: str) -> AsyncIterator[int]:
    """Listen while the context is open; gives the port, which the kernel chose where 0 was asked.

    Raises InvalidInput for an address that cannot be read or cannot be had.
    """
    host, port = listen_at(listen_address)
    # Neither an access log nor a wait for scrapers that keep their connection: nothing here is
    # worth delaying the end of the process.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host or None, port)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:
            fault = "names no host of this machine"
            if isinstance(error, OSError) and not isinstance(error, socket.gaierror):
                fault = f"cannot be listened at: {os.strerror(error.errno or 0).lower()}"
            raise InvalidInput("--listen-address", f"{quoted(listen_address)} {fault}") from None
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def listen_at(text: str, field: str = "--listen-address") -> tuple[str, int]:
    """Host and port of `0.0.0.0:8080`, `:8080` or `[::1]:8080`; raises InvalidInput."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(field, f"{text!r} is not host:port with a port from 0 to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    if not bracketed and ":" in host:
        raise InvalidInput(field, f"{text!r}: an IPv6 address goes in brackets, as in [::1]:8080")
    return (host[1:-1] if bracketed else host), int(port)


def _probe(checks: Checks) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        failures = checks.failures()
        if not failures:
            return web.Response(text="ok\n")
        lines = [f"{name}: {fault}\n" for name, fault in failures.items()]
        return web.Response(status=503, text="".join(lines))

    return answer

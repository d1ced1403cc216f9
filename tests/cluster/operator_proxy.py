"""Stands between an operator and the API server: sees each write, and lets a test act around it.

The operator notices nothing but time. So a test can end it exactly before or after a certain write has
been carried out, make every write meet a conflict, or stall a member after the gate and before the RPC.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from tests.controlplane.apiserver import ControlPlane

_HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive"}


@dataclass(frozen=True, slots=True)
class Write:
    """One request that changes something."""

    method: str
    path: str
    body: Any

    @property
    def is_status(self) -> bool:
        """Whether it writes a status."""
        return self.path.endswith("/status")

    @property
    def counts(self) -> bool:
        """Whether it is one of the writes that a run may cost: no Event and no Lease."""
        return "/events" not in self.path and "/leases" not in self.path

    @property
    def name(self) -> str:
        """The object's name."""
        return self.path.removesuffix("/status").rpartition("/")[2]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The members' rows in a status."""
        found = self.body.get("status", {}).get("members") if isinstance(self.body, dict) else None
        return found or []

    @property
    def phase(self) -> str:
        """The phase in a status, "" where it is not changed."""
        return str(self.body.get("status", {}).get("phase", "")) if self.is_status else ""

    @property
    def in_flight(self) -> str:
        """The member whose intent is written, "" for none."""
        for row in self.rows:
            if row.get("outcome") == "Pending" and row.get("reason") == "InFlight":
                return str(row["name"])
        return ""


Hook = Callable[[Write], None]


class ApiProxy:
    """`before` and `after` are called in the request's own thread, around its being carried out."""

    def __init__(self, plane: ControlPlane, folder: Path, user: str = "operator") -> None:
        upstream = urlsplit(plane.url)
        assert upstream.hostname is not None
        self._upstream = (upstream.hostname, upstream.port)
        self._context = ssl.create_default_context(cadata=plane.authority.certificate.decode())
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.writes: list[Write] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        config = json.loads(plane.kubeconfig(user).read_text())
        config["clusters"][0]["cluster"] = {
            "server": f"http://127.0.0.1:{self._server.server_address[1]}"
        }
        self.kubeconfig = folder / "proxied.kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))

    def status_writes(self, name: str) -> list[Write]:
        """What was written into the status of an object."""
        return [write for write in self.writes if write.is_status and write.name == name]

    def run_writes(self, name: str) -> list[Write]:
        """Every write to one object that counts."""
        return [write for write in self.writes if write.counts and write.name == name]

    def connect(self) -> http.client.HTTPSConnection:
        """To the API server."""
        host, port = self._upstream
        return http.client.HTTPSConnection(host, port, context=self._context, timeout=400)

    def note(self, write: Write) -> None:
        """Remember a write that has been carried out."""
        with self._lock:
            self.writes.append(write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    proxy: ApiProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are killed here all the time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def do_GET(self) -> None:
        self._forward(None)

    def do_POST(self) -> None:
        self._change()

    def do_PUT(self) -> None:
        self._change()

    def do_PATCH(self) -> None:
        self._change()

    def do_DELETE(self) -> None:
        self._change()

    def _change(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(data) if data else None
        except ValueError:
            body = None
        write = Write(self.command, self.path.partition("?")[0], body)
        proxy = self.server.proxy
        if proxy.before is not None:
            proxy.before(write)
        if self._hung_up():
            # The operator was ended before its request was carried out.
            self.close_connection = True
            return
        self._forward(data, write)

    def _hung_up(self) -> bool:
        self.connection.setblocking(False)
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        finally:
            self.connection.setblocking(True)

    def _forward(self, data: bytes | None, write: Write | None = None) -> None:
        upstream = self.server.proxy.connect()
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
            upstream.request(self.command, self.path, body=data, headers=headers)
            answer = upstream.getresponse()
            proxy = self.server.proxy
            if write is not None and answer.status < 400:
                proxy.note(write)
                if proxy.after is not None:
                    proxy.after(write)
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP and name.lower() not in ("date", "server"):
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while chunk := answer.read1(65536):
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            upstream.close()

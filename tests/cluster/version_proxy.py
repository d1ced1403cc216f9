"""Stands before a real kube-apiserver and answers one question in its place: of which release it is.

No kube-apiserver with KEP-6264 exists yet. What the operator would do in front of one is shown by this
proxy, which says at /version whatever a test wants; every other request is the real one's. It can also
be away.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.operator_proxy import ApiProxy, _Handler
from tests.controlplane.apiserver import ControlPlane


def version(release: str, oldest: str, emulation: str = "") -> dict[str, str]:
    """The answer of a release such as `1.38`, with that minimum compatibility version."""
    answer = {"gitVersion": f"v{release}.0"}
    for prefix, text in (
        ("", release),
        ("emulation", emulation or release),
        ("minCompatibility", oldest),
    ):
        major, minor = text.split(".")
        for name, value in (("major", major), ("minor", minor)):
            answer[f"{prefix}{name.capitalize()}" if prefix else name] = value
    return answer


class VersionProxy(ApiProxy):
    """`version` None: the real answer. `away`: every request's connection is closed unanswered."""

    def __init__(self, plane: ControlPlane, folder: Path, user: str = "operator") -> None:
        super().__init__(plane, folder, user)
        self.version: dict[str, str] | None = None
        self.away = False
        self._server.RequestHandlerClass = _VersionHandler


class _VersionHandler(_Handler):
    def parse_request(self) -> bool:
        proxy = self.server.proxy
        if isinstance(proxy, VersionProxy) and proxy.away:
            self.close_connection = True
            return False
        return super().parse_request()

    def do_GET(self) -> None:  # noqa: N802  # http.server's own name
        proxy = self.server.proxy
        if self.path != "/version" or not isinstance(proxy, VersionProxy) or not proxy.version:
            super().do_GET()
            return
        body = json.dumps(proxy.version).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

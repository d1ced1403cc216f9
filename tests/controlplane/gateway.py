"""The JSON side of one etcd member, spoken with nothing but the standard library.

The tests' own hand on etcd must not be the client under test: a fault in that one would hide
itself. So the control plane asks members over etcd's HTTP gateway, one member at a time.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class GatewayError(Exception):
    """etcd said no. ``code`` is the gRPC status code, 0 where it gave none."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.message = message


# What a member that is starting, busy or gone makes of a call.
UNANSWERED = (OSError, http.client.HTTPException, GatewayError)


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What a member says of itself (Maintenance/Status). Sizes in bytes."""

    member_id: int
    leader: int
    version: str
    db_size: int
    db_size_in_use: int
    revision: int
    raft_term: int
    raft_index: int
    raft_applied_index: int
    is_learner: bool
    errors: tuple[str, ...]


class Gateway:
    """One member's HTTP endpoint. Its connections are kept open and may be used by any thread."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        self.context = context
        # The user and password to act as once etcd's authentication is on.
        self.credentials: tuple[str, str] | None = None
        # Where to log in, if not here: a learner does not take log-ins, but knows the tokens.
        self.log_in_at: Gateway | None = None
        self._token: str | None = None
        # Idle connections. A deque's append and pop are atomic: threads share them as they come.
        self._idle: deque[http.client.HTTPConnection] = deque()

    def post(self, path: str, body: Mapping[str, Any], timeout: float = 10.0) -> dict[str, Any]:
        """Call one RPC by its gateway path, for instance ``/v3/kv/range``."""
        if self.credentials is None:
            return self._post(path, body, timeout)
        if self._token is not None:
            try:
                return self._post(path, body, timeout)
            except GatewayError as error:
                # A restarted member has forgotten the tokens it gave out.
                if "invalid auth token" not in error.message:
                    raise
        name, password = self.credentials
        self._token = None
        answer = (self.log_in_at or self)._post(
            "/v3/auth/authenticate", {"name": name, "password": password}, timeout
        )
        self._token = str(answer["token"])
        return self._post(path, body, timeout)

    def get(self, path: str, timeout: float = 10.0) -> tuple[int, str]:
        """Fetch a plain page such as ``/metrics``; its HTTP status and text."""
        status, content = self._exchange("GET", path, None, timeout)
        return status, content.decode()

    def forget_token(self) -> None:
        """Log in anew before the next request."""
        self._token = None

    def headers(self) -> dict[str, str]:
        """What to send with a request of one's own."""
        return {"Authorization": self._token} if self._token else {}

    def close(self) -> None:
        """Drop the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def status(self, timeout: float = 10.0) -> MemberStatus:
        """Ask Maintenance/Status; it does not answer while the member defragments."""
        answer = self.post("/v3/maintenance/status", {}, timeout)
        header = answer["header"]
        return MemberStatus(
            member_id=int(header["member_id"]),
            leader=int(answer.get("leader", 0)),
            version=str(answer["version"]),
            db_size=int(answer.get("dbSize", 0)),
            db_size_in_use=int(answer.get("dbSizeInUse", 0)),
            revision=int(header.get("revision", 0)),
            raft_term=int(answer.get("raftTerm", 0)),
            raft_index=int(answer.get("raftIndex", 0)),
            raft_applied_index=int(answer.get("raftAppliedIndex", 0)),
            is_learner=bool(answer.get("isLearner", False)),
            errors=tuple(answer.get("errors", ())),
        )

    def metrics(self, timeout: float = 30.0) -> dict[str, float]:
        """The member's own /metrics: each sample's name with its labels, as etcd writes it."""
        _, text = self.get("/metrics", timeout)
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if line[:1] not in {"#", ""})
        return {name: float(value) for name, value in samples}

    def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """Write one key; the revision it got."""
        answer = self.post("/v3/kv/put", {"key": text(key), "value": text(value), "lease": lease})
        return int(answer["header"]["revision"])

    def get_value(self, key: bytes) -> bytes | None:
        """Read one key, linearizably; None if there is none."""
        answer = self.post("/v3/kv/range", {"key": text(key)})
        found = answer.get("kvs", [])
        return base64.b64decode(found[0].get("value", "")) if found else None

    def compact(self, revision: int, *, physical: bool = True) -> None:
        """Drop what is older than the revision; ``physical`` waits until it is gone."""
        body = {"revision": revision, "physical": physical}
        self.post("/v3/kv/compaction", body, timeout=120.0)

    def _post(self, path: str, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        status, content = self._exchange("POST", path, json.dumps(body).encode(), timeout)
        try:
            answer = json.loads(content) if content else {}
        except ValueError:
            answer = {"message": content.decode(errors="replace")}
        if status != http.client.OK:
            raise GatewayError(int(answer.get("code", 0)), str(answer.get("message", content)))
        assert isinstance(answer, dict)
        return answer

    def _exchange(
        self, method: str, path: str, body: bytes | None, timeout: float
    ) -> tuple[int, bytes]:
        while True:
            connection, used = self._take(timeout)
            try:
                connection.request(method, path, body, self.headers())
                with connection.getresponse() as answer:
                    status, content = answer.status, answer.read()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                connection.close()
                # A kept one that the server closed meanwhile, for instance by a restart.
                if not used:
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                self._idle.append(connection)
                return status, content

    def _take(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        """An open connection that is idle, or a new one; and whether it was used before."""
        try:
            kept = self._idle.pop()
        except IndexError:
            if self.context is None:
                return http.client.HTTPConnection(self.host, self.port, timeout=timeout), False
            return (
                http.client.HTTPSConnection(
                    self.host, self.port, timeout=timeout, context=self.context
                ),
                False,
            )
        kept.timeout = timeout
        if kept.sock is not None:
            kept.sock.settimeout(timeout)
        return kept, True


def text(raw: bytes) -> str:
    """Bytes as the gateway's JSON carries them."""
    return base64.b64encode(raw).decode()

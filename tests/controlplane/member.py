"""One etcd member: its process, its folder, and its own account of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .gateway import UNANSWERED, Gateway, MemberStatus
from .processes import Server

_DEFRAG_COUNT = "etcd_disk_backend_defrag_duration_seconds_count"
_DEFRAG_INFLIGHT = "etcd_disk_defrag_inflight"


@dataclass(slots=True)
class Member:
    """A member of a cluster, running or not.

    ``client_url`` is where it really listens, whatever it advertises.
    """

    name: str
    client_url: str
    peer_url: str
    data_dir: Path
    server: Server
    gateway: Gateway
    advertised: tuple[str, ...]
    metrics_url: str | None = None
    _id: int | None = field(default=None, init=False)

    @property
    def id(self) -> int:
        """Its member id, as etcd counts (an unsigned 64-bit number)."""
        if self._id is None:
            self._id = self.status().member_id
        return self._id

    @property
    def id_hex(self) -> str:
        """Its member id as etcdctl writes it."""
        return f"{self.id:x}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self.server.pid

    @property
    def log(self) -> Path:
        """The file with everything it has said."""
        return self.server.log

    @property
    def answers(self) -> bool:
        """Whether it can be expected to answer: running and not paused."""
        return self.server.running and not self.server.paused

    @property
    def db_file(self) -> Path:
        """Its database."""
        return self.data_dir / "member" / "snap" / "db"

    def start(self, timeout: float = 60.0) -> None:
        """Start it again after a stop or kill, and wait until it serves reads."""
        self.server.start()
        self.wait_serving(timeout)

    def wait_serving(self, timeout: float = 60.0) -> None:
        """Wait until it answers a Status and knows a leader."""
        self.server.wait_until(self._serves, "serving", timeout)

    def stop(self) -> None:
        """End it politely."""
        self.server.stop()
        self.gateway.close()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.server.kill()
        self.gateway.close()

    def pause(self) -> None:
        """Make it unreachable without ending it (SIGSTOP)."""
        self.server.pause()

    def resume(self) -> None:
        """Let it go on after ``pause``."""
        self.server.resume()

    def status(self, timeout: float = 10.0) -> MemberStatus:
        """Its Maintenance/Status."""
        status = self.gateway.status(timeout)
        # Known from now on, also while it does not answer.
        self._id = status.member_id
        return status

    def metrics(self) -> dict[str, float]:
        """Its /metrics: name with labels to value."""
        return self.gateway.metrics()

    def metric(self, name: str) -> float:
        """One metric, summed over its labels; 0 if it is not there."""
        return sum(v for sample, v in self.metrics().items() if sample.split("{")[0] == name)

    def defrag_count(self) -> int:
        """How many defragmentations this process has finished: what a test counts RPCs by."""
        return int(self.metric(_DEFRAG_COUNT))

    def defragmenting(self) -> bool:
        """Whether a defragmentation is going on in it."""
        return self.metric(_DEFRAG_INFLIGHT) > 0

    def log_text(self) -> str:
        """Everything it has said so far."""
        return self.server.log_text()

    def _serves(self) -> bool:
        try:
            return self.status(1.0).leader != 0
        except UNANSWERED:
            return False

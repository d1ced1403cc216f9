"""Show the whole on real parts: an etcd that has grown, the operator, an EtcdDefrag, its outcome.

Run by `make demo`. It ends everything that it started, also on Ctrl-C; with KEEP=1 it stays until
Ctrl-C, so that a second terminal can look around. Its exit code is 0 only if etcd itself says that
every member shrank, by one Defragment each, and the lease that was kept alive meanwhile is alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.controlplane import build  # noqa: E402  # the path is needed first
from tests.controlplane.apiserver import ControlPlane  # noqa: E402  # the path is needed first
from tests.controlplane.build import ProgramUnavailable  # noqa: E402  # the path is needed first
from tests.controlplane.etcd import EtcdCluster  # noqa: E402  # the path is needed first
from tests.controlplane.gateway import UNANSWERED, GatewayError, text  # noqa: E402  # the path is needed first
from tests.controlplane.ports import Ports  # noqa: E402  # the path is needed first
from tests.controlplane.processes import NotReady, Server  # noqa: E402  # the path is needed first

MIB = 1 << 20
LIVE_BYTES, DELETED_BYTES = 20_000_000, 100_000_000
FREE_SPACE_ABOVE = 32 * MIB
RUN_LIMIT_SECONDS = 300.0

CHART = ROOT / "deploy" / "chart" / "etcdmaint"
EXAMPLES = ROOT / "examples"
RELEASE, SYSTEM_NAMESPACE = "etcdmaint", "etcdmaint-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{RELEASE}"
CRDS = (
    "etcddefrags.etcd-operator.cozystack.io",
    "etcdconnections.etcdmaint.io",
    "storagecompressionconfigurations.etcdmaint.io",
)
EXAMPLE_PORTS = (12379, 22379, 32379)

COMPACTION_SECONDS = 6
"""The API server's own interval; 5 minutes in life."""

TTL_SECONDS, BEAT_SECONDS = 5, 0.5
DEFRAG_SECONDS = "etcd_disk_backend_defrag_duration_seconds_sum"
NAME_WIDTH = 15


class DemoFailed(Exception):
    """What the demo is to show did not come true."""


def say(words: str) -> None:
    """One line of the story."""
    print(words, flush=True)


def step(words: str) -> None:
    """What comes now."""
    say(f"\n\033[1m==> {words}\033[0m" if sys.stdout.isatty() else f"\n==> {words}")


class Client:
    """An application of this etcd: it keeps a lease alive, and it writes.

    It does what a careful client does: when one member does not answer within a second it asks the
    next. Only under writes can a leader that is busy defragmenting lose a lease.
    """

    KEY = b"demo/alive"

    def __init__(self, cluster: EtcdCluster) -> None:
        self._doors = [member.gateway for member in cluster.members]
        answer = self._doors[0].post("/v3/lease/grant", {"TTL": TTL_SECONDS})
        self.lease = int(answer["ID"])
        self._doors[0].put(self.KEY, b"yes", lease=self.lease)
        self.beats = self.writes = 0
        self.lost = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(10)

    @property
    def alive(self) -> bool:
        """Whether lease and key were there all the time and still are."""
        return not self.lost and self._doors[0].get_value(self.KEY) == b"yes"

    def _live(self) -> None:
        door, beaten_at = 0, 0.0
        while not self._end.wait(0.05):
            try:
                self._doors[door].post(
                    "/v3/kv/put", {"key": text(b"demo/write"), "value": text(b"x")}, 1.0
                )
                self.writes += 1
                # By the clock: on a slow machine even a few writes take as long as the lease.
                if time.monotonic() - beaten_at >= BEAT_SECONDS:
                    self._beat(door)
                    beaten_at = time.monotonic()
            except UNANSWERED:
                door = (door + 1) % len(self._doors)

    def _beat(self, door: int) -> None:
        answer = self._doors[door].post("/v3/lease/keepalive", {"ID": str(self.lease)}, 1.0)
        if "result" not in answer:
            raise GatewayError(0, str(answer))
        if int(answer["result"].get("TTL", 0)) > 0:
            self.beats += 1
        else:
            self.lost = True
            self._end.set()


def main() -> int:
    """Tell the story; 130 when interrupted."""

    def interrupted(*_: object) -> None:
        # A second one must not interrupt the tidying up.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    try:
        with tempfile.TemporaryDirectory(prefix="etcdmaint-demo-") as folder:
            tell(Path(folder), keep=os.environ.get("KEEP", "") not in ("", "0"))
    except KeyboardInterrupt:
        say("\ninterrupted: everything that was started has been ended")
        return 130
    except subprocess.CalledProcessError as error:
        say(f"\n{Path(error.cmd[0]).name} failed: {error.stderr or error.stdout}")
        return 1
    except (DemoFailed, ProgramUnavailable, NotReady, TimeoutError) as error:
        say(f"\n{error}")
        return 1
    return 0


def tell(folder: Path, *, keep: bool) -> None:
    """From nothing to the table."""
    say(f"Data and logs lie in {folder} until the demo has ended.")
    step("Programs: found, or built once (about ten minutes on two cores) into a cache")
    for name in ("etcd", "kube-apiserver", "kubectl", "helm"):
        say(f"{name:{NAME_WIDTH}}{build.program(name, say)}")
    with contextlib.ExitStack() as stack:
        step("A kube-apiserver on an etcd of its own")
        plane = stack.enter_context(
            ControlPlane(folder / "kubernetes", compaction_interval=f"{COMPACTION_SECONDS}s")
        )
        say(f"{plane.url}, ready")
        step("Another etcd with three members, where much was written and then deleted")
        cluster = stack.enter_context(EtcdCluster(folder / "etcd"))
        cluster.fill(bytes_live=LIVE_BYTES, bytes_deleted=DELETED_BYTES)
        etcdmaint("status", endpoints(cluster))
        step(f"helm install {RELEASE} --namespace {SYSTEM_NAMESPACE}")
        install(plane, folder)
        step(f"The operator, as {ACCOUNT}: exactly the rights that the chart gives it")
        operator = stack.enter_context(running_operator(plane, folder, stack))
        client = stack.enter_context(Client(cluster))
        before = {member.name: member.status().db_size for member in cluster.members}
        outcome = run(plane, cluster, operator, folder)
        problems = judge(outcome, cluster, before, client)
        show(outcome, cluster, client)
        problems = [*problems, *compaction(plane), *compression(plane, operator)]
        for problem in problems:
            say(f"NOT AS IT SHOULD BE: {problem}")
        if keep:
            stay(plane, cluster, operator)
    if problems:
        raise DemoFailed("the demo failed")
    step("Done: everything that was started has been ended")


def endpoints(cluster: EtcdCluster) -> str:
    """The flag that leads to the cluster."""
    return f"--endpoints={','.join(cluster.client_urls)}"


def etcdmaint(*arguments: str) -> None:
    """Show a command and what it says."""
    say(f"$ etcdmaint {' '.join(arguments)}")
    subprocess.run([sys.executable, "-m", "etcdmaint", *arguments], check=True, timeout=120)


def install(plane: ControlPlane, folder: Path) -> None:
    """Install the chart as an administrator would. No node is here to run its Pods."""
    homes = {f"HELM_{kind}_HOME": str(folder / "helm" / kind) for kind in ("CACHE", "DATA")}
    command = [
        str(build.program("helm")),
        "install",
        RELEASE,
        str(CHART),
        f"--namespace={SYSTEM_NAMESPACE}",
        "--create-namespace",
        f"--kubeconfig={plane.kubeconfig()}",
    ]
    environment = {**os.environ, **homes, "HELM_CONFIG_HOME": str(folder / "helm" / "CONFIG")}
    subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120, env=environment
    )
    for crd in CRDS:
        plane.wait_established(crd)
        say(f"{crd} is served")


@contextlib.contextmanager
def running_operator(
    plane: ControlPlane, folder: Path, stack: contextlib.ExitStack
) -> Iterator[Server]:
    """`etcdmaint operator` in a process, since there is no node for its Pod."""
    port = stack.enter_context(Ports()).take()
    kubeconfig = plane.kubeconfig(ACCOUNT, groups=("system:serviceaccounts",))
    arguments = [
        f"--kubeconfig={kubeconfig}",
        f"--listen-address=127.0.0.1:{port}",
        f"--lease-namespace={SYSTEM_NAMESPACE}",
        f"--lease-name={RELEASE}",
    ]
    say(f"$ etcdmaint operator {' '.join(arguments)}")
    server = Server(
        "operator",
        [sys.executable, "-m", "etcdmaint", "operator", *arguments],
        folder / "operator.log",
    )
    with server:
        server.wait_until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "ready", 120.0)
        say(f"ready; its log is {server.log}")
        yield server


def answers(url: str) -> bool:
    """Whether a probe says yes."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def run(plane: ControlPlane, cluster: EtcdCluster, operator: Server, folder: Path) -> Any:
    """Apply the examples and follow the run to its end; its status."""
    step("kubectl apply -f examples/etcdconnection.yaml -f examples/etcddefrag.yaml")
    connection = (EXAMPLES / "etcdconnection.yaml").read_text()
    for port, url in zip(EXAMPLE_PORTS, cluster.client_urls, strict=True):
        written = f"http://127.0.0.1:{port}"
        if written not in connection:
            raise DemoFailed(f"examples/etcdconnection.yaml does not name {written}")
        connection = connection.replace(written, url)
    plane.apply(connection)
    plane.apply((EXAMPLES / "etcddefrag.yaml").read_text())
    step("kubectl get edf --watch")
    watch = Server(
        "kubectl",
        plane.kubectl_command("get", "edf", "demo", "--watch", "--output=wide"),
        folder / "watch.log",
    )
    shown = 0

    def follow() -> Any:
        nonlocal shown
        lines = watch.log_text().splitlines()
        for line in lines[shown:]:
            say(line)
        shown = len(lines)
        status = get(plane, "edf", "demo").get("status", {})
        # What kubectl prints may come a little later than what we see.
        phase = status.get("phase")
        over = phase in ("Complete", "Failed") and any(phase in line for line in lines)
        return status if over else None

    with watch:
        return operator.wait_until(follow, "done with the run", RUN_LIMIT_SECONDS)


def get(plane: ControlPlane, *what: str) -> Any:
    """An object as kubectl gives it."""
    return json.loads(plane.kubectl("get", *what, "--output=json").stdout)


def judge(
    outcome: Any, cluster: EtcdCluster, before: dict[str, int], client: Client
) -> Sequence[str]:
    """What did not come true, by etcd's own word."""
    problems = []
    if outcome["phase"] != "Complete":
        problems.append(f"the run is {outcome['phase']}: {outcome.get('conditions')}")
    for member in cluster.members:
        shrunk = before[member.name] - member.status().db_size
        if shrunk < FREE_SPACE_ABOVE:
            problems.append(f"{member.name} shrank by {shrunk} bytes only")
        if member.defrag_count() != 1:
            problems.append(f"{member.name} was defragmented {member.defrag_count()} times")
    if not client.alive:
        problems.append(f"the lease of {TTL_SECONDS} s was lost")
    return problems


def show(outcome: Any, cluster: EtcdCluster, client: Client) -> None:
    """The table: what the run says, and beside it what etcd says now."""
    step("Outcome")
    columns = ("MEMBER", "ROLE", "OUTCOME", "BEFORE", "AFTER", "RECLAIMED", "TOOK", "ETCD SAYS")
    now = {member.name: member.status().db_size for member in cluster.members}
    # The run's own times are Kubernetes', in whole seconds.
    took = {member.name: member.metric(DEFRAG_SECONDS) for member in cluster.members}
    rows = [
        (
            row["name"],
            row.get("role", ""),
            row["outcome"],
            size(row.get("dbSizeBefore")),
            size(row.get("dbSizeAfter")),
            size(row.get("reclaimedBytes")),
            f"{took.get(row['name'], 0):.2f} s",
            size(now.get(row["name"])),
        )
        for row in sorted(outcome.get("members", ()), key=lambda row: str(row["name"]))
    ]
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for cells in (columns, *rows):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        say("   ".join(padded).rstrip())
    say("")
    lease = "alive" if client.alive else "LOST"
    say(
        f"A lease of {TTL_SECONDS} s, kept alive under {client.writes} writes meanwhile: {lease} "
        f"after {client.beats} renewals"
    )
    say(f"Reclaimed in all: {outcome.get('reclaimed', '?')}")


def compaction(plane: ControlPlane) -> Sequence[str]:
    """Two rounds of the election beside the API server: one is won, one is lost."""
    step(f"Compaction, beside a kube-apiserver that compacts every {COMPACTION_SECONDS} s")
    problems = []
    # Whoever asks for less history than the API server wins, unless its tick falls into that second.
    for interval, wanted, tries in ((1, "won: ", 8), (2 * COMPACTION_SECONDS + 1, "lost: ", 1)):
        command = ["compact", "once", f"--interval={interval}s", endpoints(plane.etcd)]
        say(f"$ etcdmaint {' '.join(command)}")
        for _ in range(tries):
            done = subprocess.run(
                [sys.executable, "-m", "etcdmaint", *command],
                check=True,
                timeout=120,
                capture_output=True,
                text=True,
            )
            if wanted in done.stdout:
                break
        else:
            problems.append(f"a round of {interval} s was not {wanted.strip(': ')}")
        say(done.stdout.rstrip())
    return problems


def compression(plane: ControlPlane, operator: Server) -> Sequence[str]:
    """A policy for the API server's own etcd: what becomes of it, and what is stored there."""
    step("kubectl apply -f examples/storagecompressionconfiguration.yaml")
    manifest = (EXAMPLES / "storagecompressionconfiguration.yaml").read_text()
    written = "http://127.0.0.1:2379"
    if written not in manifest:
        raise DemoFailed(f"examples/storagecompressionconfiguration.yaml does not name {written}")
    plane.apply(manifest.replace(written, plane.etcd.client_urls[0]))

    def counted() -> Any:
        status = get(plane, "scconf", "demo").get("status", {})
        return status if status.get("lastAudit") else None

    status = operator.wait_until(counted, "done counting what is stored", 180.0)
    say(plane.kubectl("get", "scconf", "demo").stdout.rstrip())
    say("")
    conditions = {each["type"]: each for each in status["conditions"]}
    for each in conditions.values():
        words = textwrap.wrap(f"{each['reason']}: {each['message']}", 100 - NAME_WIDTH - 10)
        say(f"{each['type']:{NAME_WIDTH}}{each['status']:10}{words[0]}")
        for line in words[1:]:
            say(f"{'':{NAME_WIDTH + 10}}{line}")
    say("")
    for row in status["lastAudit"]["resources"][:5]:
        forms = ", ".join(f"{count} {form}" for form, count in row["forms"].items())
        say(f"{row['resource']:60}{forms}")
    wanted = {"Valid": "True", "Published": "False", "Supported": "False", "Audited": "True"}
    return [
        f"{kind} is {conditions[kind]['status']}: {conditions[kind]['message']}"
        for kind, value in wanted.items()
        if conditions[kind]["status"] != value
    ]


def size(number: int | None) -> str:
    """Mebibytes."""
    return "" if number is None else f"{number / MIB:.1f} Mi"


def stay(plane: ControlPlane, cluster: EtcdCluster, operator: Server) -> None:
    """Leave everything up until Ctrl-C."""
    step("Everything stays up until Ctrl-C. In another terminal:")
    for line in (
        f"cd {ROOT}",
        f"export KUBECONFIG={plane.kubeconfig()}",
        f"export PATH={build.program('kubectl').parent}:{ROOT / '.venv' / 'bin'}:$PATH",
        f"export ETCDCTL_ENDPOINTS={','.join(cluster.client_urls)}",
        "",
        "kubectl get edf,etcdconnection",
        "kubectl describe edf demo              # its conditions and events",
        "kubectl apply -f examples/etcddefrag-dry-run.yaml",
        "kubectl get scconf demo -o yaml        # what is stored in the API server's etcd",
        "etcdmaint status",
        "etcdmaint defrag --all --dry-run",
        f"tail -f {operator.log}",
    ):
        say(f"  {line}".rstrip())
    while operator.running:
        time.sleep(0.5)
    raise DemoFailed(f"the operator has ended; its log is {operator.log}")


if __name__ == "__main__":
    sys.exit(main())

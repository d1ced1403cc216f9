"""The operator as a process of its own, under exactly the rights that the chart gives it."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.ports import Ports
from tests.controlplane.processes import Server, wait_until

ROOT = Path(__file__).parents[2]
LEASE = "etcdmaint"
# What tests need not wait for; what each of them is about it sets itself.
QUICK: dict[str, Any] = {
    "gate_interval": 0.5,
    "queue_interval": 0.2,
    "rpc_timeout": 2.0,
    "metrics_timeout": 1.0,
    "idle_interval": 0.1,
    "missing_grace": 2.0,
    "note_after": 1.0,
}
_RULES = re.compile(r'define "etcdmaint\.watchRules" -}}\n(.*?)\{\{- end', re.DOTALL)
_NUMBERS = itertools.count(1)
_SCANNING = {
    "apiGroups": ["apiextensions.k8s.io"],
    "resources": ["customresourcedefinitions"],
    "verbs": ["list", "watch"],
}


def _rules() -> list[dict[str, Any]]:
    chart = (ROOT / "deploy/chart/etcdmaint/templates/_helpers.tpl").read_text()
    found = _RULES.search(chart)
    assert found is not None, "the chart's rules have moved"
    rules = yaml.safe_load(found[1])
    assert isinstance(rules, list)
    return rules


def _lease_rules() -> list[dict[str, Any]]:
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    return [
        {**lease, "resourceNames": [LEASE], "verbs": ["get", "update"]},
        {**lease, "verbs": ["create"]},
    ]


def _bind(
    plane: ControlPlane, user: str, rules: Sequence[Mapping[str, Any]], name: str, namespace: str
) -> None:
    kind = "Role" if namespace else "ClusterRole"
    group = "rbac.authorization.k8s.io"
    scope = f"/apis/{group}/v1" + (f"/namespaces/{namespace}" if namespace else "")
    metadata = {"name": name}
    role = {"metadata": metadata, "rules": list(rules)}
    binding = {
        "metadata": metadata,
        "roleRef": {"kind": kind, "name": name, "apiGroup": group},
        "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
    }
    plane.api.request("POST", f"{scope}/{kind.lower()}s", role)
    plane.api.request("POST", f"{scope}/{kind.lower()}bindings", binding)
    wait_allowed(plane, user, rules[-1], namespace)


def wait_allowed(
    plane: ControlPlane, user: str, rule: Mapping[str, Any], namespace: str = ""
) -> None:
    """Wait until the authorizer knows a rule of a role that was just bound, so all of that role.

    An API server learns of its roles by watches, as everybody does.
    """
    until(lambda: _allowed(plane, user, rule, namespace), f"{user} has the rights")


def _allowed(plane: ControlPlane, user: str, rule: Mapping[str, Any], namespace: str = "") -> bool:
    return plane.api.may(
        user,
        rule["verbs"][-1],
        rule["apiGroups"][-1],
        rule["resources"][-1],
        namespace,
        rule.get("resourceNames", [""])[-1],
    )


def grant_in(plane: ControlPlane, user: str, namespace: str) -> None:
    """What the chart gives with `watchNamespaces`: Roles, and the Lease in the same namespace."""
    _bind(plane, user, _rules(), f"etcdmaint-{user}", namespace)
    _bind(plane, user, _lease_rules(), f"etcdmaint-{user}-lease", namespace)


def grant_everywhere(plane: ControlPlane, user: str, lease_namespace: str) -> None:
    """What the chart gives without: a ClusterRole, and the Lease in the operator's namespace."""
    _bind(plane, user, [*_rules(), _SCANNING], f"etcdmaint-{user}", "")
    _bind(plane, user, _lease_rules(), f"etcdmaint-{user}-lease", lease_namespace)


def revoke_everywhere(plane: ControlPlane, user: str) -> None:
    """Take the ClusterRole back, and wait until the authorizer knows."""
    scope = "/apis/rbac.authorization.k8s.io/v1"
    for plural in ("clusterrolebindings", "clusterroles"):
        plane.api.request("DELETE", f"{scope}/{plural}/etcdmaint-{user}")
    until(lambda: not _allowed(plane, user, _SCANNING), f"{user} has the rights no more")


class OperatorProcess:
    """`etcdmaint operator` in a subprocess, with a test's timings; ends with `stop` or `with`."""

    def __init__(
        self,
        folder: Path,
        plane: ControlPlane,
        *,
        user: str = "operator",
        lease_namespace: str = "default",
        timing: Mapping[str, Any] | None = None,
        pod: str | None = None,
        kubeconfig: Path | None = None,
        **options: Any,
    ) -> None:
        number = next(_NUMBERS)
        self._ports = Ports()
        self.port = self._ports.take()
        self.log = folder / f"operator-{number}.log"
        given = {
            "kubeconfig": str(kubeconfig or plane.kubeconfig(user)),
            "listen_address": f"127.0.0.1:{self.port}",
            "log_format": "json",
            "lease_namespace": lease_namespace,
            "lease_name": LEASE,
            "lease_duration": 15.0,
            "renew_deadline": 10.0,
            "retry_period": 2.0,
            "timing": {**QUICK, **(timing or {})},
            **options,
        }
        file = folder / f"operator-{number}.json"
        file.write_text(json.dumps(given))
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
        env.pop("POD_NAME", None)
        if pod is not None:
            env["POD_NAME"] = pod
        arguments = [sys.executable, "-m", "tests.cluster.operator_entry", str(file)]
        self.server = Server(f"operator-{number}", arguments, self.log, env)

    def start(self, timeout: float = 90.0) -> Self:
        """Start it and wait until it serves its probes."""
        self.server.start()
        self.server.wait_until(lambda: self.probe("healthz") is not None, "serves", timeout)
        return self

    def probe(self, name: str) -> int | None:
        """The HTTP status of a probe, None while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{name}", timeout=10) as got:
                return int(got.status)
        except urllib.error.HTTPError as error:
            error.close()
            return int(error.code)
        except OSError:
            return None

    def metrics(self) -> str:
        """A scrape."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as got:
            return str(got.read().decode())

    def metric(self, series: str) -> float | None:
        """One sample of a scrape, by its name and labels as they are printed."""
        for line in self.metrics().splitlines():
            if line.startswith(series + " "):
                return float(line.rpartition(" ")[2])
        return None

    def leads(self) -> bool:
        """Whether this replica leads."""
        return self.metric(f'leader_election_master_status{{name="{LEASE}"}}') == 1

    def wait_leading(self, timeout: float = 90.0) -> None:
        """Wait until it does."""
        self.server.wait_until(self.leads, "leads", timeout)

    def kill(self) -> None:
        """End it at once, as the kernel would."""
        self.server.kill()

    def signal_stop(self) -> None:
        """SIGTERM."""
        os.killpg(self.server.pid, signal.SIGTERM)

    def terminate(self, timeout: float = 90.0) -> int:
        """SIGTERM; its exit code."""
        self.signal_stop()
        return self.wait_exit(timeout)

    def wait_exit(self, timeout: float = 90.0) -> int:
        """Wait until it has ended; its exit code."""
        wait_until(lambda: not self.server.running, f"{self.server.name} ends", timeout)
        code = self.server._exit_code()
        assert code is not None
        return code

    def records(self) -> list[dict[str, Any]]:
        """Its log, as far as its lines are whole: the last one may just be written."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = text.split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def complaints(self) -> list[dict[str, Any]]:
        """Records of errors, and of anything that was forbidden."""
        return [
            record
            for record in self.records()
            if record["level"] in ("error", "critical") or "forbidden" in json.dumps(record).lower()
        ]

    def forbidden(self) -> list[str]:
        """Series of requests that were answered 403."""
        return [
            line
            for line in self.metrics().splitlines()
            if line.startswith("etcdmaint_kubernetes_request_duration_seconds_count")
            and 'result="forbidden"' in line
            and not line.endswith(" 0.0")
        ]

    def stop(self) -> None:
        """End it."""
        self.server.kill()
        self._ports.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


Condition = Callable[[], object]


def until(condition: Condition, what: str, timeout: float = 120.0) -> Any:
    """Wait for a condition and give its value."""
    return wait_until(condition, what, timeout)

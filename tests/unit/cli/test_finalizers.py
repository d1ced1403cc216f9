"""Waiting for an operator to let go of its Lease, on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from etcdmaint.cli import finalizers
from etcdmaint.cli.finalizers import ObjectName, wait_for_release

LEASE = ObjectName("sys", "etcdmaint")
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Hands:
    time: float = 0.0

    def monotonic(self) -> float:
        return self.time

    def now(self) -> datetime:
        return START + timedelta(seconds=self.time)

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class Leases:
    """Stands in for the API class: gives what `lease` says of the time."""

    clock: Hands
    lease: Callable[[float], tuple[str, float] | None]
    duration: int = 20
    reads: list[float] = field(default_factory=list)

    async def read_namespaced_lease(self, name: str, namespace: str) -> Any:
        assert (namespace, name) == (LEASE.namespace, LEASE.name)
        self.reads.append(self.clock.time)
        found = self.lease(self.clock.time)
        if found is None:
            raise ApiException(status=404)
        holder, renewed = found
        spec = client.V1LeaseSpec(
            holder_identity=holder,
            lease_duration_seconds=self.duration,
            renew_time=START + timedelta(seconds=renewed),
        )
        return client.V1Lease(spec=spec)


async def waited(
    monkeypatch: pytest.MonkeyPatch, lease: Callable[[float], tuple[str, float] | None]
) -> tuple[bool, float]:
    clock = Hands()
    monkeypatch.setattr(client, "CoordinationV1Api", lambda _api: Leases(clock, lease))
    released = await wait_for_release(None, LEASE, clock, patience=60)  # type: ignore[arg-type]
    return released, clock.time


async def test_no_lease_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await waited(monkeypatch, lambda _now: None) == (True, 0)


async def test_it_waits_until_the_holder_has_drained_and_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = await waited(monkeypatch, lambda now: ("pod-1" if now < 42 else "", now))
    assert released == (True, 42)


async def test_a_lease_that_is_not_renewed_for_its_duration_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its time is long ago by any clock; only that it does not change counts.
    assert await waited(monkeypatch, lambda _now: ("pod-1", -9999)) == (True, 20)


async def test_patience_ends_where_an_operator_keeps_renewing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await waited(monkeypatch, lambda now: ("pod-1", now)) == (False, 60)
    assert capsys.readouterr().err == "pod-1 still holds Lease sys/etcdmaint; going on\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["strip"], "--all"),
        (["strip", "--all", "a/b"], "--all"),
        (["strip", "justaname"], "NAMESPACE/NAME"),
        (["strip", "a/b/c"], "NAMESPACE/NAME"),
        (["strip", "a/.."], "not a name"),
        (["strip", "A/b"], "not a name"),
        (["strip", "a/b", "--namespace", "a"], "--namespace"),
        (["strip", "--all", "--lease", "x"], "NAMESPACE/NAME"),
        (["strip", "--all", "--wait", "soon"], "--wait"),
    ],
)
def test_wrong_usage_names_the_flag(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(finalizers.finalizers, arguments)
    assert done.exit_code == 2
    assert complaint in done.output

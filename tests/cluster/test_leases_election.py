"""The leader Lease on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from etcdmaint.clock import SystemClock
from etcdmaint.errors import LeadershipLost
from etcdmaint.kube.access import load_access
from etcdmaint.kube.client import Json, KubeApi
from etcdmaint.kube.leases import Elector, LeaseTiming
from tests.cluster.operators import grant_in
from tests.controlplane.apiserver import ControlPlane
from tests.etcd.compacting import until

pytestmark = pytest.mark.cluster

# Asked for often, and held so long that no busy machine lets it lapse within a test.
LASTING = LeaseTiming(duration=300.0, renew_deadline=200.0, retry_period=0.5)
BEFORE_IT_LAPSES = 120.0


@pytest.fixture
async def api(plane: ControlPlane, namespace: str) -> AsyncIterator[KubeApi]:
    grant_in(plane, "operator", namespace)
    api = KubeApi(await load_access(str(plane.kubeconfig("operator"))))
    yield api
    await api.close()


def lease(plane: ControlPlane, namespace: str) -> dict[str, Any]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/etcdmaint"
    return plane.api.request("GET", path)


def elector(api: KubeApi, namespace: str, identity: str) -> Elector:
    return Elector(
        api,
        namespace=namespace,
        name="etcdmaint",
        identity=identity,
        timing=LASTING,
        clock=SystemClock(),
    )


async def test_one_leads_and_a_release_hands_over_at_once(
    plane: ControlPlane, namespace: str, api: KubeApi
) -> None:
    """D62: replicas are one holder with different epochs; a clean stop costs no waiting."""
    first, second = elector(api, namespace, "a"), elector(api, namespace, "b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0)
    assert lease(plane, namespace)["spec"]["holderIdentity"] == "a"
    first.assert_held()
    with pytest.raises(LeadershipLost):
        second.assert_held()
    await first.release()
    with pytest.raises(LeadershipLost):
        first.assert_held()
    async with asyncio.timeout(BEFORE_IT_LAPSES):
        await waiting
    found = lease(plane, namespace)
    assert found["spec"]["holderIdentity"] == "b"
    assert found["spec"]["leaseTransitions"] == 1
    uid = found["metadata"]["uid"]
    assert first.holder == second.holder == f"{namespace}/etcdmaint/{uid}"
    assert first.epoch != second.epoch


class Counted(KubeApi):
    """Counts how often the Lease was found there."""

    found = 0

    async def get(self, *what: Any, timeout: float | None = None) -> Json:
        lease = await super().get(*what, timeout=timeout)
        self.found += 1
        return lease


async def test_two_that_begin_at_once_never_both_lead(
    plane: ControlPlane, namespace: str, api: KubeApi
) -> None:
    """The Lease is made and taken by compare and swap."""
    access = await load_access(str(plane.kubeconfig("operator")))
    async with contextlib.AsyncExitStack() as stack:
        doors = [Counted(access) for _ in range(6)]
        for door in doors:
            stack.push_async_callback(door.close)
        electors = [elector(door, namespace, str(n)) for n, door in enumerate(doors)]
        tasks = [asyncio.create_task(each.acquire()) for each in electors]

        def settled() -> bool:
            """Whether each has it, or has seen twice that another one has."""
            pairs = zip(electors, doors, strict=True)
            return all(each.leading or door.found >= 2 for each, door in pairs)

        await until(settled, "each has it or has seen who has", BEFORE_IT_LAPSES)
        assert sum(each.leading for each in electors) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_container_that_was_restarted_goes_on_as_the_same_holder(
    plane: ControlPlane, namespace: str, api: KubeApi
) -> None:
    """Its Lease is not expired yet, and it need not wait."""
    before = elector(api, namespace, "pod-0")
    await before.acquire()
    after = elector(api, namespace, "pod-0")
    async with asyncio.timeout(BEFORE_IT_LAPSES):
        await after.acquire()
    assert lease(plane, namespace)["spec"]["leaseTransitions"] == 0
    assert before.epoch != after.epoch


async def test_a_deleted_lease_is_a_lost_one(
    plane: ControlPlane, namespace: str, api: KubeApi
) -> None:
    """Another Lease would make this process another holder than the slots in etcd say."""
    first = elector(api, namespace, "a")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/etcdmaint"
    plane.api.request("DELETE", path)
    with pytest.raises(LeadershipLost, match="was deleted"):
        async with asyncio.timeout(BEFORE_IT_LAPSES):
            await holding
    with pytest.raises(LeadershipLost):
        first.assert_held()

"""The probes and the metrics, asked over a real socket."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from etcdmaint.errors import InvalidInput
from etcdmaint.observability.catalogue import CATALOGUE, Kind
from etcdmaint.observability.http import application, listen_at, serving
from etcdmaint.observability.liveness import Checks
from etcdmaint.observability.metrics import (
    Compactions,
    Defragmentations,
    EtcdRpcs,
    KubernetesRequests,
    ProcessState,
    StorageCompression,
    new_registry,
)
from etcdmaint.observability.state import (
    ClusterGauges,
    ConfigurationGauges,
    FormGauges,
    MemberGauges,
    ObjectKey,
    RunGauges,
    StateCollector,
)
from tests.unit.observability.promtool import complaints
from tests.unit.observability.test_state import Known


async def asked(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def test_well_is_200_and_a_failing_check_is_503_with_its_name() -> None:
    live, ready = Checks(), Checks()
    app = application(CollectorRegistry(), live, ready)
    async with serving(app, "127.0.0.1:0") as port:
        assert await asked(port, "/healthz") == (200, "ok\n")
        assert await asked(port, "/readyz") == (200, "ok\n")
        live.add("event-loop", lambda: "last beat 31 s ago")
        assert await asked(port, "/healthz") == (503, "event-loop: last beat 31 s ago\n")
        assert await asked(port, "/readyz") == (200, "ok\n")
        ready.add("kubernetes-api", lambda: "not yet")
        assert await asked(port, "/readyz") == (503, "kubernetes-api: not yet\n")


async def test_nothing_listens_any_more_when_the_context_is_left() -> None:
    async with serving(application(CollectorRegistry(), Checks(), Checks()), "127.0.0.1:0") as port:
        pass
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


async def test_a_port_that_is_taken_is_an_error_and_not_silence() -> None:
    app = application(CollectorRegistry(), Checks(), Checks())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidInput, match="in use"):
            async with serving(app, f"127.0.0.1:{taken.getsockname()[1]}"):
                pass


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        (":8080", ("", 8080)),
        ("[::]:8080", ("::", 8080)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_a_listen_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert listen_at(text) == address


@pytest.mark.parametrize("text", ["", "8080", "host:", "host:65536", "host:-1", "::1:8080", "h:٣"])
def test_a_bad_listen_address_names_the_flag(text: str) -> None:
    with pytest.raises(InvalidInput, match="--listen-address"):
        listen_at(text)


def everything() -> CollectorRegistry:
    """A registry on which every metric has a sample."""
    registry = new_registry()
    EtcdRpcs(registry).rpc("Status", "OK", 0.01)
    KubernetesRequests(registry).request("get", "secrets", 200, 0.01)
    runs = Defragmentations(registry)
    runs.run_finished("Complete", "Completed")
    runs.member_finished("Defragmented", "", 10)
    runs.defragment_seconds(0.3)
    runs.sweep_overhead_seconds(0.2)
    runs.deferred("NoLeader")
    state = ProcessState(
        registry,
        version="1",
        revision="a",
        kopf_version="1",
        lease_name="etcdmaint",
        max_concurrent_runs=8,
    )
    state.loop_lag(0.001)
    compactions = Compactions(registry)
    compactions.started("00000000000000ab")
    compactions.round("00000000000000ab", "won", 1)
    compactions.advanced("00000000000000ab", 1, 1.0)
    compactions.refused("a", "b", "EtcdCluster")
    key = ObjectKey("a", "b", "EtcdConnection")
    cluster = ClusterGauges(key, True, True, (MemberGauges(1, True, 3, 2, 4),))
    finished = RunGauges("a", "c", "Complete", cluster=key, completed=2.0)
    running = RunGauges("a", "d", "Running", cluster=key, started=2.0)
    storage = StorageCompression(registry)
    storage.published("created")
    storage.audited("consistent", 1.0)
    forms = (FormGauges("protobuf", 100, 2048),)
    policy = ConfigurationGauges("a", "e", {"Valid": "True"}, audited=2.0, forms=forms)
    known = Known((cluster,), (finished, running), known_configurations=(policy,))
    StateCollector(known, registry)
    return registry


async def test_every_metric_of_the_catalogue_is_in_a_scrape_and_no_other_of_ours() -> None:
    async with serving(application(everything(), Checks(), Checks()), "127.0.0.1:0") as port:
        status, text = await asked(port, "/metrics")
    assert status == 200
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    foreign = ("process_", "python_")
    ours = {name: kind for name, kind in types.items() if not name.startswith(foreign)}
    assert ours == {each.name: str(each.kind) for each in CATALOGUE}
    for each in CATALOGUE:
        sample = f"{each.name}_bucket" if each.kind is Kind.HISTOGRAM else each.name
        assert f"\n{sample}" in text, f"{each.name} has a type but no sample"


async def test_promtool_has_nothing_to_say_of_a_scrape() -> None:
    async with serving(application(everything(), Checks(), Checks()), "127.0.0.1:0") as port:
        _, text = await asked(port, "/metrics")
    assert complaints(text) == ""

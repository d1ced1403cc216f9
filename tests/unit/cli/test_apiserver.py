"""What is asked of API servers, against a small one that says what a test wants it to say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from etcdmaint.cli import apiserver
from etcdmaint.cli.apiserver import ApiServerClient, ListExpired
from etcdmaint.kube.access import load_access
from etcdmaint.kube.client import Unavailable

HASH = "sha256:" + "ab" * 32
METRICS = (
    "process_start_time_seconds 1.76e+09\n"
    "# HELP apiserver_storage_compression_last_config_info [ALPHA] x\n"
    'apiserver_storage_compression_last_config_info{apiserver_id_hash="sha256:1",'
    f'hash="{HASH}"}} 1\n'
)


class Answers(dict[str, Any]):
    """Path to what is answered: a document, text, a status, or a list of them one by one."""

    asked: list[tuple[str, str]]


@pytest.fixture
def answers() -> Answers:
    told = Answers()
    told.asked = []
    return told


@pytest.fixture
def url(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            answers.asked.append((self.path, self.headers["Accept"]))
            told = answers.get(path, 404)
            if isinstance(told, list):
                told = told.pop(0)
            status = told if isinstance(told, int) else 200
            body = told if isinstance(told, str) else json.dumps(told)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def client(url: str, tmp_path: Path) -> AsyncIterator[ApiServerClient]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                "clusters": [{"name": "x", "cluster": {"server": "https://example.invalid"}}],
                "users": [{"name": "x", "user": {"token": "hunter2"}}],
            }
        )
    )
    access = await load_access(str(kubeconfig))
    async with ApiServerClient(access, url + "/", patience=0.0) as made:
        yield made


@pytest.mark.parametrize(
    ("metrics", "policy_hash"),
    [(METRICS, HASH), ("etcd_requests_total 5\n", ""), (403, None)],
    ids=["a policy", "no policy", "not allowed"],
)
async def test_release_and_policy_are_what_it_says(
    client: ApiServerClient, answers: Answers, url: str, metrics: Any, policy_hash: str | None
) -> None:
    """R133, R139."""
    answers["/version"] = {"gitVersion": "v1.38.0", "minor": "38"}
    answers["/metrics"] = metrics
    facts = await client.facts()
    assert (facts.url, facts.version, facts.policy_hash) == (url, "v1.38.0", policy_hash)
    assert facts.process == ("1.76e+09" if metrics == METRICS else "")
    assert facts.can_write_frames is True


def leases_of(*ages: timedelta) -> dict[str, Any]:
    """Of so long before now."""
    moments = [datetime.now(UTC) - age for age in ages]
    times = [moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for moment in moments]
    return {"items": [{"spec": {"renewTime": text}} for text in times]}


@pytest.mark.parametrize(
    ("leases", "known"),
    [
        (lambda: leases_of(timedelta(), timedelta(minutes=5)), 2),
        (lambda: leases_of(timedelta(), timedelta(days=1)), 1),
        (lambda: {"items": []}, None),
        (lambda: {"items": [{"spec": {}}]}, None),
        (lambda: 403, None),
    ],
    ids=["two", "one is long gone", "none", "no time", "not allowed"],
)
async def test_api_servers_are_known_by_their_identity_leases(
    client: ApiServerClient, answers: Answers, leases: Callable[[], Any], known: int | None
) -> None:
    """Made when it runs: the test may have been collected long before."""
    answers["/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"] = leases()
    assert await client.known_servers() == known


async def test_a_list_is_counted_in_pages_of_metadata_at_one_revision(
    client: ApiServerClient, answers: Answers
) -> None:
    """R150: `resourceVersionMatch=Exact`, which a continued page carries in its token."""
    answers["/apis"] = {
        "groups": [
            {
                "name": "example.com",
                "preferredVersion": {"version": "v2"},
                "versions": [{"version": "v1"}, {"version": "v2"}],
            }
        ]
    }
    answers["/apis/example.com/v2"] = {"resources": [{"name": "gadgets", "verbs": ["list"]}]}
    answers["/apis/example.com/v1"] = {"resources": [{"name": "widgets", "verbs": ["list"]}]}
    answers["/apis/example.com/v1/widgets"] = [
        {"items": [{}, {}], "metadata": {"continue": "more"}},
        {"items": [{}], "metadata": {}},
    ]
    assert await client.count("example.com", "widgets", 77) == 3
    first, second = answers.asked[-2:]
    assert "resourceVersion=77&resourceVersionMatch=Exact" in first[0]
    assert "continue=more" in second[0]
    assert "resourceVersion" not in second[0]
    assert "PartialObjectMetadataList" in first[1]
    assert await client.count("example.com", "others", 77) is None
    assert await client.count("nowhere.io", "others", 77) is None


async def test_a_revision_that_is_gone_has_an_error_of_its_own(
    client: ApiServerClient, answers: Answers
) -> None:
    answers["/api/v1"] = {"resources": [{"name": "pods", "verbs": ["list"]}]}
    answers["/api/v1/pods"] = [{"items": [{}], "metadata": {"continue": "more"}}, 410]
    with pytest.raises(ListExpired):
        await client.count("", "pods", 77)


async def test_later_is_asked_again_and_no_is_not(
    url: str, answers: Answers, client: ApiServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of a kind whose cache is made anew answers 429 or 504 for a moment."""
    answers["/api/v1"] = {"resources": [{"name": "pods", "verbs": ["list"]}]}
    monkeypatch.setattr(apiserver, "_RETRY_SECONDS", 0.01)
    answers["/api/v1/pods"] = [504, 429, {"items": [{}], "metadata": {}}]
    async with ApiServerClient(client._access, url, patience=30.0) as patient:
        assert await patient.count("", "pods", 77) == 1
        answers["/api/v1/pods"] = 500
        with pytest.raises(Unavailable, match="answers 500 to /api/v1/pods"):
            await patient.count("", "pods", 77)
    answers["/api/v1/pods"] = "no json"
    with pytest.raises(Unavailable, match="is not an API server's"):
        await client.count("", "pods", 77)
    for strange in ('{"items": 5}', '{"kind": "Status"}', '{"items": [], "metadata": 0}', '["x"]'):
        answers["/api/v1/pods"] = strange
        with pytest.raises(Unavailable, match="is not an API server's"):
            await client.count("", "pods", 77)
    async with ApiServerClient(client._access, "http://127.0.0.1:1", patience=0.0) as nobody:
        with pytest.raises(Unavailable, match="did not answer"):
            await nobody.cluster_uid()

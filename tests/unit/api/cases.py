"""What may be written into the two specs and what may not: one table for the CRDs and the models.

The API server is asked in tests/cluster/test_admission.py, the models in test_specs.py; that both say
the same is what the table is for. `field` is the path that a refusal must name, None where the spec
is accepted. `models` is what the models say where that differs, with the reason in `why`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

SAME: Final = "same"
ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Case:
    """One spec and the verdict on it."""

    name: str
    spec: Any
    field: str | None = None
    says: str = ""
    models: str | None = SAME
    why: str = ""

    @property
    def models_field(self) -> str | None:
        """The path that the models must name."""
        return self.field if self.models == SAME else self.models


def by_field(cases: Iterable[Case]) -> list[Any]:
    """The cases as pytest parameters: those that are accepted, and those that a field is refused for."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.models_field or "accepted", []).append(case)
    return [pytest.param(group, id=name) for name, group in groups.items()]


REF: Final = {"name": "etcd"}


def rule(**fields: Any) -> dict[str, Any]:
    """An EtcdDefrag's spec with that rule."""
    return {"clusterRef": REF, "rule": fields}


def _defrag_accepted() -> Iterator[Case]:
    yield Case("row 2: freeSpaceAbove as a JSON integer", rule(freeSpaceAbove=209715200))
    yield Case("row 6: no rule", {"clusterRef": REF})
    yield Case("row 6: an empty rule", rule())
    yield Case("row 7: all", rule(all=True))
    yield Case("all: false alone", rule(all=False))
    yield Case(
        "row 9: all: false with thresholds",
        rule(all=False, freeSpaceAbove="1Gi", quotaUsageAbove="80%", minReclaim="32Mi"),
    )
    for size in (
        "1e9",
        "0.5",
        "100m",
        "200Mi",
        "200M",
        "1E",
        "1Ei",
        "1.5Gi",
        ".5Gi",
        "+1Ki",
        "1e3",
    ):
        yield Case(f"row 11: freeSpaceAbove {size}", rule(freeSpaceAbove=size))
    yield Case("freeSpaceAbove 1n", rule(freeSpaceAbove="1n"))
    yield Case("freeSpaceAbove 1 as integer", rule(freeSpaceAbove=1))
    yield Case("freeSpaceAbove 1e-200", rule(freeSpaceAbove="1e-200"))
    yield Case(
        "row 14: minReclaim equals freeSpaceAbove",
        rule(freeSpaceAbove="200Mi", minReclaim="200Mi", quotaUsageAbove="80%"),
    )
    yield Case(
        "minReclaim equals the default freeSpaceAbove",
        rule(minReclaim="200Mi", quotaUsageAbove="80%"),
    )
    yield Case(
        "the guarded example",
        {
            "clusterRef": REF,
            "ttlSecondsAfterFinished": 3600,
            "rule": {"freeSpaceAbove": "200Mi", "quotaUsageAbove": "80%", "minReclaim": "32Mi"},
        },
    )
    yield Case(
        "a small freeSpaceAbove lowers the default minReclaim",
        rule(freeSpaceAbove="16Mi", quotaUsageAbove="80%"),
    )
    for percent in ("1%", "80%", "99%", "9%", "10%"):
        yield Case(f"row 17: quotaUsageAbove {percent}", rule(quotaUsageAbove=percent))
    yield Case("row 20: ttl 0", {"clusterRef": REF, "ttlSecondsAfterFinished": 0})
    yield Case("ttl of 68 years", {"clusterRef": REF, "ttlSecondsAfterFinished": 2147483647})
    for kind in ("EtcdCluster", "EtcdConnection"):
        yield Case(f"clusterRef.kind {kind}", {"clusterRef": {"name": "a.b-c.0", "kind": kind}})
    for word in ("Always", "Auto", "Never"):
        yield Case(f"leaderTransfer {word}", {"clusterRef": REF, "leaderTransfer": word})
    for dry_run in (True, False):
        yield Case(f"dryRun {dry_run}", {"clusterRef": REF, "dryRun": dry_run})
    yield Case("a name of 253 characters", {"clusterRef": {"name": "a" * 253}})
    # To the API server a null is a field that is left out, where the field is not nullable.
    for field in ("rule", "ttlSecondsAfterFinished", "leaderTransfer", "dryRun"):
        yield Case(f"{field} null", {"clusterRef": REF, field: None})
    for field in ("all", "freeSpaceAbove", "quotaUsageAbove", "minReclaim"):
        yield Case(f"rule.{field} null", rule(**{field: None}))
    yield Case("all beside a null", rule(all=True, minReclaim=None))
    yield Case("clusterRef.kind null", {"clusterRef": {"name": "etcd", "kind": None}})


NO_SIZES: Final[tuple[Any, ...]] = (
    *("", " ", "abc", "Gi", "-", ".", "2Gi\n", " 2Gi", "2 Gi", "1_000", "NaN", "Infinity", "0x10"),
    *("1e3Ki", "1e1.5", "1e", "1Yi", "5K", "2GiB", "\u0662Gi", "\uff12Gi", "1,5Gi", "--1", "2gi"),
    *(
        "1e-999999999",
        "1e999999999",
        "0" * 65 + "1",
        "9" * 65,
        True,
        False,
        1.5,
        [],
        {},
        ["1Gi"],
        {"value": "1Gi"},
    ),
)
WRONG_SIZES: Final[tuple[Any, ...]] = (
    *("0", 0, "-1Gi", -1, "-0", "0Mi", "0.0", "-100m", "1.1Ei", "1e19", "8Ei", "9E", 2**60 + 1),
    *(2**63 - 1, "1e999", "9" * 64),
)
NO_STRINGS: Final[tuple[Any, ...]] = (0, 1, True, 1.5, [], {}, ["etcd"])
NO_NAMES: Final[tuple[str, ...]] = (
    *("", " ", "Etcd", "etcd_1", "-etcd", "etcd-", "etcd/x", "../x", "a..b", "etcd\n", "\u00e9tcd"),
    *("etc\u0501", "a" * 254, "a b", ".a", "a.", "%2e%2e"),
)
NO_OBJECTS: Final[tuple[Any, ...]] = ("", "etcd", 0, 1, True, [], [{}])


def _defrag_refused() -> Iterator[Case]:
    free, least = "spec.rule.freeSpaceAbove", "spec.rule.minReclaim"
    yield Case("row 1: freeSpaceAbove 0", rule(freeSpaceAbove=0), free, "greater than 0")
    yield Case("row 3: no clusterRef", {}, "spec.clusterRef", "equired")
    yield Case("row 4: an empty clusterRef", {"clusterRef": {}}, "spec.clusterRef.name", "equired")
    yield Case("row 5: no spec", ABSENT, "spec", "equired")
    yield Case("spec null", None, "spec")
    yield Case("clusterRef null", {"clusterRef": None}, "spec.clusterRef", "equired")
    spec = rule(minReclaim="1Mi", quotaUsageAbove=None)
    yield Case("minReclaim beside a null", spec, "spec.rule.minReclaim", "quotaUsageAbove")
    for value in NO_OBJECTS:
        yield Case(f"spec {value!r}", value, "spec")
        yield Case(f"clusterRef {value!r}", {"clusterRef": value}, "spec.clusterRef")
        yield Case(f"rule {value!r}", {"clusterRef": REF, "rule": value}, "spec.rule")
    for value in (*NO_NAMES, *NO_STRINGS):
        yield Case(
            f"clusterRef.name {value!r}", {"clusterRef": {"name": value}}, "spec.clusterRef.name"
        )
    for value in ("", "etcdcluster", "Pod", "EtcdCluster ", *NO_STRINGS):
        spec = {"clusterRef": {"name": "etcd", "kind": value}}
        yield Case(f"clusterRef.kind {value!r}", spec, "spec.clusterRef.kind")
    for other in ({"freeSpaceAbove": "1Gi"}, {"quotaUsageAbove": "80%"}):
        yield Case(f"row 8: all and {other}", rule(all=True, **other), "spec.rule.all", "excludes")
    spec = rule(all=True, quotaUsageAbove="80%", minReclaim="1Mi")
    yield Case("row 8: all and minReclaim", spec, "spec.rule.all", "excludes")
    for value in ("true", "", 0, 1, [], {}):
        yield Case(f"rule.all {value!r}", rule(all=value), "spec.rule.all")
    for value in (*NO_SIZES, *WRONG_SIZES):
        yield Case(f"row 10: freeSpaceAbove {value!r:.70}", rule(freeSpaceAbove=value), free)
        spec = rule(freeSpaceAbove="1Ei", quotaUsageAbove="80%", minReclaim=value)
        yield Case(f"row 13: minReclaim {value!r:.70}", spec, least)
    yield Case("row 12: minReclaim alone", rule(minReclaim="1Mi"), least, "quotaUsageAbove")
    spec = rule(minReclaim="1Mi", freeSpaceAbove="1Gi")
    yield Case("row 12: minReclaim without the quota", spec, least, "quotaUsageAbove")
    for small, large in (("200M", "200Mi"), ("1Gi", "1025Mi"), (1000, "1Ki"), ("1Ki", 1025)):
        spec = rule(freeSpaceAbove=small, minReclaim=large, quotaUsageAbove="80%")
        yield Case(f"row 15: minReclaim {large} over {small}", spec, least, "exceed")
    spec = rule(minReclaim="500Mi", quotaUsageAbove="80%")
    yield Case("row 16: minReclaim over the default freeSpaceAbove", spec, least, "200Mi")
    quota = "spec.rule.quotaUsageAbove"
    yield Case("row 18: 100%", rule(quotaUsageAbove="100%"), quota, "never")
    for value in (
        *("", "0%", "101%", "80", "80.5%", "080%", "-5%", "+5%", "80 %", "80%\n", "%", "1000%"),
        *("\u0668\u0660%", "80\uff05", "8_0%", *NO_STRINGS),
    ):
        yield Case(f"row 19: quotaUsageAbove {value!r}", rule(quotaUsageAbove=value), quota)
    for value in (-1, 2147483648, 2**62, "60", "", True, 1.5, [], {}):
        spec = {"clusterRef": REF, "ttlSecondsAfterFinished": value}
        yield Case(f"row 20: ttl {value!r}", spec, "spec.ttlSecondsAfterFinished")
    for value in ("", "always", "Maybe", *NO_STRINGS):
        spec = {"clusterRef": REF, "leaderTransfer": value}
        yield Case(f"leaderTransfer {value!r}", spec, "spec.leaderTransfer")
    for value in ("true", "false", "", 0, 1, [], {}):
        spec = {"clusterRef": REF, "dryRun": value}
        yield Case(f"dryRun {value!r}", spec, "spec.dryRun")
    yield Case("an unknown field", {"clusterRef": REF, "dryrun": True}, "spec.dryrun", "field")
    yield Case(
        "another namespace",
        {"clusterRef": {"name": "etcd", "namespace": "kube-system"}},
        "spec.clusterRef.namespace",
        "field",
    )
    yield Case("an unknown threshold", rule(free_space_above=1), "spec.rule.free_space_above")


TLS: Final = {"caSecretRef": {"name": "etcd-ca"}}
PLAIN: Final = ["10.0.0.11:2379"]


def connection(**fields: Any) -> dict[str, Any]:
    """An EtcdConnection's spec, in plaintext where nothing else is said."""
    return {"endpoints": PLAIN, **fields}


ENDPOINTS: Final = (
    *("10.0.0.11", "10.0.0.11:2379", "http://10.0.0.11:2379", "http://10.0.0.11:2379/", "etcd"),
    *("etcd-0.etcd.team-a.svc:2379", "etcd_0.example:1", "[::1]:2379", "http://[fd00::1]:65535"),
    *("fd00::1", "::1", "HTTP://ETCD.EXAMPLE:2379", "etcd.example.", "[::ffff:10.0.0.1]:2379"),
    "a" * 63 + ".example",
)
NO_ENDPOINTS: Final[tuple[Any, ...]] = (
    *("", " ", "unix:///var/run/etcd.sock", "unix://x:0", "ftp://etcd", "https//etcd", "http://"),
    *("root:secret@etcd:2379", "http://root@etcd", "etcd:2379/v3", "etcd?x=1", "etcd#x", "etcd:"),
    *("etcd:0", "etcd:65536", "etcd:123456", "etcd:-1", "etcd:http", "12345::1", "10.0.0.256"),
    *("10.0.0", "1.2.3.4.5:2379", "10.0.0.011", "etcd\n", " etcd", "etcd ", "\u00e9tcd:2379"),
    *("-etcd", "etcd..svc", "a" * 64, "a" * 301, "[::1", "::1]:2379", "[etcd]:2379", "etcd,etcd2"),
    *("http://http://etcd", "etcd:2379:2379", "\u0661\u0660.0.0.1", *NO_STRINGS),
)


def _connection_accepted() -> Iterator[Case]:
    for endpoint in ENDPOINTS:
        yield Case(f"endpoint {endpoint}", {"endpoints": [endpoint]})
    for endpoint in ("https://etcd:2379", "HTTPS://etcd", "etcd:2379"):
        yield Case(f"TLS endpoint {endpoint}", {"endpoints": [endpoint], "tls": TLS})
    yield Case("32 endpoints", {"endpoints": [f"10.0.0.{n}" for n in range(32)]})
    yield Case("two ports of one host", {"endpoints": ["etcd:2379", "etcd:23790", "etcd:12379"]})
    yield Case("a key of the CA", connection(tls={"caSecretRef": {"name": "x", "key": "CA_.-9"}}))
    full = {
        "caSecretRef": {"name": "etcd-ca", "key": "ca.crt"},
        "clientCertSecretRef": {"name": "etcd-client"},
        "serverName": "etcd.example",
    }
    yield Case(
        "everything",
        {
            "endpoints": ["https://10.0.0.11:2379", "https://10.0.0.12:2379"],
            "tls": full,
            "auth": {"credentialsSecretRef": {"name": "etcd-root"}},
            "metricsPort": 2381,
            "volumeSize": "20Gi",
            "quotaBackendBytes": "8Gi",
            "compaction": {"interval": "5m"},
            "kubernetesStorage": {"prefix": "/registry"},
        },
    )
    for name in ("etcd", "etcd.example", "10.0.0.1", "fd00::1", "ETCD"):
        yield Case(f"serverName {name}", connection(tls={**TLS, "serverName": name}))
    for port in (1, 2381, 65535):
        yield Case(f"metricsPort {port}", connection(metricsPort=port))
    for size in ("20Gi", 21474836480, "1Ei", "0.5", "8e9"):
        yield Case(f"volumeSize {size}", connection(volumeSize=size))
        yield Case(f"quotaBackendBytes {size}", connection(quotaBackendBytes=size))
    for interval in (
        *("0", "0s", 0, "10s", "5m", "1h30m", "24h", "1440m", "10000ms", "+5m", "1.5h", ".5h"),
        *("10000000\u00b5s", "10000000\u03bcs", "10000000us", "10000000000ns", "1.m", "00005m"),
    ):
        yield Case(f"interval {interval!r}", connection(compaction={"interval": interval}))
    yield Case("kubernetesStorage", connection(kubernetesStorage={}))
    for prefix in ("/registry", "/a/b_c-d.e", "/R"):
        yield Case(f"prefix {prefix}", connection(kubernetesStorage={"prefix": prefix}))

    for field in ("tls", "auth", "metricsPort", "volumeSize", "compaction", "kubernetesStorage"):
        yield Case(f"{field} null", connection(**{field: None}))
    yield Case("prefix null", connection(kubernetesStorage={"prefix": None}))


def _connection_refused() -> Iterator[Case]:
    yield Case("no spec", ABSENT, "spec", "equired")
    yield Case("no endpoints", {}, "spec.endpoints", "equired")
    yield Case("endpoints null", {"endpoints": None}, "spec.endpoints", "equired")
    yield Case("endpoint null", {"endpoints": ["etcd", None]}, "spec.endpoints[1]")
    yield Case("an empty list of endpoints", {"endpoints": []}, "spec.endpoints")
    for value in ("etcd:2379", 1, True, {}, {"0": "etcd"}):
        yield Case(f"endpoints {value!r}", {"endpoints": value}, "spec.endpoints")
    yield Case("33 endpoints", {"endpoints": [f"10.0.0.{n}" for n in range(33)]}, "spec.endpoints")
    for value in NO_ENDPOINTS:
        yield Case(f"endpoint {value!r:.80}", {"endpoints": ["etcd", value]}, "spec.endpoints[1]")
    for value in ("[:::]", "a:1:2", "[::1::]:2379"):
        yield Case(
            f"endpoint {value!r}",
            {"endpoints": ["etcd", value]},
            None,
            models="spec.endpoints[1]",
            why="CEL can tell an IPv6 address only from Kubernetes 1.30 on",
        )
    for one, two in (
        *(("etcd", "etcd"), ("etcd", "etcd:2379"), ("etcd:2379", "http://etcd"), ("etcd/", "etcd")),
        *(("ETCD", "etcd"), ("http://etcd:2379", "http://etcd:2379/"), ("::1", "[::1]:2379")),
    ):
        yield Case(f"{one} and {two}", {"endpoints": [one, "other", two]}, "spec.endpoints")
    spec = {"endpoints": ["https://etcd", "etcd:2379"], "tls": TLS}
    yield Case("one endpoint twice with TLS", spec, "spec.endpoints")
    spec = connection(auth={"credentialsSecretRef": {"name": "x"}})
    yield Case("a credential without TLS", spec, "spec.auth", "tls")
    yield Case("https without TLS", {"endpoints": ["https://etcd"]}, "spec.endpoints", "tls")
    spec = {"endpoints": ["Http://etcd"], "tls": TLS}
    yield Case("http with TLS", spec, "spec.endpoints", "tls")
    for value in NO_OBJECTS:
        for field in ("tls", "auth", "compaction", "kubernetesStorage"):
            yield Case(f"{field} {value!r}", connection(**{field: value}), f"spec.{field}")
        yield Case(f"spec {value!r}", value, "spec")
        spec = connection(tls={"caSecretRef": value})
        yield Case(f"caSecretRef {value!r}", spec, "spec.tls.caSecretRef")
        spec = connection(tls={**TLS, "clientCertSecretRef": value})
        yield Case(f"clientCertSecretRef {value!r}", spec, "spec.tls.clientCertSecretRef")
        spec = connection(tls=TLS, auth={"credentialsSecretRef": value})
        yield Case(f"credentialsSecretRef {value!r}", spec, "spec.auth.credentialsSecretRef")
    spec = connection(tls={**TLS, "clientCertSecretRef": {}})
    yield Case("a client without a name", spec, "spec.tls.clientCertSecretRef.name", "equired")
    spec = connection(tls=TLS, auth={"credentialsSecretRef": {}})
    yield Case(
        "a credential without a name", spec, "spec.auth.credentialsSecretRef.name", "equired"
    )
    yield Case("TLS without a CA", connection(tls={}), "spec.tls.caSecretRef", "equired")
    yield Case(
        "auth without a Secret", connection(tls=TLS, auth={}), "spec.auth.credentialsSecretRef"
    )
    yield Case(
        "compaction without an interval", connection(compaction={}), "spec.compaction.interval"
    )
    yield Case(
        "a CA without a name", connection(tls={"caSecretRef": {}}), "spec.tls.caSecretRef.name"
    )
    for value in (*NO_NAMES, *NO_STRINGS):
        spec = connection(tls={"caSecretRef": {"name": value}})
        yield Case(f"caSecretRef.name {value!r:.80}", spec, "spec.tls.caSecretRef.name")
        spec = connection(tls={**TLS, "clientCertSecretRef": {"name": value}})
        yield Case(f"client name {value!r:.80}", spec, "spec.tls.clientCertSecretRef.name")
        spec = connection(tls=TLS, auth={"credentialsSecretRef": {"name": value}})
        yield Case(f"credentials {value!r:.80}", spec, "spec.auth.credentialsSecretRef.name")
    for value in ("", " ", "ca/crt", "ca\n", "\u00e9", "a" * 254, *NO_STRINGS):
        spec = connection(tls={"caSecretRef": {"name": "x", "key": value}})
        yield Case(f"caSecretRef.key {value!r:.80}", spec, "spec.tls.caSecretRef.key")
    for value in (
        "",
        " ",
        "https://etcd",
        "etcd:2379",
        "*.etcd",
        "\u00e9tcd",
        "a" * 254,
        *NO_STRINGS,
    ):
        spec = connection(tls={**TLS, "serverName": value})
        yield Case(f"serverName {value!r:.80}", spec, "spec.tls.serverName")
    for value in (0, -1, 65536, 2**62, "2381", "", True, 2381.5, [], {}):
        yield Case(f"metricsPort {value!r}", connection(metricsPort=value), "spec.metricsPort")
    for value in (*NO_SIZES, *WRONG_SIZES):
        yield Case(f"volumeSize {value!r:.70}", connection(volumeSize=value), "spec.volumeSize")
        spec = connection(quotaBackendBytes=value)
        yield Case(f"quotaBackendBytes {value!r:.70}", spec, "spec.quotaBackendBytes")
    for value in (
        *("", "5", "5 m", " 5m", "5m ", "5m\n", "-5m", "-0", "0m", "9s", "9999ms", "24h1ns", "25h"),
        *(
            "1d",
            "PT5M",
            "5M",
            "1e3s",
            "1_0m",
            "\u0665m",
            "five",
            "1h30",
            ".s",
            "9" * 32 + "h",
            "0" * 32 + "5m",
        ),
        *("9223372037s", "87600h", 1, 300, -1, 5.5, True, False, [], {}),
    ):
        spec = connection(compaction={"interval": value})
        yield Case(f"interval {value!r:.80}", spec, "spec.compaction.interval")
    for value in ("", "/", "registry", "/registry/", "//registry", "/a b", "/\u00e9", "/a" * 129):
        spec = connection(kubernetesStorage={"prefix": value})
        yield Case(f"prefix {value!r:.80}", spec, "spec.kubernetesStorage.prefix")
    for value in NO_STRINGS:
        spec = connection(kubernetesStorage={"prefix": value})
        yield Case(f"prefix {value!r}", spec, "spec.kubernetesStorage.prefix")
    yield Case("an unknown field", connection(endpoint="etcd"), "spec.endpoint", "field")
    spec = connection(tls={"caSecretRef": {"name": "x", "namespace": "kube-system"}})
    yield Case("a Secret of elsewhere", spec, "spec.tls.caSecretRef.namespace", "field")
    spec = connection(tls={**TLS, "insecureSkipVerify": True})
    yield Case("TLS without verification", spec, "spec.tls.insecureSkipVerify", "field")


DEFRAG_CASES: Final = (*_defrag_accepted(), *_defrag_refused())
CONNECTION_CASES: Final = (*_connection_accepted(), *_connection_refused())


def manifest(api_version: str, kind: str, namespace: str, spec: Any) -> dict[str, Any]:
    """An object as a person would send it."""
    body: dict[str, Any] = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "case", "namespace": namespace},
    }
    return body if spec is ABSENT else {**body, "spec": spec}

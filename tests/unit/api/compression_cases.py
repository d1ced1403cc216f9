"""What may be written into a StorageCompressionConfiguration and what may not: one table for all judges.

As in `cases`, `field` is what the API server must name. What it cannot see, since one entry contradicts
another, it admits, and the operator refuses: there `models` is the path that the condition names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.unit.api.cases import NO_NAMES, NO_OBJECTS, NO_SIZES, NO_STRINGS, SAME, Case

PODS: Final = {"resources": ["pods"], "algorithm": "Deflate"}
KEP_SAMPLE: Final = {
    "resources": [
        {"resources": ["events", "events.events.k8s.io"], "algorithm": "None"},
        {"resources": ["customwidgets.example.com"], "algorithm": "Deflate", "minSize": 512},
        {"resources": ["*.*"], "algorithm": "Deflate"},
    ]
}


def policy(*entries: Any, **fields: Any) -> dict[str, Any]:
    """A spec with these entries."""
    return {"resources": list(entries), **fields}


def entry(**fields: Any) -> dict[str, Any]:
    """A spec with one entry, with these fields beside or instead of the usual ones."""
    return policy({**PODS, **fields})


def many(number: int) -> dict[str, Any]:
    """A spec with so many entries."""
    return policy(*({**PODS, "resources": [f"things.g{index}.example"]} for index in range(number)))


def _accepted() -> Iterator[Case]:
    yield Case("R112: the KEP's sample", KEP_SAMPLE)
    yield Case("nothing at all", {})
    yield Case("R117: no entries", policy())
    yield Case("two hundred entries", many(200))
    yield Case("as many entries as may be", many(256))
    full = [entry | {"minSize": "1.5Ki", "rewrite": "OnWrite"} for entry in many(256)["resources"]]
    yield Case("… each with every field", policy(*full, stage="beta"))
    names = [f"things.g{index}.example" for index in range(64)]
    yield Case("as many resources as may be", entry(resources=names))
    for name in ("secrets", "pods.", "*.", "*.apps", "*.*", "a-1.b-2.c", "*.example.com"):
        yield Case(f"R105: {name}", entry(resources=[name]))
    yield Case("the longest name", entry(resources=["a" * 63 + "." + "b" * 253]))
    yield Case("R111: the special before the general", policy(PODS, {**PODS, "resources": ["*.*"]}))
    wildcard = {"resources": ["*.*"], "algorithm": "Deflate"}
    yield Case(
        "R122: secrets after a wildcard", policy(wildcard, {**PODS, "resources": ["secrets"]})
    )
    for size in (64, "64", "1Ki", "1.5Ki", "1e3", "64000m", 1507327, "1507327", "+64", "1471Ki"):
        yield Case(f"R108: minSize {size!r}", entry(minSize=size))
    for word in ("Eager", "OnWrite"):
        yield Case(f"R176: rewrite {word} at beta", entry(rewrite=word) | {"stage": "beta"})
    for stage in ("alpha", "beta"):
        yield Case(f"stage {stage}", policy(PODS, stage=stage))
    for kind in ("EtcdCluster", "EtcdConnection"):
        yield Case(f"clusterRef.kind {kind}", {"clusterRef": {"name": "a.b-c.0", "kind": kind}})
    for interval in ("0", "0s", 0, "1m", "60s", "1h30m", "1.5h", "24h", "8760h"):
        yield Case(f"interval {interval!r}", {"audit": {"interval": interval}})
    for rate in ("64Ki", 65536, "20Mi", "1e9", "1Ti"):
        yield Case(f"bytesPerSecond {rate!r}", {"audit": {"bytesPerSecond": rate}})
    for field in ("clusterRef", "stage", "resources", "audit"):
        yield Case(f"{field} null", {field: None})
    for field in ("interval", "bytesPerSecond"):
        yield Case(f"audit.{field} null", {"audit": {field: None}})
    for field in ("minSize", "rewrite"):
        yield Case(f"{field} null", entry(**{field: None}))


def _refused() -> Iterator[Case]:
    first = "spec.resources[0]"
    for value in NO_OBJECTS:
        yield Case(f"spec {value!r}", value, "spec")
        yield Case(f"clusterRef {value!r}", {"clusterRef": value}, "spec.clusterRef")
        yield Case(f"audit {value!r}", {"audit": value}, "spec.audit")
        yield Case(f"an entry {value!r}", policy(value), first)
    for value in (*NO_STRINGS, "alph", "Alpha", "ga", ""):
        yield Case(f"stage {value!r}", {"stage": value}, "spec.stage")
    for value in ("", "pods", 1, True, {}):
        yield Case(f"resources {value!r}", {"resources": value}, "spec.resources")
        yield Case(f"its resources {value!r}", entry(resources=value), f"{first}.resources")
    yield Case(
        "R104: no algorithm", policy({"resources": ["pods"]}), f"{first}.algorithm", "equired"
    )
    yield Case("no resources", policy({"algorithm": "None"}), f"{first}.resources", "equired")
    yield Case("an empty list of resources", entry(resources=[]), f"{first}.resources")
    for word in (*NO_STRINGS, "deflate", "Gzip", "none", "", "Deflate "):
        yield Case(f"R104: algorithm {word!r}", entry(algorithm=word), f"{first}.algorithm")
    for word in (*NO_STRINGS, "eager", "", "Never"):
        spec = entry(rewrite=word) | {"stage": "beta"}
        yield Case(f"rewrite {word!r}", spec, f"{first}.rewrite")
    yield Case(
        "R109: rewrite at alpha",
        entry(rewrite="OnWrite"),
        "spec.resources",
        "beta",
        f"{first}.rewrite",
        "CEL names the list, the file's reader the field",
    )
    for name in (
        "",
        "*",
        "Pods",
        "pods.*",
        "a b",
        "pods\n",
        "*.Apps",
        ".apps",
        "-a",
        "a..b",
        "p_d",
    ):
        yield Case(f"R109: a selector {name!r}", entry(resources=[name]), f"{first}.resources[0]")
    yield Case("a name too long", entry(resources=["a" * 318]), f"{first}.resources[0]", "", None)
    for value in NO_STRINGS:
        yield Case(f"a selector {value!r}", entry(resources=[value]), f"{first}.resources[0]")
    yield Case(
        "A20: a selector twice",
        entry(resources=["pods", "pods"]),
        f"{first}.resources[1]",
        "uplicate",
    )
    for size in (63, "63", 1507328, "1507328", 0, -1, "-64", 2**40, "1Mi64", "1Ti", "9" * 33):
        yield Case(f"R108: minSize {size!r}", entry(minSize=size), f"{first}.minSize")
    for size in NO_SIZES:
        yield Case(f"minSize {size!r:.60}", entry(minSize=size), f"{first}.minSize")
    yield Case("R11: a level", entry(level=1), f"{first}.level", "field")
    yield Case(
        "R83: a cap", policy(maxConcurrentDecompressions=4), "spec.maxConcurrentDec", "field"
    )
    yield Case(
        "A20: a request limit", policy(maxRequestBytes="1Mi"), "spec.maxRequestBytes", "field"
    )
    yield Case("an entry too many", many(257), "spec.resources")
    names = [f"things.g{index}.example" for index in range(65)]
    yield Case("a resource too many", entry(resources=names), f"{first}.resources")
    for value in (*NO_NAMES, *NO_STRINGS):
        spec = {"clusterRef": {"name": value}}
        yield Case(f"clusterRef.name {value!r:.60}", spec, "spec.clusterRef.name")
    spec = {"clusterRef": {"name": "x", "kind": "Secret"}}
    yield Case("a clusterRef of another kind", spec, "spec.clusterRef.kind")
    spec = {"clusterRef": {"name": "x", "namespace": "kube-system"}}
    yield Case("a clusterRef of elsewhere", spec, "spec.clusterRef.namespace", "field")
    for value in ("", "5", "59s", "59999ms", "-1h", "8760h1s", "1d", 1, 60, True, [], {}, "1e3s"):
        yield Case(f"interval {value!r}", {"audit": {"interval": value}}, "spec.audit.interval")
    for value in (0, 1, "0", "65535", "1.1Ti", "-1Mi", *NO_SIZES):
        spec = {"audit": {"bytesPerSecond": value}}
        yield Case(f"bytesPerSecond {value!r:.60}", spec, "spec.audit.bytesPerSecond")


def _refused_by_the_operator_alone() -> Iterator[Case]:
    second = "spec.resources[1].resources[0]"
    everything = {"resources": ["*.*"], "algorithm": "None"}
    for name, first, then, path in (
        ("the general before the special", everything, "pods", second),
        (
            "a group before its resource",
            {**PODS, "resources": ["*.apps"]},
            "deployments.apps",
            second,
        ),
        ("core before its resource", {**PODS, "resources": ["*."]}, "pods", second),
        ("a selector twice", PODS, "pods", second),
        ("one selector in two spellings", PODS, "pods.", second),
    ):
        spec = policy(first, {**PODS, "resources": [then]})
        yield Case(f"R110: {name}", spec, None, "never takes effect", path, "between entries")
    spec = entry(resources=["*.apps", "deployments.apps"])
    path = "spec.resources[0].resources[1]"
    yield Case("A20: beside its own wildcard", spec, None, "covered", path, "within an entry")
    path = "spec.resources[0].minSize"
    for size in ("64.5", "1507327.5", "1.3Ki"):
        yield Case(
            f"minSize {size}",
            entry(minSize=size),
            None,
            "whole",
            path,
            "a pattern sees no fraction",
        )
    for size in ("2000k", "63000m", "2.0Mi", "1e7", ".03125Ki"):
        yield Case(
            f"R108: minSize {size}", entry(minSize=size), None, "at least 64", path, "nor a unit"
        )


ADMITTED: Final = (*_accepted(), *_refused_by_the_operator_alone())
COMPRESSION_CASES: Final = (*ADMITTED, *_refused())

__all__ = ["ADMITTED", "COMPRESSION_CASES", "KEP_SAMPLE", "PODS", "SAME", "entry", "many", "policy"]

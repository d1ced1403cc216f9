"""What an EtcdCluster and its EtcdMembers say, as one judgement: can it be dialled, and how.

A pure reading of objects that another operator owns. Its conditions are not consulted: they freeze
while everything is down, and all turn false under NOSPACE, which is when we are needed. Only what says
that the other operator is at work on the members right now makes this cluster wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etcdmaint.api.metadata import is_paused, part_of
from etcdmaint.api.names import PAUSED_ANNOTATION
from etcdmaint.defrag.run import DesiredMember
from etcdmaint.errors import ClusterNotReady, InvalidInput
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.quantities import parse_bytes

CLUSTER_LABEL = "etcd-operator.cozystack.io/cluster"
METRICS_PORT = 2381
DEFAULT_QUOTA = 2 << 30
_HEADLESS = "etcd-operator.cozystack.io/headless-service-name"
_CONTAINER = "etcd"
_OVER = ("Complete", "Failed")

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSource:
    """In which Secrets the material for the client port is; `identity` "" for none."""

    authority: str
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading:
    """An EtcdCluster that can be dialled now."""

    namespace: str
    name: str
    members: tuple[Json, ...]
    tls: TlsSource | None
    root_secret: str
    volume_size: int | None
    quota_bytes: int
    paused: str | None

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Each member by its own name below its own headless Service, never a Service in front."""
        return tuple(
            Endpoint(host=_host(member, self.namespace), port=2379, secure=self.tls is not None)
            for member in self.members
        )

    def desired(self, restarts: Mapping[str, int]) -> tuple[DesiredMember, ...]:
        """Whom etcd's own member list must agree with."""
        return tuple(
            DesiredMember(
                name=member["metadata"]["name"],
                member_id=_member_id(member),
                quota_bytes=_quota(part_of(member, "spec", "options")),
                restarts=restarts.get(member["metadata"]["name"], 0),
            )
            for member in self.members
        )


def read_cluster(
    cluster: Json, members: Sequence[Json], snapshots: Sequence[Json]
) -> ClusterReading:
    """Judge the objects; raises ClusterNotReady with a reason for each state in which to wait (D6)."""
    name = cluster["metadata"]["name"]
    if cluster["metadata"].get("deletionTimestamp"):
        raise ClusterNotReady("ClusterDeleting", f"EtcdCluster {name} is being deleted")
    observed = part_of(cluster, "status", "observed")
    if not observed or not part_of(cluster, "status").get("clusterToken"):
        raise ClusterNotReady("ClusterNotObserved", f"EtcdCluster {name} has not been taken up yet")
    own = _own_members(cluster, members)
    _judge_members(name, observed, own, clustered=bool(part_of(cluster, "status").get("clusterID")))
    auth = part_of(cluster, "spec", "auth")
    latched = bool(part_of(cluster, "status").get("authEnabled"))
    if auth.get("enabled") and not latched:
        raise ClusterNotReady(
            "AuthNotLatched", f"EtcdCluster {name} has not turned its auth on yet"
        )
    for snapshot in snapshots:
        if part_of(snapshot, "spec", "clusterRef").get("name") == name and _under_way(snapshot):
            raise ClusterNotReady(
                "SnapshotInProgress", f"EtcdSnapshot {snapshot['metadata']['name']} is being taken"
            )
    secret = part_of(auth, "rootCredentialsSecretRef").get("name") if auth.get("enabled") else ""
    return ClusterReading(
        namespace=cluster["metadata"]["namespace"],
        name=name,
        members=own,
        tls=_tls(name, part_of(cluster, "spec", "tls").get("client")),
        root_secret=secret or "",
        volume_size=_size(part_of(observed, "storage").get("size"))
        or _size(part_of(cluster, "spec", "storage").get("size")),
        quota_bytes=_quota(part_of(observed, "options")) or DEFAULT_QUOTA,
        paused=paused_by("EtcdCluster", cluster),
    )


def paused_by(kind: str, obj: Json) -> str | None:
    """The sentence that says that this object's annotation stops runs, or None (D9)."""
    metadata = obj["metadata"]
    if not is_paused(metadata.get("annotations")):
        return None
    return f"the annotation {PAUSED_ANNOTATION} on {kind} {metadata['name']} stops it"


def restart_count(pod: Json) -> int:
    """How often the Pod's etcd container was restarted (D18)."""
    statuses = part_of(pod, "status").get("containerStatuses") or ()
    counts = [s.get("restartCount") or 0 for s in statuses if s.get("name") == _CONTAINER]
    return max(counts, default=0)


def _own_members(cluster: Json, members: Sequence[Json]) -> tuple[Json, ...]:
    name, uid = cluster["metadata"]["name"], cluster["metadata"].get("uid")
    own = []
    for member in members:
        owners = [o for o in member["metadata"].get("ownerReferences") or () if o.get("controller")]
        strange = owners and owners[0].get("uid") != uid
        if part_of(member, "spec").get("clusterName") == name and not strange:
            own.append(member)
    return tuple(sorted(own, key=lambda member: str(member["metadata"]["name"])))


def _judge_members(name: str, observed: Json, members: Sequence[Json], *, clustered: bool) -> None:
    replicas = observed.get("replicas") or 0
    running = [m for m in members if not part_of(m, "spec").get("dormant")]
    leaving = [m for m in members if m["metadata"].get("deletionTimestamp")]
    if leaving:
        raise ClusterNotReady(
            "MemberDeleting", f"EtcdMember {leaving[0]['metadata']['name']} is being deleted"
        )
    if replicas == 0:
        state = "is being scaled to zero" if running else "is scaled to zero"
        raise ClusterNotReady("ScaledToZero", f"EtcdCluster {name} {state}")
    if not clustered:
        raise ClusterNotReady("Bootstrapping", f"EtcdCluster {name} is being bootstrapped")
    if not running:
        raise ClusterNotReady("NoMembers", f"EtcdCluster {name} has no EtcdMember")
    if len(running) != replicas or len(running) != len(members):
        raise ClusterNotReady(
            "Scaling", f"EtcdCluster {name} has {len(running)} of {replicas} members running"
        )


def _under_way(snapshot: Json) -> bool:
    # Pending ones read nothing yet, and may be Pending for as long as nobody reconciles them; once one
    # streams, the members' own metrics say so too.
    phase = part_of(snapshot, "status").get("phase") or ""
    return phase not in ("", "Pending", *_OVER)


def _tls(cluster: str, client: Json | None) -> TlsSource | None:
    """The table of the contract, 1.2: where CA and client identity are, by who issues them."""
    if not client:
        return None
    server = part_of(client, "serverSecretRef").get("name")
    if server:
        identity = part_of(client, "operatorClientSecretRef").get("name") or ""
        return TlsSource(authority=server, identity=identity)
    issued = part_of(client, "certManager").get("operatorClientIssuerRef")
    return TlsSource(
        authority=f"{cluster}-server-tls",
        identity=f"{cluster}-operator-client-tls" if issued else "",
    )


def _host(member: Json, namespace: str) -> str:
    annotations = member["metadata"].get("annotations") or {}
    service = annotations.get(_HEADLESS) or part_of(member, "spec").get("clusterName")
    return f"{member['metadata']['name']}.{service}.{namespace}.svc"


def _member_id(member: Json) -> int | None:
    try:
        return int(str(part_of(member, "status").get("memberID") or ""), 16) or None
    except ValueError:
        return None


def _quota(options: Json) -> int | None:
    quota = options.get("quotaBackendBytes")
    return quota if isinstance(quota, int) and quota > 0 else None


def _size(value: object) -> int | None:
    if not isinstance(value, str | int):
        return None
    try:
        return parse_bytes(value) or None
    except InvalidInput:
        return None

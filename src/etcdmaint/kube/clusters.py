"""From a clusterRef to a cluster that can be dialled, read afresh each time it is asked for.

Two kinds lead there: our own EtcdConnection, and another operator's EtcdCluster. Nothing is kept from
one call to the next, so a rotated Secret or a replaced member is seen at the next look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etcdmaint.api.connection import EtcdConnection, KubernetesStorageSpec, parse_connection
from etcdmaint.api.defrag import ClusterRef
from etcdmaint.api.names import OTHER_CONTROLLER_LEASE
from etcdmaint.api.vocabulary import ClusterKind
from etcdmaint.defrag.run import Target
from etcdmaint.errors import ClusterNotFound, ClusterNotReady, CredentialsUnavailable, InvalidInput
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.endpoint import AddressMap, Endpoint
from etcdmaint.kube import cozystack
from etcdmaint.kube.client import Json, KubeApi, NotFound, read_time
from etcdmaint.kube.credentials import make_login, make_tls, read_secret
from etcdmaint.kube.resources import (
    ETCD_CLUSTERS,
    ETCD_CONNECTIONS,
    ETCD_MEMBERS,
    ETCD_SNAPSHOTS,
    FIELD_MANAGER,
    LEASES,
    PODS,
)


@dataclass(frozen=True, slots=True)
class Clusters:
    """Looks clusters up. `namespaces` empty: all of them are watched.

    Every method raises ClusterNotFound, ClusterNotReady or CredentialsUnavailable, and KubeError when
    the Kubernetes API does not answer.
    """

    api: KubeApi
    address_map: AddressMap
    namespaces: Sequence[str] = ()

    async def find(self, namespace: str, ref: ClusterRef) -> Target:
        """What a clusterRef of an object in that namespace leads to."""
        if ref.kind is ClusterKind.ETCD_CONNECTION:
            return await self._connection(namespace, ref.name)
        return await self._cluster(namespace, ref.name)

    async def _connection(self, namespace: str, name: str) -> Target:
        try:
            obj = await self.api.get(ETCD_CONNECTIONS, namespace, name)
        except NotFound:
            raise ClusterNotFound(f"there is no EtcdConnection {namespace}/{name}") from None
        try:
            connection = parse_connection(obj)
        except InvalidInput as error:
            raise ClusterNotReady("InvalidConnection", f"EtcdConnection {name}: {error}") from None
        if connection.deleting:
            raise ClusterNotReady("ClusterDeleting", f"EtcdConnection {name} is being deleted")
        return await self.target(connection, paused=cozystack.paused_by("EtcdConnection", obj))

    async def target(self, connection: EtcdConnection, *, paused: str | None = None) -> Target:
        """How to dial what an EtcdConnection describes; reads its Secrets."""
        spec = connection.spec
        namespace = connection.namespace
        tls = None
        if spec.tls is not None:
            authority = await read_secret(self.api, namespace, spec.tls.ca_secret_ref.name)
            make_tls(authority, spec.tls.ca_secret_ref.key)  # what is wrong with it is told first
            identity = None
            if spec.tls.client_cert_secret_ref is not None:
                ref = spec.tls.client_cert_secret_ref
                identity = await read_secret(self.api, namespace, ref.name)
                # Somebody named it for an identity, so an empty one is a mistake, not a choice.
                identity.require("tls.crt")
            tls = make_tls(
                authority,
                spec.tls.ca_secret_ref.key,
                identity=identity,
                server_name=spec.tls.server_name,
            )
        login = None
        if spec.auth is not None:
            ref = spec.auth.credentials_secret_ref
            login = make_login(await read_secret(self.api, namespace, ref.name))
        storage = spec.kubernetes_storage
        return Target(
            seeds=tuple(
                Endpoint.parse(text, secure=tls is not None, field="spec.endpoints")
                for text in spec.endpoints
            ),
            access=Access(tls=tls, login=login, address_map=self.address_map),
            metrics_port=spec.metrics_port,
            volume_size=spec.volume_size,
            quota_bytes=spec.quota_backend_bytes,
            paused=paused,
            kubernetes_prefix=storage.prefix if storage else KubernetesStorageSpec().prefix,
        )

    async def _cluster(self, namespace: str, name: str) -> Target:
        try:
            cluster = await self.api.get(ETCD_CLUSTERS, namespace, name)
        except NotFound:
            raise ClusterNotFound(f"there is no EtcdCluster {namespace}/{name}") from None
        label = f"{cozystack.CLUSTER_LABEL}={name}"
        members = await self.api.list(ETCD_MEMBERS, namespace, labels=label)
        reading = cozystack.read_cluster(cluster, members, await self._snapshots(namespace))
        tls = None
        if reading.tls is not None:
            authority = await read_secret(self.api, namespace, reading.tls.authority)
            identity = None
            if reading.tls.identity:
                identity = await read_secret(self.api, namespace, reading.tls.identity)
            tls = make_tls(authority, identity=identity)
        login = None
        if reading.root_secret:
            if tls is None:
                raise CredentialsUnavailable(f"EtcdCluster {name} has auth, but no TLS")
            secret = await read_secret(self.api, namespace, reading.root_secret)
            login = make_login(secret, user="root")
        desired = reading.desired(await self._restarts(namespace, reading.members))
        return Target(
            seeds=reading.endpoints(),
            access=Access(tls=tls, login=login, address_map=self.address_map),
            metrics_port=cozystack.METRICS_PORT,
            volume_size=reading.volume_size,
            quota_bytes=reading.quota_bytes,
            desired=desired,
            paused=reading.paused,
            member_names={m.member_id: m.name for m in desired if m.member_id is not None},
        )

    async def _snapshots(self, namespace: str) -> list[Json]:
        try:
            return await self.api.list(ETCD_SNAPSHOTS, namespace)
        except NotFound:  # the kind is not installed
            return []

    async def _restarts(self, namespace: str, members: Sequence[cozystack.Json]) -> dict[str, int]:
        counts = {}
        for member in members:
            name = member["metadata"]["name"]
            try:
                counts[name] = cozystack.restart_count(await self.api.get(PODS, namespace, name))
            except NotFound:
                continue
        return counts

    async def other_controller(self, obj: Json) -> str | None:
        """The sentence that says that somebody else acts on this EtcdDefrag, or None.

        Another controller for this kind knows nothing of the slot, so both would defragment.
        """
        writer = other_writer(obj)
        if writer:
            return f"{writer} writes this object's status as well"
        for namespace in self.namespaces or ("",):
            fields = f"metadata.name={OTHER_CONTROLLER_LEASE}"
            for lease in await self.api.list(LEASES, namespace, fields=fields):
                if _is_fresh(lease, self.api):
                    where = lease["metadata"]["namespace"]
                    return (
                        f"another operator for EtcdDefrags is alive: it holds the Lease "
                        f"{OTHER_CONTROLLER_LEASE} in namespace {where}"
                    )
        return None


def other_writer(obj: Json) -> str:
    """Who else has written the object's status, going by its managedFields; "" for nobody."""
    for entry in obj.get("metadata", {}).get("managedFields") or ():
        if entry.get("subresource") == "status" and entry.get("manager") != FIELD_MANAGER:
            return str(entry.get("manager"))
    return ""


def _is_fresh(lease: Json, api: KubeApi) -> bool:
    spec = lease.get("spec") or {}
    renewed = read_time(spec.get("renewTime"))
    if not spec.get("holderIdentity") or renewed is None:
        return False
    age = (api.server_now() - renewed).total_seconds()
    return age < float(spec.get("leaseDurationSeconds") or 15)

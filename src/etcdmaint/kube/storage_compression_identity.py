"""Which etcd a clusterRef leads to, and whether it is the one behind this very API server.

The proof is the UID of Namespace kube-system: the API's own must be what stands at its key in that etcd.
No value is decrypted for it, and whatever cannot be read proves nothing. This module must not know what
hangs on the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from etcdmaint.compression.frame import FrameError, decode, is_framed
from etcdmaint.compression.resources import Keyspace, Location
from etcdmaint.compression.stored_value import ENCRYPTED_MAGIC, identify
from etcdmaint.defrag.run import Target
from etcdmaint.errors import EtcdError, EtcdmaintError, MemberUnreachable
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.kube.client import Forbidden, KubeApi, NotFound
from etcdmaint.kube.parts import Parts
from etcdmaint.kube.resources import NAMESPACES

_NAME = "kube-system"
# A Namespace is some hundred bytes; whoever made one of this size does not get it parsed.
_LARGEST = 1 << 18


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of the etcd behind a clusterRef.

    `doubt` says why it is not proven to be this API server's own, "" where it is. `fault` is what keeps
    it from being asked now; `cluster_id` and `doubt` are then what they were before.
    """

    cluster_id: int | None = None
    doubt: str = "it has not been looked at yet"
    fault: EtcdmaintError | None = None

    @property
    def own(self) -> bool:
        """Whether it is proven."""
        return not self.doubt


async def look_at(parts: Parts, target: Target, *, timeout: float) -> Standing:
    """Ask that etcd and the API (RPC Range, GET Namespace); `timeout` (seconds) for each request.

    Raises EtcdError and ClusterNotHealthy, and KubeError while the API is away.
    """
    keyspace = Keyspace(target.kubernetes_prefix.encode())
    key = keyspace.key(Location("", "namespaces", "", _NAME))
    async with await parts.dial(target, timeout=timeout) as cluster:
        return Standing(cluster.cluster_id, await _doubt(cluster, parts.api, key, timeout))


async def _doubt(cluster: ClusterClient, api: KubeApi, key: bytes, timeout: float) -> str:
    stored = await _stored(cluster, key, timeout)
    where = key.decode()
    if stored is None:
        return f"that etcd has no key {where}"
    uid = stored_uid(stored)
    if not uid:
        how = (
            "encrypted" if stored.startswith(ENCRYPTED_MAGIC) else "in a form that is not readable"
        )
        return f"Namespace {_NAME} is stored {how} at {where}, which proves nothing"
    try:
        namespace = await api.get(NAMESPACES, "", _NAME)
    except Forbidden:
        return f"this operator may not read Namespace {_NAME}"
    except NotFound:
        return f"this API server has no Namespace {_NAME}"
    if namespace["metadata"].get("uid") != uid:
        return f"Namespace {_NAME} has another UID there: it is another API server's etcd"
    return ""


async def _stored(cluster: ClusterClient, key: bytes, timeout: float) -> bytes | None:
    """From whichever member answers first: a UID never changes, so an old answer will do."""
    fault: EtcdError = MemberUnreachable("no member can be asked")
    for member in cluster.members:
        try:
            client = cluster.client(member.id)
            found = await client.range(key, limit=1, serializable=True, timeout=timeout)
        except EtcdError as error:
            fault = error
            continue
        return found.kvs[0].value if found.kvs else None
    raise fault


def stored_uid(value: bytes) -> str:
    """The UID of Namespace kube-system in a stored value, "" where it is none that can be read."""
    if is_framed(value):
        try:
            value = decode(value)
        except FrameError:
            return ""
    if len(value) > _LARGEST:
        return ""
    found = identify(value)
    if (found.api_version, found.kind, found.name) != ("v1", "Namespace", _NAME):
        return ""
    return found.uid

"""Which resources of the Kubernetes API are read or written, and where they are."""

from __future__ import annotations

from dataclasses import dataclass

from etcdmaint.api.names import (
    CLUSTER_KIND,
    CLUSTER_PLURAL,
    COMPRESSION_KIND,
    COMPRESSION_PLURAL,
    CONNECTION_KIND,
    CONNECTION_PLURAL,
    COZYSTACK_GROUP,
    COZYSTACK_VERSION,
    DEFRAG_KIND,
    DEFRAG_PLURAL,
    ETCDMAINT_GROUP,
    ETCDMAINT_VERSION,
    MEMBER_KIND,
    MEMBER_PLURAL,
    SNAPSHOT_PLURAL,
)


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource as the API's paths name it; `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As an object's `apiVersion` has it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of a collection, an object or its subresource; all namespaces when none is given."""
        parts = ["apis", self.group] if self.group else ["api"]
        parts.append(self.version)
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(parts)


ETCD_DEFRAGS = Resource(COZYSTACK_GROUP, COZYSTACK_VERSION, DEFRAG_PLURAL, DEFRAG_KIND)
ETCD_CLUSTERS = Resource(COZYSTACK_GROUP, COZYSTACK_VERSION, CLUSTER_PLURAL, CLUSTER_KIND)
ETCD_MEMBERS = Resource(COZYSTACK_GROUP, COZYSTACK_VERSION, MEMBER_PLURAL, MEMBER_KIND)
ETCD_SNAPSHOTS = Resource(COZYSTACK_GROUP, COZYSTACK_VERSION, SNAPSHOT_PLURAL, "EtcdSnapshot")
ETCD_CONNECTIONS = Resource(ETCDMAINT_GROUP, ETCDMAINT_VERSION, CONNECTION_PLURAL, CONNECTION_KIND)
COMPRESSIONS = Resource(ETCDMAINT_GROUP, ETCDMAINT_VERSION, COMPRESSION_PLURAL, COMPRESSION_KIND)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
PODS = Resource("", "v1", "pods", "Pod")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")

FIELD_MANAGER = "etcdmaint"
"""How `managedFields` names us: another writer of a status is not us."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One object, told from an earlier one of the same name by its UID."""

    resource: Resource
    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

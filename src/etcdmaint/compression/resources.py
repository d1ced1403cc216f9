"""Etcd keys of Kubernetes objects, taken apart and put together.

`/registry/` + prefix of the resource + [namespace] + name. The prefix of a built-in resource is its
plural without the group, that of a custom one is `<group>/<plural>`, and a handful are irregular.
The group of a built-in is therefore not in the key: it comes from a closed list, and a prefix
without a dot that is not in it is reported as unknown, never guessed. Nor can a group that ends in
`.k8s.io` be taken for a built-in: `gateway.networking.k8s.io` is none.

Works on bytes: a name that is no UTF-8 survives the way there and back. Knows nothing of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from etcdmaint.errors import InvalidInput

# Kubernetes 1.37, group by group; from its test of every stored resource.
_BUILT_IN: Final = {
    "": "configmaps secrets serviceaccounts pods podtemplates resourcequotas limitranges "
    "persistentvolumeclaims events namespaces persistentvolumes",
    "apps": "daemonsets deployments statefulsets replicasets controllerrevisions",
    "batch": "jobs cronjobs",
    "autoscaling": "horizontalpodautoscalers",
    "policy": "poddisruptionbudgets",
    "coordination.k8s.io": "leases leasecandidates",
    "discovery.k8s.io": "endpointslices",
    "networking.k8s.io": "networkpolicies ingressclasses ipaddresses servicecidrs",
    "certificates.k8s.io": "certificatesigningrequests clustertrustbundles podcertificaterequests",
    "rbac.authorization.k8s.io": "roles rolebindings clusterroles clusterrolebindings",
    "storage.k8s.io": "storageclasses volumeattachments volumeattributesclasses csinodes "
    "csidrivers csistoragecapacities",
    "admissionregistration.k8s.io": "validatingwebhookconfigurations "
    "mutatingwebhookconfigurations validatingadmissionpolicies mutatingadmissionpolicies "
    "validatingadmissionpolicybindings mutatingadmissionpolicybindings",
    "scheduling.k8s.io": "priorityclasses workloads podgroups compositepodgroups",
    "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
    "lifecycle.k8s.io": "evictions evictionrequests",
    "node.k8s.io": "runtimeclasses",
    "resource.k8s.io": "deviceclasses devicetaintrules resourceclaims resourceclaimtemplates "
    "resourceslices resourcepoolstatusrequests",
    "internal.apiserver.k8s.io": "storageversions",
    "storagemigration.k8s.io": "storageversionmigrations",
}
_IRREGULAR: Final = {
    "controllers": ("", "replicationcontrollers"),
    "services/endpoints": ("", "endpoints"),
    "services/specs": ("", "services"),
    "minions": ("", "nodes"),
    "ingress": ("networking.k8s.io", "ingresses"),
    "masterleases": ("", "apiServerIPInfo"),
    "peerserverleases": ("", "apiServerPeerIPInfo"),
    "ranges/serviceips": ("", "serviceipallocations"),
    "ranges/secondaryserviceips": ("", "serviceipallocations"),
    "ranges/servicenodeports": ("", "servicenodeportallocations"),
}
# What the API server stores for itself, past every policy and every encryption.
INTERNAL: Final = frozenset(
    ("", resource)
    for resource in (
        "apiServerIPInfo",
        "apiServerPeerIPInfo",
        "serviceipallocations",
        "servicenodeportallocations",
    )
)
# Served under two groups, stored once.
_ALIASES: Final = {
    ("events.k8s.io", "events"): "events",
    ("extensions", "ingresses"): "ingress",
}


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """An object, as its key tells it. Cluster-scoped ones have the namespace "".

    Bytes that are no UTF-8 are kept as lone surrogates, so that nothing is lost.
    """

    group: str
    resource: str
    namespace: str
    name: str


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


_RESOURCES: Final[dict[bytes, tuple[str, str]]] = {
    _octets(plural): (group, plural)
    for group, plurals in _BUILT_IN.items()
    for plural in plurals.split()
} | {_octets(prefix): resource for prefix, resource in _IRREGULAR.items()}
_PREFIXES: Final[dict[tuple[str, str], bytes]] = {
    # Of two prefixes for one resource the first counts.
    **{resource: prefix for prefix, resource in reversed(_RESOURCES.items())},
    **{resource: _octets(prefix) for resource, prefix in _ALIASES.items()},
}
# Of a prefix in two parts, the first one.
_TWO_PARTS: Final = frozenset(prefix.partition(b"/")[0] for prefix in _RESOURCES if b"/" in prefix)


def shown(octets: bytes) -> str:
    """Bytes for a line of text: what is not printable is escaped, so a terminal obeys none of it."""
    return escaped(octets.decode("utf-8", "backslashreplace"))


def escaped(text: str) -> str:
    """The same for text."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def named(group: str, resource: str) -> str:
    """What a resource is called, `deployments.apps` or `pods`; escaped as `shown` does."""
    return shown(_octets(f"{resource}.{group}" if group else resource))


class Keyspace:
    """The keys below one prefix (`--etcd-prefix`; OpenShift has /kubernetes.io)."""

    __slots__ = ("root",)

    def __init__(self, prefix: bytes = b"/registry") -> None:
        inner = prefix.strip(b"/")
        self.root = b"/" + inner + b"/" if inner else b"/"
        """What every key begins with, with a slash at both ends."""

    def locate(self, key: bytes) -> Location | None:
        """The object behind a key; None outside the prefix or where the resource is not known.

        Takes time in proportion to the length of the key alone.
        """
        found, rest = self._resource(key)
        if found is None:
            return None
        namespace, slash, name = rest.partition(b"/")
        if not slash:
            return Location(*found, "", _text(namespace)) if namespace else None
        if not namespace or not name or b"/" in name:
            return None
        return Location(*found, _text(namespace), _text(name))

    def resource(self, key: bytes) -> tuple[str, str] | None:
        """Group and resource of a key, for those who need no more; None as with `locate`."""
        return self._resource(key)[0]

    def _resource(self, key: bytes) -> tuple[tuple[str, str] | None, bytes]:
        """The resource and what follows its prefix."""
        if not key.startswith(self.root):
            return None, b""
        first, _, rest = key[len(self.root) :].partition(b"/")
        found = _RESOURCES.get(first)
        if found is not None:
            return found, rest
        second, slash, below = rest.partition(b"/")
        if first in _TWO_PARTS:
            found = _RESOURCES.get(first + b"/" + second)
            if first == b"ranges":
                # One object of the whole cluster: its name is in the prefix.
                return (None, b"") if slash else (found, second)
            return found, below
        if b"." in first and second:
            return (_text(first), _text(second)), below
        return None, b""

    def redacted(self, key: bytes) -> str:
        """A key for logs and events: that of a Secret ends with its namespace."""
        found, rest = self._resource(key)
        if found != ("", "secrets"):
            return shown(key)
        namespace, slash, _ = rest.partition(b"/")
        return shown(self.prefix(*found) + (namespace + slash if slash else b"")) + "…"

    def prefix(self, group: str, resource: str) -> bytes:
        """What the keys of a resource begin with, with the slash at the end.

        Raises InvalidInput for a core resource, or one of a group without a dot, that is not known.
        """
        known = _PREFIXES.get((group, resource))
        if known is None:
            if "." not in group:
                told = named(group, resource)
                raise InvalidInput("resource", f"{told} is no resource of Kubernetes")
            known = _octets(f"{group}/{resource}")
        return self.root + known + b"/"

    def key(self, location: Location) -> bytes:
        """The key of an object; the reverse of `locate`."""
        prefix = self.prefix(location.group, location.resource)
        if prefix.startswith(self.root + b"ranges/"):
            return self.root + b"ranges/" + _octets(location.name)
        namespace = _octets(location.namespace) + b"/" if location.namespace else b""
        return prefix + namespace + _octets(location.name)

"""Realistic stored objects: Pods, Events, Leases, Nodes and custom resources, from a seed.

Protobuf without the schema: the structure, the strings, the numbers and the managedFields of the real
kinds, with field numbers of their order. What matters to a compressor is there (names repeated in
labels, references and managed fields; random uids, digests and times), what matters to a decoder of
objects is not.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

_WORDS = tuple(
    f"{one}{other}"
    for one in ("web", "api", "cache", "queue", "work", "mail", "bill", "log", "stock", "edge")
    for other in ("er", "gate", "store", "view", "sync", "hub", "", "base", "flow", "port")
)
_REASONS = ("Scheduled", "Pulled", "Created", "Started", "Killing", "BackOff", "Unhealthy")


class Objects:
    """A source of objects; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def pod(self, size: int) -> bytes:
        """A Pod of about so many bytes: containers until it is large enough."""
        name, namespace = self._name(), self._name()
        labels = self._labels(name)
        containers: list[dict[str, Any]] = []
        while True:
            for _ in range(1 + len(containers) // 8):
                containers.append(self._container(name, 4 + min(size // 4000, 40)))
            value = _stored("v1", "Pod", self._pod(name, namespace, labels, containers))
            if len(value) >= size:
                return value

    def event(self, _size: int = 0) -> bytes:
        """An Event, some 700 bytes."""
        name, namespace = self._name(), self._name()
        reason = self._rng.choice(_REASONS)
        when = self._time()
        return _stored(
            "v1",
            "Event",
            {
                "metadata": self._meta(f"{name}.{self._hex(16)}", namespace, {}, "Event"),
                "involvedObject": {
                    "kind": "Pod",
                    "namespace": namespace,
                    "name": name,
                    "uid": self._uid(),
                    "apiVersion": "v1",
                    "resourceVersion": str(self._rng.randrange(10**9)),
                    "fieldPath": f"spec.containers{{{self._rng.choice(_WORDS)}}}",
                },
                "reason": reason,
                "message": f"{reason}: container image registry.example.com/{name}@sha256:"
                f"{self._hex(64)} on machine node-{self._rng.randrange(500)}",
                "source": {"component": "kubelet", "host": f"node-{self._rng.randrange(500)}"},
                "firstTimestamp": when,
                "lastTimestamp": when,
                "count": self._rng.randrange(1, 90),
                "type": "Normal",
                "reportingComponent": "kubelet",
            },
        )

    def lease(self, _size: int = 0) -> bytes:
        """A Lease, some 400 bytes."""
        name = f"node-{self._rng.randrange(5000)}.example.com"
        return _stored(
            "coordination.k8s.io/v1",
            "Lease",
            {
                "metadata": self._meta(name, "kube-node-lease", {}, "Lease"),
                "spec": {
                    "holderIdentity": name,
                    "leaseDurationSeconds": 40,
                    "renewTime": {"seconds": self._time()["seconds"], "nanos": 0},
                },
            },
        )

    def node(self, size: int = 0) -> bytes:
        """A Node with its images: 50 of them by default, some 14 KB."""
        name = f"node-{self._rng.randrange(5000)}.example.com"
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": "m5.2xlarge",
            "topology.kubernetes.io/region": "eu-central-1",
            "topology.kubernetes.io/zone": "eu-central-1a",
        }
        kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready", "NetworkUnavailable")
        images: list[dict[str, Any]] = []
        while True:
            images.extend(self._image() for _ in range(1 + len(images) // 8 if size else 50))
            value = _stored(
                "v1",
                "Node",
                {
                    "metadata": self._meta(name, "", labels, "Node"),
                    "status": {
                        "conditions": [self._condition(kind, f"Kubelet{kind}") for kind in kinds],
                        "images": images,
                        "capacity": {"cpu": "8", "memory": "32518080Ki", "pods": "110"},
                        "addresses": [{"type": "InternalIP", "address": self._address()}],
                    },
                },
            )
            if len(value) >= size:
                return value

    def custom(self, size: int) -> bytes:
        """A custom resource as JSON, of about so many bytes."""
        name, namespace = self._name(), self._name()
        items: list[dict[str, Any]] = []
        while True:
            for _ in range(1 + len(items) // 8):
                items.append(
                    {
                        "name": self._name(),
                        "enabled": self._rng.random() < 0.5,
                        "weight": self._rng.randrange(100),
                        "digest": f"sha256:{self._hex(64)}",
                        "endpoint": f"https://{self._name()}.example.com:{self._rng.randrange(65536)}",
                        "labels": self._labels(self._name()),
                    }
                )
            value = json.dumps(
                {
                    "apiVersion": "example.com/v1",
                    "kind": "CustomWidget",
                    "metadata": {
                        "name": name,
                        "namespace": namespace,
                        "uid": self._uid(),
                        "generation": self._rng.randrange(1, 40),
                        "labels": self._labels(name),
                        "managedFields": [self._managed("CustomWidget", items[0])],
                    },
                    "spec": {"items": items},
                },
                separators=(",", ":"),
            ).encode()
            if len(value) >= size:
                return value + b"\n"

    def _pod(
        self,
        name: str,
        namespace: str,
        labels: dict[str, str],
        containers: list[dict[str, Any]],
    ) -> dict[str, Any]:
        conditions = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        return {
            "metadata": self._meta(name, namespace, labels, "Pod", containers[:2]),
            "spec": {
                "volumes": [
                    {"name": f"kube-api-access-{self._hex(5)}", "projected": {"defaultMode": 420}},
                    {"name": "config", "configMap": {"name": f"{name}-config"}},
                ],
                "containers": containers,
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 30,
                "dnsPolicy": "ClusterFirst",
                "serviceAccountName": name,
                "nodeName": f"node-{self._rng.randrange(500)}.example.com",
                "schedulerName": "default-scheduler",
                "tolerations": [
                    {
                        "key": f"node.kubernetes.io/{key}",
                        "operator": "Exists",
                        "effect": "NoExecute",
                    }
                    for key in ("not-ready", "unreachable")
                ],
            },
            "status": {
                "phase": "Running",
                "conditions": [self._condition(kind, "") for kind in conditions],
                "hostIP": self._address(),
                "podIP": self._address(),
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "ready": True,
                        "restartCount": self._rng.randrange(5),
                        "image": container["image"],
                        "imageID": f"{container['image'].partition(':')[0]}@sha256:{self._hex(64)}",
                        "containerID": f"containerd://{self._hex(64)}",
                        "startedAt": self._time(),
                    }
                    for container in containers
                ],
                "qosClass": "Burstable",
            },
        }

    def _container(self, pod: str, variables: int) -> dict[str, Any]:
        name = self._name()
        probe = {
            "httpGet": {
                "path": f"/{self._rng.choice(_WORDS)}/healthz",
                "port": self._rng.randrange(1024, 65536),
                "scheme": "HTTP",
            },
            "periodSeconds": self._rng.randrange(1, 60),
            "failureThreshold": 3,
            "timeoutSeconds": 1,
        }
        return {
            "name": name,
            "image": f"registry.example.com/{pod}/{name}:v1.{self._rng.randrange(40)}",
            "args": [
                f"--config=/etc/{name}/config.yaml",
                f"--log-level={self._rng.choice(_WORDS)}",
            ],
            "env": [
                {
                    "name": f"{self._rng.choice(_WORDS)}_{self._rng.choice(_WORDS)}".upper(),
                    "value": self._rng.choice(
                        (
                            f"{self._name()}.{self._name()}.svc.cluster.local",
                            self._token(self._rng.randrange(16, 64)),
                            self._token(self._rng.randrange(8, 24)),
                            str(self._rng.randrange(10**6)),
                        )
                    ),
                }
                for _ in range(variables)
            ],
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "resources": {
                "limits": {"cpu": "500m", "memory": "512Mi"},
                "requests": {"cpu": f"{self._rng.randrange(1, 9) * 50}m", "memory": "128Mi"},
            },
            "volumeMounts": [
                {
                    "name": "config",
                    "readOnly": True,
                    "mountPath": f"/etc/{name}",
                },
                {
                    "name": "kube-api-access",
                    "readOnly": True,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                },
            ],
            "livenessProbe": probe,
            "readinessProbe": probe,
            "terminationMessagePath": "/dev/termination-log",
            "imagePullPolicy": "IfNotPresent",
        }

    def _meta(
        self,
        name: str,
        namespace: str,
        labels: dict[str, str],
        kind: str,
        described: object = None,
    ) -> dict[str, Any]:
        return {
            "name": name,
            "namespace": namespace,
            "uid": self._uid(),
            "creationTimestamp": self._time(),
            "labels": labels,
            "annotations": {
                f"{self._rng.choice(_WORDS)}.example.com/checksum": self._hex(64),
                f"{self._rng.choice(_WORDS)}.example.com/token": self._token(40),
            },
            "managedFields": [self._managed(kind, described or labels)],
        }

    def _managed(self, kind: str, described: object) -> dict[str, Any]:
        return {
            "manager": "kubelet" if kind != "Pod" else "kube-controller-manager",
            "operation": "Update",
            "apiVersion": "v1",
            "time": self._time(),
            "fieldsType": "FieldsV1",
            "fieldsV1": json.dumps(
                {"f:metadata": {"f:labels": {".": {}}}, "f:spec": _fields(described)},
                separators=(",", ":"),
            ),
        }

    def _condition(self, kind: str, reason: str) -> dict[str, Any]:
        return {
            "type": kind,
            "status": "True",
            "lastHeartbeatTime": self._time(),
            "lastTransitionTime": self._time(),
            "reason": reason,
        }

    def _image(self) -> dict[str, Any]:
        image = f"registry.example.com/{self._name()}/{self._name()}"
        return {
            "names": [f"{image}@sha256:{self._hex(64)}", f"{image}:v1.{self._rng.randrange(40)}"],
            "sizeBytes": self._rng.randrange(10**7, 10**9),
        }

    def _labels(self, name: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": name,
            "app.kubernetes.io/instance": f"{name}-{self._rng.choice(_WORDS)}",
            "app.kubernetes.io/managed-by": "Helm",
            "pod-template-hash": self._hex(10),
        }

    def _name(self) -> str:
        return f"{self._rng.choice(_WORDS)}-{self._rng.choice(_WORDS)}-{self._hex(5)}"

    def _token(self, length: int) -> str:
        return base64.b64encode(self._rng.randbytes(length)).decode()

    def _uid(self) -> str:
        return "-".join(self._hex(length) for length in (8, 4, 4, 4, 12))

    def _hex(self, length: int) -> str:
        return f"{self._rng.getrandbits(4 * length):0{length}x}"

    def _address(self) -> str:
        return (
            f"10.{self._rng.randrange(256)}.{self._rng.randrange(256)}.{self._rng.randrange(256)}"
        )

    def _time(self) -> dict[str, int]:
        return {"seconds": 1_780_000_000 + self._rng.randrange(10**7), "nanos": 0}


@cache
def of_size(size: int, count: int, seed: int = 6264) -> list[bytes]:
    """A mix of the kinds that come in about this size."""
    source = Objects(seed)
    kinds: tuple[Callable[[int], bytes], ...]
    if size < 2000:
        kinds = (source.event, source.lease, source.custom, source.event)
    else:
        kinds = (source.pod, source.custom, source.pod, source.node)
    made: list[bytes] = []
    while len(made) < count:
        value = kinds[len(made) % len(kinds)](size)
        if size < 2000:
            # Small kinds have the size that they have: two of them are one object of this size.
            while len(value) < size:
                value += kinds[len(value) % len(kinds)](size)[5:]
            value = value[:size]
        made.append(value)
    return made


def _fields(described: object) -> dict[str, Any]:
    """The shape of a value in the way of managedFields."""
    if isinstance(described, dict):
        return {f"f:{name}": _fields(value) for name, value in described.items()}
    if isinstance(described, list):
        return {
            f'k:{{"name":"{item["name"]}"}}'
            if isinstance(item, dict) and "name" in item
            else f"v:{n}": ({".": {}} | _fields(item))
            for n, item in enumerate(described)
        }
    return {}


def _stored(api_version: str, kind: str, body: dict[str, Any]) -> bytes:
    type_meta = _field(1, api_version) + _field(2, kind)
    return b"k8s\0" + _field(1, type_meta) + _field(2, _message(body)) + b"\x1a\x00\x22\x00"


def _message(body: dict[str, Any]) -> bytes:
    return b"".join(_field(number, value) for number, value in enumerate(body.values(), 1))


def _field(number: int, value: object) -> bytes:
    if isinstance(value, bool | int):
        return _varint(number << 3) + _varint(int(value))
    if isinstance(value, list):
        return b"".join(_field(number, item) for item in value)
    if isinstance(value, dict):
        if any("/" in name for name in value):
            return b"".join(
                _field(number, _field(1, name) + _field(2, text)) for name, text in value.items()
            )
        value = _message(value)
    octets = value.encode() if isinstance(value, str) else value
    assert isinstance(octets, bytes)
    return _varint(number << 3 | 2) + _varint(len(octets)) + octets


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)

"""The programs a real control plane is made of, and the version each is pinned to.

Data only. The go.mod files under ``go/`` are what a build really obeys; the versions are repeated
here because a program has to be asked which one it is before a test may lean on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "go"

_KUBERNETES_VERSION = "1.37.2"
_KUBERNETES_STAMP = "k8s.io/component-base/version"
# Built without these, Kubernetes calls itself v0.0.0-master, and clients that look at the version
# (kubectl's skew warning, kopf's and helm's capability checks) then see something that never was.
_KUBERNETES_LDFLAGS = (
    f"-X {_KUBERNETES_STAMP}.gitVersion=v{_KUBERNETES_VERSION}"
    f" -X {_KUBERNETES_STAMP}.gitMajor=1 -X {_KUBERNETES_STAMP}.gitMinor=37"
)


@dataclass(frozen=True, slots=True)
class Program:
    """One executable: where its source is pinned and how it is recognised.

    ``cold_seconds`` is what a build with empty Go caches took on two cores; it is only ever said,
    never waited for.
    """

    name: str
    version: str
    module: str
    package: str
    version_arguments: tuple[str, ...]
    cold_seconds: int
    ldflags: str = ""
    # True where any version will do and a distribution's own copy is as good as ours.
    from_path: bool = False
    # What `--all` leaves out: only benchmarks or one special test ask for it.
    on_demand: bool = False

    @property
    def module_dir(self) -> Path:
        """The folder with the go.mod and go.sum that pin this program."""
        return MODULES / self.module


def _etcd(name: str, version: str, module: str, seconds: int) -> Program:
    package = "go.etcd.io/etcd/server/v3"
    return Program(name, version, module, package, ("--version",), seconds)


def _kubernetes(name: str, seconds: int, version_arguments: tuple[str, ...]) -> Program:
    return Program(
        name,
        _KUBERNETES_VERSION,
        "kubernetes",
        f"k8s.io/kubernetes/cmd/{name}",
        version_arguments,
        seconds,
        _KUBERNETES_LDFLAGS,
    )


# Cheapest first: `--all` builds in this order, so whoever waits for an etcd waits least.
PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        _etcd("etcd", "3.7.3", "etcd37", 60),
        Program("etcdctl", "3.7.3", "etcd37", "go.etcd.io/etcd/etcdctl/v3", ("version",), 10),
        Program("etcdutl", "3.7.3", "etcd37", "go.etcd.io/etcd/etcdutl/v3", ("version",), 5),
        _etcd("etcd-3.6", "3.6.16", "etcd36", 20),
        _etcd("etcd-3.5", "3.5.35", "etcd35", 20),
        _etcd("etcd-3.5.21", "3.5.21", "etcd3521", 20),
        _kubernetes("kube-apiserver", 320, ("--version",)),
        _kubernetes("kubectl", 30, ("version", "--client")),
        _kubernetes("kube-controller-manager", 135, ("--version",)),
        Program(
            "helm",
            "3.22.0",
            "helm",
            "helm.sh/helm/v3/cmd/helm",
            ("version",),
            60,
            "-X helm.sh/helm/v3/internal/version.version=v3.22.0",
        ),
        Program(
            "promtool",
            "3.13.3",
            "promtool",
            "github.com/prometheus/prometheus/cmd/promtool",
            ("--version",),
            240,
            "-X github.com/prometheus/common/version.Version=3.13.3",
            from_path=True,
            on_demand=True,
        ),
    )
}

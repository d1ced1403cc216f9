"""A real kube-apiserver with its own etcd, on loopback, ready in about five seconds.

No kubelet, no scheduler: the operator needs objects, watches, RBAC, CRDs and the compactor, and
those are all in the one server. The controllers that delete namespaces, collect garbage and migrate
storage versions are there on demand.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from . import build
from .certificates import CertificateAuthority, signing_key
from .etcd import EtcdCluster
from .kubeapi import KubeApi
from .kubeconfig import User, context_for, write_kubeconfig
from .ports import Ports
from .processes import Server, wait_until

CONTROLLERS = (
    # Without it the roles view, edit and admin, which others add to, are empty.
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "storage-version-migrator-controller",
    "serviceaccount-controller",
)
# Known from the start by token; whoever else is asked for gets a client certificate.
DEFAULT_USERS: Mapping[str, Sequence[str]] = {"admin": ["system:masters"], "operator": []}


class ControlPlane:
    """One kube-apiserver in ``folder``, started by ``start`` or ``with``.

    ``etcd`` is a cluster to stand on, already started; without one, a one-member cluster is started
    and stopped along with it. ``compaction_interval`` and ``extra_arguments`` are kube-apiserver's
    own. ``users`` maps names to groups: these log in by token. ``api`` is the test's own hand.
    """

    def __init__(
        self,
        folder: Path,
        *,
        etcd: EtcdCluster | None = None,
        controllers: bool = False,
        users: Mapping[str, Sequence[str]] = DEFAULT_USERS,
        compaction_interval: str | None = None,
        encryption_config: Path | None = None,
        extra_arguments: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._own_etcd = etcd is None
        self.etcd = etcd if etcd is not None else EtcdCluster(folder / "etcd", size=1)
        self.authority = CertificateAuthority("etcdmaint test Kubernetes CA")
        self._ports = Ports()
        self.port = self._ports.take()
        self.url = f"https://127.0.0.1:{self.port}"
        self._users = {
            name: User(name, tuple(groups), token=secrets.token_urlsafe(24))
            for name, groups in {**users, "admin": ["system:masters"]}.items()
        }
        self._kubeconfigs: dict[str, Path] = {}
        self.api = KubeApi(self.url, self._users["admin"].token, context_for(self.authority))
        self.server = Server("kube-apiserver", [], folder / "kube-apiserver.log")
        self.server.arguments = [
            str(build.program("kube-apiserver")),
            *self._files(),
            *self._etcd_arguments(),
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            # Would make each new namespace wait for its default service account.
            "--disable-admission-plugins=ServiceAccount",
            # Nobody reaches the Service `kubernetes` of a cluster without nodes.
            "--endpoint-reconciler-type=none",
            *([f"--etcd-compaction-interval={compaction_interval}"] if compaction_interval else []),
            *([f"--encryption-provider-config={encryption_config}"] if encryption_config else []),
            *extra_arguments,
        ]
        self._controllers = self._controller_manager() if controllers else None

    def start(self, timeout: float = 120.0) -> Self:
        """Start everything and wait until the API server says it is ready."""
        try:
            if self._own_etcd:
                self.etcd.start()
            self.server.start()
            self.wait_ready(timeout)
            if self._controllers is not None:
                self._controllers.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End everything that this object started."""
        if self._controllers is not None:
            self._controllers.kill()
        self.server.kill()
        if self._own_etcd:
            self.etcd.stop()
        self._ports.close()

    def restart(self, timeout: float = 120.0) -> None:
        """End the API server at once and start it again on the same port; every watch breaks."""
        self.server.kill()
        self.server.start()
        self.wait_ready(timeout)

    def pause(self) -> None:
        """Make the API server answer nobody, without ending it."""
        self.server.pause()

    def resume(self) -> None:
        """Let it go on after ``pause``."""
        self.server.resume()

    def wait_ready(self, timeout: float = 120.0) -> None:
        """Wait until ``/readyz`` says ok, and until there is a namespace to put objects into.

        Readiness does not wait for that.
        """
        self.server.wait_until(self.api.ready, "ready", timeout)
        what = "with a default namespace"
        self.server.wait_until(self.api.has_default_namespace, what, timeout)

    def kubeconfig(self, user: str = "admin", groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for a user.

        The users given at the start have tokens and their groups. Any other is let in by a client
        certificate with the groups named here, without any right until a test binds some.
        """
        if user in self._kubeconfigs:
            return self._kubeconfigs[user]
        known = self._users.get(user)
        if known is None:
            pair = self.authority.issue(user, names=(), organizations=groups)
            known = self._users[user] = User(user, tuple(groups), certificate=pair)
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        write_kubeconfig(path, self.url, self.authority.certificate, known)
        self._kubeconfigs[user] = path
        return path

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        user: str = "admin",
        check: bool = True,
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as a user."""
        return subprocess.run(
            self.kubectl_command(*arguments, user=user),
            check=check,
            timeout=timeout,
            input=stdin,
            capture_output=True,
            text=True,
        )

    def kubectl_command(self, *arguments: str, user: str = "admin") -> list[str]:
        """The whole command, for a caller that runs it in its own way."""
        return [
            str(build.program("kubectl")),
            f"--kubeconfig={self.kubeconfig(user)}",
            # Discovery is cached here and not in the home folder of whoever runs the tests.
            f"--cache-dir={self.folder / 'kubectl-cache'}",
            *arguments,
        ]

    def apply(self, manifest: str | Path) -> None:
        """Apply a manifest: its text, or a file or folder with it."""
        if isinstance(manifest, Path):
            self.kubectl("apply", "--filename", str(manifest))
        else:
            self.kubectl("apply", "--filename", "-", stdin=manifest)

    def wait_established(self, crd: str, timeout: float = 60.0) -> None:
        """Wait until a CRD (``plural.group``) is served, its list answers and clients find it.

        Established alone is too early: for a moment a list still answers 429.
        """
        wait_until(partial(self.api.established, crd), f"{crd} is served", timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._own_etcd:
            self.etcd.close()

    def _files(self) -> list[str]:
        folder = self.folder / "pki"
        certificate, key = self.authority.issue("kube-apiserver").write(folder, "apiserver")
        public, private = signing_key().write(folder, "service-account")
        tokens = folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text("".join(map(_token_line, self._users.values())))
        return [
            f"--cert-dir={folder}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.authority.write(folder)}",
            f"--token-auth-file={tokens}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
        ]

    def _etcd_arguments(self) -> list[str]:
        tls = self.etcd.tls
        certificates = (
            [
                f"--etcd-cafile={tls.ca_file}",
                f"--etcd-certfile={tls.client_certificate_file}",
                f"--etcd-keyfile={tls.client_key_file}",
            ]
            if tls
            else []
        )
        return [f"--etcd-servers={','.join(self.etcd.client_urls)}", *certificates]

    def _controller_manager(self) -> Server:
        kubeconfig = self.kubeconfig("admin")
        return Server(
            "kube-controller-manager",
            [
                build.program("kube-controller-manager"),
                f"--kubeconfig={kubeconfig}",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
                "--leader-elect=false",
                f"--controllers={','.join(CONTROLLERS)}",
                f"--secure-port={self._ports.take()}",
                "--bind-address=127.0.0.1",
                f"--cert-dir={self.folder / 'pki'}",
            ],
            self.folder / "kube-controller-manager.log",
        )


def _token_line(user: User) -> str:
    # An empty last column would be a group with no name.
    groups = f',"{",".join(user.groups)}"' if user.groups else ""
    return f"{user.token},{user.name},{user.name}{groups}\n"

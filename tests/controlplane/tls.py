"""TLS between clients and a test cluster's members: the files etcd wants and the client's half.

Peers talk plainly to each other: what they say on loopback is under nobody's test.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path

from .certificates import LOOPBACK, CertificateAuthority, KeyPair


class ClusterTls:
    """Certificates for one cluster, written below ``folder``.

    ``server_names`` are the alternative names of the members' certificate: leave one out to see a
    client refuse it. With ``client_certificates`` the members insist on one signed by the same
    authority.
    """

    def __init__(
        self,
        folder: Path,
        *,
        server_names: Iterable[str] = LOOPBACK,
        client_certificates: bool = True,
        client_name: str = "root",
    ) -> None:
        self.authority = CertificateAuthority("etcdmaint test etcd CA")
        self.client: KeyPair = self.authority.issue(client_name, names=())
        self.client_certificates = client_certificates
        self.ca_file = self.authority.write(folder)
        self.client_certificate_file, self.client_key_file = self.client.write(folder, "client")
        # With authentication on, etcd takes a certificate's common name for a user: the members'
        # own certificate (the gateway shows it to its member) and the harness's have none.
        server = self.authority.issue("", names=server_names, organizations=["etcd"])
        self.server_certificate_file, self.server_key_file = server.write(folder, "server")
        nameless = self.authority.issue("", names=(), organizations=["etcdmaint tests"])
        self._nameless = nameless.write(folder, "harness")

    def server_arguments(self) -> list[str]:
        """The members' flags."""
        insist = ["--client-cert-auth", f"--trusted-ca-file={self.ca_file}"]
        return [
            f"--cert-file={self.server_certificate_file}",
            f"--key-file={self.server_key_file}",
            *(insist if self.client_certificates else []),
        ]

    def etcdctl_arguments(self) -> list[str]:
        """etcdctl's flags."""
        return [
            f"--cacert={self.ca_file}",
            f"--cert={self.client_certificate_file}",
            f"--key={self.client_key_file}",
        ]

    def client_context(self) -> ssl.SSLContext:
        """For the harness's own calls, which must work whatever names the server's certificate has.

        The certificate's chain is still verified.
        """
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.check_hostname = False
        context.load_cert_chain(*self._nameless)
        return context

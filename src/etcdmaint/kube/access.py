"""How this process reaches the Kubernetes API: a kubeconfig, or the Pod's own service account.

The same answer serves the operator's own requests and kopf's, so that both always talk to the same
API server as the same user. Tokens and keys stay inside; nothing here is ever logged.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

from etcdmaint.errors import InvalidInput
from etcdmaint.files import read_whole

AT_ONCE = 32
"""Requests of ours under way together. A connection holds a third of a MiB, and a thousand EtcdDefrags that
wait would open as many as they may; more of them make none faster."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

# The loader takes what it finds for the mappings and texts that should be there.
_UNREADABLE = (
    ConfigException,
    yaml.YAMLError,
    OSError,
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    RecursionError,
)


@dataclass(frozen=True, slots=True, repr=False)
class ApiAccess:
    """An API server and who we are there; certificates are files, since Python's ssl wants files."""

    configuration: Configuration
    namespace: str

    @property
    def server(self) -> str:
        """Its URL."""
        return str(self.configuration.host)

    @property
    def insecure(self) -> bool:
        """Whether the kubeconfig says not to verify the server."""
        return not self.configuration.verify_ssl

    async def authorization(self) -> str:
        """The header's value, read again from the token's file when it is a minute old; or ""."""
        value = await self.configuration.get_api_key_with_prefix("BearerToken")
        return str(value) if value else ""


async def load_access(kubeconfig: str = "") -> ApiAccess:
    """From that kubeconfig, else from $KUBECONFIG, else in-cluster, else from ~/.kube/config.

    Raises InvalidInput with a sentence that says what is missing.
    """
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "")
    configuration = Configuration()
    # No retries behind our back: who asks knows better what to do than a generic back-off.
    configuration.retries = None
    configuration.connection_pool_maxsize = AT_ONCE
    configuration.client_session_kwargs = {"trust_env": False}
    # On from Python 3.13, it refuses certificates that every other client of Kubernetes takes.
    configuration.disable_strict_ssl_verification = True
    if not chosen and os.environ.get("KUBERNETES_SERVICE_HOST"):
        try:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]  # the library has no types
        except ConfigException as error:
            raise InvalidInput("", f"no in-cluster access to the Kubernetes API: {error}") from None
        return ApiAccess(configuration, _own_namespace())
    path = chosen or str(Path.home() / ".kube" / "config")
    field = "--kubeconfig" if kubeconfig else "KUBECONFIG"
    _look_at(path, field)
    try:
        loader = await load_kube_config(  # type: ignore[no-untyped-call]  # the library has no types
            path, client_configuration=configuration, persist_config=False
        )
        context = loader.current_context["context"]
        user = loader._user  # noqa: SLF001  # the loader itself swallows what goes wrong with these
    except _UNREADABLE as error:
        raise InvalidInput(field, f"cannot be read: {_first_line(error)}") from None
    if not configuration.host:
        raise InvalidInput(field, "its current context leads to a cluster without a server")
    if user is not None and not configuration.api_key and not configuration.cert_file:
        for unsupported in ("exec", "auth-provider"):
            if unsupported in user:
                raise InvalidInput(
                    field, f"the user's {unsupported} is not supported: give a token or certificate"
                )
    if configuration.tls_server_name:
        raise InvalidInput(
            field, "tls-server-name is not supported: the server's own name is verified"
        )
    return ApiAccess(configuration, context.get("namespace") or "default")


def _look_at(path: str, field: str) -> None:
    """Refuse a file, or a list of them as $KUBECONFIG may be one, that the loader must not meet."""
    files = [Path(part).expanduser() for part in path.split(os.pathsep) if part]
    there = [file for file in files if file.is_file()]
    if not there:
        raise InvalidInput(field, f"{path} is not there, and this is no Pod with a service account")
    for file in there:
        # It would read on for as long as there is something.
        read_whole(file, field=field, name=str(file))


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return os.environ.get("POD_NAMESPACE", "default")


def _first_line(error: Exception) -> str:
    # A YAML error quotes the file, which may hold a token: only its kind is told.
    if isinstance(error, yaml.YAMLError | UnicodeDecodeError | RecursionError):
        return "it is no YAML"
    if isinstance(error, TypeError | AttributeError):
        return "it is no kubeconfig"
    if isinstance(error, ConfigException):
        # The loader's words may end with the very entry that it cannot use, token and all.
        return str(error).partition("{")[0].splitlines()[0].rstrip("/ ")
    return (str(error) or type(error).__name__).splitlines()[0]

"""`etcdmaint finalizers`: free the objects that an operator which is gone would leave undeletable.

kopf puts a finalizer on every unfinished EtcdDefrag, and only a running operator takes it off. The
chart's pre-delete hook runs this; so may a person. An operator that still runs would put the
finalizer back at once: so it is stopped first, and waited for, as it may be in a member's turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import click
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from etcdmaint.api.names import (
    COZYSTACK_GROUP,
    COZYSTACK_VERSION,
    DEFRAG_KIND,
    DEFRAG_PLURAL,
    FINALIZER,
)
from etcdmaint.cli import output
from etcdmaint.cli.interruption import run
from etcdmaint.cli.parameters import LABEL, NAME, TEXT, WAIT, Parsed
from etcdmaint.clock import Clock, SystemClock
from etcdmaint.errors import InvalidInput
from etcdmaint.kube.access import load_access

_MERGE_PATCH = "application/merge-patch+json"
_PAGE = 500
_GROUP = (COZYSTACK_GROUP, COZYSTACK_VERSION)


@dataclass(frozen=True, slots=True)
class ObjectName:
    """An object's namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def _named(text: str) -> ObjectName:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise InvalidInput("", f"{text!r} is not NAMESPACE/NAME")
    return ObjectName(LABEL.read(namespace), NAME.read(name))


_NAMED = Parsed("NAMESPACE/NAME", _named)


@click.group()
def finalizers() -> None:
    """Free objects that an operator left behind.

    See docs/how-to/uninstall.md.
    """


@finalizers.command()
@click.argument("objects", nargs=-1, type=_NAMED)
@click.option("--all", "everything", is_flag=True, help="Every EtcdDefrag instead of named ones.")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    type=LABEL,
    help="With --all: only in this namespace; may be given several times.",
)
@click.option(
    "--kubeconfig", type=TEXT, help="Default: KUBECONFIG, the Pod's own account, ~/.kube/config."
)
@click.option(
    "--stop-deployment",
    type=_NAMED,
    help="First scale the operator's Deployment to zero: else it puts the finalizers back.",
)
@click.option("--lease", type=_NAMED, help="Then wait until no operator holds this Lease any more.")
@click.option(
    "--wait",
    type=WAIT,
    default="90s",
    help="How long to wait for that at most; afterwards go on all the same.",
)
def strip(
    objects: tuple[ObjectName, ...],
    everything: bool,
    namespaces: tuple[str, ...],
    kubeconfig: str | None,
    stop_deployment: ObjectName | None,
    lease: ObjectName | None,
    wait: float,
) -> None:
    """Take this operator's finalizer off unfinished EtcdDefrags.

    Nothing else of them is changed and no member is touched. A Defragment that is being carried out
    goes on inside etcd; the slot it holds there ends by itself.
    """
    if bool(objects) == everything:
        raise click.UsageError("give either the names of EtcdDefrags or --all")
    if namespaces and not everything:
        raise click.UsageError("--namespace goes with --all")

    async def work() -> int:
        access = await load_access(kubeconfig or "")
        async with client.ApiClient(access.configuration) as api:
            if stop_deployment is not None:
                await stop(api, stop_deployment)
            if lease is not None:
                await wait_for_release(api, lease, SystemClock(), patience=wait)
            found = objects or await carrying(api, namespaces)
            return sum([await strip_one(api, each) for each in found])

    try:
        count = run(work())
    except (ApiException, aiohttp.ClientError, OSError) as error:
        raise click.ClickException(_fault(error)) from error
    click.echo(f"{count} {DEFRAG_KIND}{'' if count == 1 else 's'} freed of {FINALIZER}")


async def stop(api: client.ApiClient, deployment: ObjectName) -> None:
    """Scale a Deployment to zero; one that is gone is stopped already. Raises ApiException."""
    try:
        await client.AppsV1Api(api).patch_namespaced_deployment_scale(
            deployment.name,
            deployment.namespace,
            {"spec": {"replicas": 0}},
            _content_type=_MERGE_PATCH,
        )
    except ApiException as error:
        if error.status != 404:
            raise


async def wait_for_release(
    api: client.ApiClient, lease: ObjectName, clock: Clock, *, patience: float, pause: float = 1.0
) -> bool:
    """Wait until a Lease is gone, has no holder or is not renewed; False when patience ran out.

    A Lease counts as abandoned once its renewTime has not changed for its own duration, by the
    local clock: two machines' clocks are never compared. Raises ApiException.
    """
    leases = client.CoordinationV1Api(api)
    deadline = clock.monotonic() + patience
    seen, since = None, clock.monotonic()
    while True:
        try:
            spec = (await leases.read_namespaced_lease(lease.name, lease.namespace)).spec
        except ApiException as error:
            if error.status != 404:
                raise
            return True
        if spec is None or not spec.holder_identity:
            return True
        now = clock.monotonic()
        if seen is None or seen != spec.renew_time:
            seen, since = spec.renew_time, now
        elif now - since >= (spec.lease_duration_seconds or 0):
            return True
        if now >= deadline:
            output.print_note(f"{spec.holder_identity} still holds Lease {lease}; going on")
            return False
        await clock.sleep(pause)


async def carrying(api: client.ApiClient, namespaces: tuple[str, ...]) -> tuple[ObjectName, ...]:
    """The EtcdDefrags with our finalizer, in these namespaces or in all. Raises ApiException."""
    found: list[ObjectName] = []
    for namespace in namespaces or ("",):
        for item in await _listed(client.CustomObjectsApi(api), namespace):
            metadata = item["metadata"]
            if FINALIZER in metadata.get("finalizers", ()):
                found.append(ObjectName(metadata["namespace"], metadata["name"]))
    return tuple(found)


async def _listed(custom: Any, namespace: str) -> list[Any]:
    everywhere, within = custom.list_cluster_custom_object, custom.list_namespaced_custom_object
    where = (*_GROUP, namespace, DEFRAG_PLURAL) if namespace else (*_GROUP, DEFRAG_PLURAL)
    items: list[Any] = []
    pages: dict[str, Any] = {"limit": _PAGE}
    while True:
        try:
            page = await (within if namespace else everywhere)(*where, **pages)
        except ApiException as error:
            if error.status == 404:  # the kind itself is not installed
                return []
            raise
        items += page["items"]
        pages["_continue"] = page["metadata"].get("continue")
        if not pages["_continue"]:
            return items


async def strip_one(api: client.ApiClient, target: ObjectName) -> bool:
    """Take our finalizer off one EtcdDefrag; False if it has none, or is gone.

    The patch carries the resourceVersion, so that somebody else's finalizer which comes meanwhile
    is never lost. Raises ApiException.
    """
    custom: Any = client.CustomObjectsApi(api)
    where = (*_GROUP, target.namespace, DEFRAG_PLURAL, target.name)
    while True:
        try:
            metadata = (await custom.get_namespaced_custom_object(*where))["metadata"]
            kept = [each for each in metadata.get("finalizers", ()) if each != FINALIZER]
            if len(kept) == len(metadata.get("finalizers", ())):
                return False
            change = {"resourceVersion": metadata["resourceVersion"], "finalizers": kept}
            await custom.patch_namespaced_custom_object(
                *where, {"metadata": change}, _content_type=_MERGE_PATCH
            )
        except ApiException as error:
            if error.status == 404:
                return False
            if error.status != 409:
                raise
        else:
            click.echo(f"{DEFRAG_KIND} {target}")
            return True


def _fault(error: BaseException) -> str:
    """One sentence, without the headers and the body that ApiException would print."""
    if isinstance(error, ApiException):
        return f"the Kubernetes API answered {error.status} {error.reason}"
    return f"the Kubernetes API cannot be reached: {error}"

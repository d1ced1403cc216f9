"""`etcdmaint operator`: what the chart's Deployment runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from etcdmaint.cli.parameters import Duration, KubernetesName, Text


@click.command("operator")
@click.option(
    "--kubeconfig",
    type=Text(),
    metavar="FILE",
    envvar="KUBECONFIG",
    show_envvar=True,
    help="How to reach Kubernetes. Default: the Pod's own service account.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    type=KubernetesName(label=True),
    metavar="NAME",
    help="Watch this namespace; may be repeated. Default: all.",
)
@click.option(
    "--listen-address",
    default=":8080",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve /metrics, /healthz and /readyz.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to write the log.",
)
@click.option(
    "--lease-namespace",
    type=KubernetesName(label=True),
    envvar="POD_NAMESPACE",
    show_envvar=True,
    metavar="NAME",
    help="Namespace of the Lease. Default: the Pod's own, else default.",
)
@click.option(
    "--lease-name",
    type=KubernetesName(),
    default="etcdmaint",
    show_default=True,
    metavar="NAME",
    help="Name of the Lease.",
)
@click.option(
    "--lease-duration",
    type=Duration(),
    default="137s",
    show_default=True,
    metavar="DURATION",
    help="After how long without a renewal another replica takes over.",
)
@click.option(
    "--renew-deadline",
    type=Duration(),
    default="107s",
    show_default=True,
    metavar="DURATION",
    help="After how long without a renewal this replica stops to act.",
)
@click.option(
    "--retry-period",
    type=Duration(),
    default="26s",
    show_default=True,
    metavar="DURATION",
    help="How often the Lease is renewed.",
)
@click.option(
    "--max-concurrent-runs",
    type=click.IntRange(min=1, max=1000),
    default=8,
    show_default=True,
    metavar="NUMBER",
    help="How many clusters may be defragmented at the same time.",
)
@click.option(
    "--active-deadline",
    type=Duration(),
    default="60m",
    show_default=True,
    metavar="DURATION",
    help="The least time that a run has, from its creation to its end; large members get more.",
)
@click.option(
    "--drain",
    type=Duration(zero=True),
    default="45s",
    show_default=True,
    metavar="DURATION",
    help="How long SIGTERM waits for members in flight; less than the Pod's grace period.",
)
@click.option(
    "--etcd-address-map",
    type=Text(),
    metavar="FILE",
    help="File with lines `advertised-host:port reachable-host:port`: for port-forwards and NAT.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Work on EtcdClusters although another controller for EtcdDefrag is there too.",
)
@click.option(
    "--accept-older-crd",
    is_flag=True,
    help="Work although an older EtcdDefrag CRD is installed, which drops fields it does not know.",
)
def operator(
    kubeconfig: str | None,
    namespaces: tuple[str, ...],
    listen_address: str,
    log_format: str,
    lease_namespace: str | None,
    lease_name: str,
    lease_duration: float,
    renew_deadline: float,
    retry_period: float,
    max_concurrent_runs: int,
    active_deadline: float,
    drain: float,
    etcd_address_map: str | None,
    take_over: bool,
    accept_older_crd: bool,
) -> int:
    """Run the Kubernetes operator until SIGTERM.

    It carries out EtcdDefrag objects, reports on EtcdConnection objects, has etcd compacted where
    one of them or an EtcdCluster asks for it, and publishes StorageCompressionConfiguration objects.
    On SIGTERM it finishes the members in flight, as long as --drain allows, and gives its Lease back.
    """
    from etcdmaint.operator import OperatorOptions, run_operator

    options = OperatorOptions(
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        namespaces=namespaces,
        listen_address=listen_address,
        log_format=log_format,
        lease_namespace=lease_namespace or "default",
        lease_name=lease_name,
        lease_duration=lease_duration,
        renew_deadline=renew_deadline,
        retry_period=retry_period,
        max_concurrent_runs=max_concurrent_runs,
        active_deadline=active_deadline,
        drain=drain,
        etcd_address_map=Path(etcd_address_map) if etcd_address_map else None,
        take_over=take_over,
        accept_older_crd=accept_older_crd,
    )
    return asyncio.run(run_operator(options))

"""`etcdmaint operator`: what the chart's Deployment runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from etcdmaint.cli.parameters import DURATION, LABEL, NAME, TEXT, WAIT


@click.command("operator")
@click.option(
    "--kubeconfig",
    type=TEXT,
    metavar="FILE",
    envvar="KUBECONFIG",
    show_envvar=True,
    help="How to reach Kubernetes. Default: the Pod's own service account.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    type=LABEL,
    help="Watch this namespace; may be repeated. Default: all.",
)
@click.option(
    "--listen-address",
    default=":8080",
    metavar="HOST:PORT",
    help="Where to serve /metrics, /healthz and /readyz.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How to write the log.",
)
@click.option(
    "--lease-namespace",
    type=LABEL,
    envvar="POD_NAMESPACE",
    show_envvar=True,
    help="Namespace of the Lease. Default: the Pod's own, else default.",
)
@click.option("--lease-name", type=NAME, default="etcdmaint", help="Name of the Lease.")
@click.option(
    "--lease-duration",
    type=DURATION,
    default="137s",
    help="After how long without a renewal another replica takes over.",
)
@click.option(
    "--renew-deadline",
    type=DURATION,
    default="107s",
    help="After how long without a renewal this replica stops to act.",
)
@click.option(
    "--retry-period", type=DURATION, default="26s", help="How often the Lease is renewed."
)
@click.option(
    "--max-concurrent-runs",
    type=click.IntRange(min=1, max=1000),
    default=8,
    metavar="NUMBER",
    help="How many clusters may be defragmented at the same time.",
)
@click.option(
    "--active-deadline",
    type=DURATION,
    default="60m",
    help="The least time that a run has, from its creation to its end; large members get more.",
)
@click.option(
    "--drain",
    type=WAIT,
    default="45s",
    help="How long SIGTERM waits for members in flight; less than the Pod's grace period.",
)
@click.option(
    "--etcd-address-map",
    type=TEXT,
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
    kubeconfig: str | None, etcd_address_map: str | None, lease_namespace: str | None, **flags: Any
) -> int:
    """Run the Kubernetes operator until SIGTERM.

    It carries out EtcdDefrag objects, reports on EtcdConnection objects, has etcd compacted where
    one of them or an EtcdCluster asks for it, and publishes StorageCompressionConfiguration objects.
    On SIGTERM it finishes the members in flight, as long as --drain allows, and gives its Lease back.
    """
    from etcdmaint.operator import OperatorOptions, run_operator

    options = OperatorOptions(
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        etcd_address_map=Path(etcd_address_map) if etcd_address_map else None,
        lease_namespace=lease_namespace or "default",
        **flags,
    )
    return asyncio.run(run_operator(options))

"""The flags that more than one command has, each described once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from etcdmaint.cli.parameters import FILE, KEYSPACE, SIZE

if TYPE_CHECKING:
    from etcdmaint.compression.encryption.chain import EncryptionChain

Command = TypeVar("Command", bound=Callable[..., Any])

KMS_RATE = 10.0
"""Decrypt calls a second to a KMS plugin, at most."""


def output_flag(*styles: str, **keywords: Any) -> Callable[[Command], Command]:
    """`-o`, as argument `style`: the first of the styles where none is given."""
    keywords = {"default": styles[0], "help": "How to write the result.", **keywords}
    return click.option("-o", "--output", "style", type=click.Choice(styles), **keywords)


volume_size = click.option(
    "--volume-size",
    type=SIZE,
    help="Size of the volume that holds each member's data: a member is left alone where the copy that "
    "defragmenting writes would not fit.",
)
break_lock = click.option(
    "--break-lock",
    is_flag=True,
    help="Take the cluster from whoever holds it. Make sure that they are gone.",
)
storage_prefix = click.option(
    "--storage-prefix",
    "keyspace",
    type=KEYSPACE,
    default="/registry",
    help="kube-apiserver's --etcd-prefix: where its objects are.",
)
encryption_config = click.option(
    "--encryption-config",
    type=FILE,
    help="kube-apiserver's --encryption-provider-config: the keys of encrypted values.",
)


def chain_of(path: Path | None, kms_rate: float = KMS_RATE) -> EncryptionChain | None:
    """The keys that --encryption-config names, until the command ends. Raises InvalidInput."""
    if path is None:
        return None
    from etcdmaint.compression.encryption.chain import EncryptionChain
    from etcdmaint.compression.encryption.configuration import EncryptionConfiguration
    from etcdmaint.compression.encryption.pace import Pace

    chain = EncryptionChain(EncryptionConfiguration.read(path), pace=Pace(kms_rate))
    # It may have dialled a KMS plugin.
    click.get_current_context().call_on_close(chain.close)
    return chain


show_secrets = click.option("--show-secrets", is_flag=True, help="Show the values of Secrets.")
to_terminal = click.option(
    "--to-terminal", is_flag=True, help="Write raw bytes even where they reach a terminal."
)

"""`etcdmaint storage`: look into what Kubernetes has stored in etcd.

The commands are elsewhere, and each is imported when it is called: a look into one value needs
nothing of what a scan needs.
"""

from __future__ import annotations

import click

from etcdmaint.cli.connection import CONNECTION_FLAGS
from etcdmaint.cli.lazy import Lazy, LazyGroup

_ONE = "etcdmaint.cli.storage_value"


@click.group(
    "storage",
    cls=LazyGroup,
    lazy={
        "identify": Lazy(_ONE, "identify_", "Tell what a value is, layer by layer."),
        "show": Lazy(_ONE, "show", "Show the object in a value."),
        "frame": Lazy(_ONE, "frame_", "Frame a plaintext, as a writer of KEP-6264 does."),
        "unframe": Lazy(_ONE, "unframe", "Take the frame off a value."),
        "decrypt": Lazy(_ONE, "decrypt", "Take the encryption off a value, and nothing else."),
        "encrypt": Lazy(_ONE, "encrypt", "Encrypt a value as kube-apiserver would write it."),
        "get": Lazy("etcdmaint.cli.storage_get", "get", "Show an object of etcd, and its history."),
        "scan": Lazy("etcdmaint.cli.storage_scan", "scan", "Tell what fills this etcd."),
        "estimate": Lazy(
            "etcdmaint.cli.storage_estimate", "estimate", "Tell what compression would save."
        ),
        "validate": Lazy(
            "etcdmaint.cli.storage_validate", "validate", "Check files for kube-apiserver."
        ),
        "render": Lazy("etcdmaint.cli.storage_validate", "render", "Write a configuration's file."),
        "verify-downgrade": Lazy(
            "etcdmaint.cli.storage_verify", "verify_downgrade", "Prove that no frame is left."
        ),
        "check-vectors": Lazy(
            "etcdmaint.cli.check_vectors", "check_vectors", "Check another reader of frames."
        ),
    },
    # Connection flags may stand before the command here too.
    leading=CONNECTION_FLAGS,
)
def storage() -> None:
    """Look into what Kubernetes has stored in etcd."""

"""Give an etcd something to compact and defragment, quickly.

A defragmentation is only worth testing on a database with free pages in it. Those are made as they
are in life: keys are written, some are deleted, and a compaction drops the deleted revisions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .gateway import Gateway, GatewayError, text
from .processes import wait_until

# etcd refuses requests above 1.5 MiB and transactions of more than 128 operations.
_BATCH_BYTES = 1_000_000
_BATCH_KEYS = 100
_WRITERS = 4
# gRPC's Unavailable: an election is going on, or one cost the request its answer.
_UNAVAILABLE = 14


def fill(
    gateway: Gateway,
    *,
    bytes_live: int,
    bytes_deleted: int,
    value_size: int,
    prefix: bytes,
    compact: bool = True,
) -> None:
    """Write both kinds of data in one mixture, delete the one kind, and compact.

    The two are interleaved, as old and new revisions are in life, so that free pages lie all over
    the file. Keys are PREFIX + ``live/`` or ``dead/`` + a number.
    """
    live, dead = bytes_live // value_size, bytes_deleted // value_size
    kinds = _interleaved(live, dead)
    keys = [prefix + b"%s/%08d" % (kind, number) for number, kind in enumerate(kinds)]
    size = max(1, min(_BATCH_KEYS, _BATCH_BYTES // value_size))
    batches = [keys[at : at + size] for at in range(0, len(keys), size)]
    # Random, so that no layer can compress it; the same for all keys, since nobody looks.
    value = text(os.urandom(value_size))

    def write(batch: list[bytes]) -> None:
        puts = [{"requestPut": {"key": text(key), "value": value}} for key in batch]
        _ask(gateway, "/v3/kv/txn", {"success": puts})

    with ThreadPoolExecutor(_WRITERS) as writers:
        for _ in writers.map(write, batches):
            pass
    if dead:
        _delete_prefix(gateway, prefix + b"dead/")
    if compact and keys:
        gateway.compact(gateway.put(prefix + b"done", b""))


def _interleaved(live: int, dead: int) -> list[bytes]:
    total = live + dead
    # Bresenham's rule: the dead ones spread evenly over the whole.
    return [
        b"dead" if (at + 1) * dead // total > at * dead // total else b"live" for at in range(total)
    ]


def _delete_prefix(gateway: Gateway, prefix: bytes) -> None:
    end = prefix[:-1] + bytes([prefix[-1] + 1])
    _ask(gateway, "/v3/kv/deleterange", {"key": text(prefix), "range_end": text(end)})


def _ask(gateway: Gateway, path: str, body: Mapping[str, Any]) -> None:
    """Ask for what may be done twice; a busy machine has elections that nobody called for."""

    def done() -> bool:
        try:
            gateway.post(path, body, timeout=60.0)
        except GatewayError as error:
            if error.code != _UNAVAILABLE:
                raise
            return False
        return True

    wait_until(done, f"{path} is answered", 60.0, pause=0.1)

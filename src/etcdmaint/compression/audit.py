"""What is stored, by resource and form: one way through etcd with a census at its side.

The command line and the operator ask here. Everything that is known so far is in an `Audit`, also
when the way was broken off, and `resume_token` makes one line of it to go on from later.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from etcdmaint.clock import Clock
from etcdmaint.compression.census import Census
from etcdmaint.compression.governor import Governor
from etcdmaint.compression.source import Source
from etcdmaint.compression.walk import Courtesy, Progress, Timing, Walk, take
from etcdmaint.errors import InvalidInput

_VERSION: Final = 1
_MOST_TOKEN: Final = 1 << 24


@dataclass(slots=True)
class Audit:
    """The count and how far it has come. Counts are equal to the truth only if `consistent`."""

    census: Census
    progress: Progress = field(default_factory=Progress)

    @property
    def consistent(self) -> bool:
        """Whether everything was read, and at one revision."""
        return self.progress.consistent


async def audit(
    state: Audit,
    source: Source,
    *,
    clock: Clock,
    courtesy: Courtesy,
    timing: Timing,
    bytes_per_second: float | None = None,
    exact: bool = False,
    governor: Governor | None = None,
) -> Audit:
    """Count everything in `state.progress.spans` that is not counted yet, into `state`.

    See `Walk` for what it raises, and KmsUnavailable where values are decrypted by a plugin; `state`
    is then good to go on from.
    """
    walk = Walk(
        state.progress,
        source,
        governor=governor or Governor(bytes_per_second, clock),
        clock=clock,
        courtesy=courtesy,
        timing=timing,
        exact=exact,
    )
    async with aclosing(walk.chunks()) as chunks:
        async for chunk in chunks:
            await take(chunk, state.census.add, state.progress)
    return state


def resume_token(state: Audit, cluster_id: int, question: str) -> str:
    """One line that `resume_audit` goes on from. `question` is what was asked for, in any words."""
    progress = state.progress
    told = {
        "v": _VERSION,
        "cluster": f"{cluster_id:016x}",
        "question": _digest(question),
        "position": progress.position.hex(),
        "revisions": progress.revisions,
        "keys": progress.keys,
        "bytes": progress.bytes,
        "census": state.census.dump(),
    }
    packed = zlib.compress(json.dumps(told, separators=(",", ":")).encode(), 9)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def resume_audit(state: Audit, token: str, cluster_id: int, question: str) -> None:
    """Put into a fresh `state` what the token holds.

    Raises InvalidInput for rubbish, and for the token of another cluster or another question.
    """
    try:
        packed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        # A token of a few lines may claim to hold gigabytes.
        data = zlib.decompressobj().decompress(packed, _MOST_TOKEN)
        told: dict[str, Any] = json.loads(data)
        if told["v"] != _VERSION:
            raise InvalidInput("--resume", "was printed by another release")
        if told["cluster"] != f"{cluster_id:016x}":
            raise InvalidInput("--resume", "is of another etcd cluster")
        if told["question"] != _digest(question):
            raise InvalidInput("--resume", "is of a scan with other flags")
        progress = state.progress
        state.census.restore(told["census"])
        progress.position = bytes.fromhex(told["position"])
        progress.revisions = [int(revision) for revision in told["revisions"]]
        progress.keys, progress.bytes = int(told["keys"]), int(told["bytes"])
    except InvalidInput:
        raise
    except (ValueError, KeyError, TypeError, OverflowError, zlib.error, RecursionError):
        raise InvalidInput("--resume", "is no token that a scan has printed") from None


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:16]

"""Writes the record of a run into its EtcdDefrag: compare and swap, for as long as it takes.

Each attempt reads the object, computes the status and writes it only if nobody has changed the object
in between. This module must not know what the status means, but for one thing: a terminal phase is
never left again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from etcdmaint.clock import Clock
from etcdmaint.defrag.run import Fence, RecordRefused, RunGone, RunState
from etcdmaint.kube.client import (
    Conflict,
    Forbidden,
    Json,
    KubeApi,
    NotFound,
    Unavailable,
    read_exactly,
)
from etcdmaint.kube.resources import ObjectRef
from etcdmaint.kube.status import phase_of, write_state
from etcdmaint.kube.verdict import merge_patch

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 5.0
_LONGEST_REFUSAL = 600.0
"""How long rights that are missing are waited for: a cluster's slot may be held meanwhile (D4)."""


@dataclass(frozen=True, slots=True)
class DefragJournal:
    """Implements `defrag.run.Journal` for one EtcdDefrag."""

    api: KubeApi
    ref: ObjectRef
    fence: Fence
    clock: Clock

    async def record(self, state: RunState) -> None:
        """Write the state; nothing is written when the status says so already.

        Raises RunGone when the object is not there any more, is another one, or was ended by somebody
        else; LeadershipLost when this process may not write any more; RecordRefused after ten minutes
        without the right to.
        """
        what = f"status of {self.ref}"
        try:
            await persist(lambda: self._attempt(state), self.fence, self.clock, what)
        except Forbidden as error:
            raise RecordRefused(str(error)) from error

    async def read(self) -> Json:
        """The object as it is; raises RunGone, LeadershipLost, and Forbidden after ten minutes."""
        return await persist(self._get, self.fence, self.clock, str(self.ref))

    async def _get(self) -> Json:
        return await read_object(self.api, self.ref)

    async def _attempt(self, state: RunState) -> None:
        while True:
            obj = await self._get()
            phase = phase_of(obj)
            if phase.terminal and state.phase is not phase:
                raise RunGone(f"EtcdDefrag {self.ref} is {phase} already")
            patch = merge_patch(obj.get("status"), write_state(obj, state, self.clock.now()))
            if not patch:
                return
            self.fence.assert_held()
            try:
                await self.api.patch_status(self.ref, patch, obj["metadata"]["resourceVersion"])
            except Conflict:
                self.api.observer.status_conflict()
                continue
            except NotFound:
                raise RunGone(f"EtcdDefrag {self.ref} is not there any more") from None
            return


async def read_object(api: KubeApi, ref: ObjectRef) -> Json:
    """The object, or RunGone when it is not there or another one has its name."""
    try:
        return await read_exactly(api, ref)
    except NotFound as gone:
        raise RunGone(str(gone)) from None


async def persist(attempt: Callable[[], Awaitable[T]], fence: Fence, clock: Clock, what: str) -> T:
    """Try until the API server carries it out, for as long as this process leads (D38).

    Raises LeadershipLost, and whatever the attempt raises but Unavailable; Forbidden after ten minutes:
    rights that are missing now may be given later.
    """
    pause = _FIRST_PAUSE
    refused_since: float | None = None
    while True:
        try:
            return await attempt()
        except (Unavailable, Forbidden) as error:
            if isinstance(error, Unavailable):
                refused_since = None
            elif refused_since is None:
                refused_since = clock.monotonic()
            elif clock.monotonic() - refused_since >= _LONGEST_REFUSAL:
                raise
            if pause == _FIRST_PAUSE:
                log.warning(
                    "waits for the Kubernetes API", extra={"what": what, "error": str(error)}
                )
        fence.assert_held()
        await clock.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * 2)

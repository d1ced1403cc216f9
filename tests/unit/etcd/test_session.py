"""One log-in for however many calls need one."""

from __future__ import annotations

import asyncio

from etcdmaint.errors import AuthenticationFailed, MemberUnreachable, RPCTimeout
from etcdmaint.etcd.session import Session


class Etcd:
    """Hands out numbered tokens, or fails in the ways it is told."""

    def __init__(self) -> None:
        self.asked = 0
        self.failures: list[Exception] = []
        self.hangs = False

    async def __call__(self, deadline: float) -> str:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        return f"token-{self.asked}"


def soon() -> float:
    return asyncio.get_running_loop().time() + 60


async def test_fifty_calls_at_once_log_in_once_and_once_more_when_the_token_expires() -> None:
    """D50: single flight, also of the refresh."""
    etcd = Etcd()
    session = Session(etcd, "a:1")
    first = await asyncio.gather(*(session.token(soon()) for _ in range(50)))
    second = await asyncio.gather(*(session.token(soon(), stale="token-1") for _ in range(50)))
    assert set(first) == {"token-1"}
    assert set(second) == {"token-2"}
    assert etcd.asked == 2


async def test_a_wrong_password_is_tried_once_for_all_who_wait_and_again_by_the_next() -> None:
    """D50: no hot loop."""
    etcd = Etcd()
    etcd.failures = [AuthenticationFailed("no")]
    session = Session(etcd, "a:1")
    results = await asyncio.gather(
        *(session.token(soon()) for _ in range(50)), return_exceptions=True
    )
    assert {type(result) for result in results} == {AuthenticationFailed}
    assert etcd.asked == 1
    assert await session.token(soon()) == "token-2"


async def test_a_log_in_that_met_no_connection_is_tried_by_the_next_in_line() -> None:
    etcd = Etcd()
    etcd.failures = [MemberUnreachable("away")]
    session = Session(etcd, "a:1")
    results = await asyncio.gather(
        *(session.token(soon()) for _ in range(3)), return_exceptions=True
    )
    assert [str(result) for result in results] == ["away", "token-2", "token-2"]


async def test_a_log_in_that_hangs_ends_with_each_callers_deadline() -> None:
    etcd = Etcd()
    etcd.hangs = True
    session = Session(etcd, "a:1")
    loop = asyncio.get_running_loop()
    results = await asyncio.gather(
        *(session.token(loop.time() + 0.01) for _ in range(2)), return_exceptions=True
    )
    assert {type(result) for result in results} == {RPCTimeout}
    assert str(results[0]) == "no answer in time to the log-in at a:1"


async def test_who_is_cancelled_in_a_log_in_leaves_it_to_the_next_in_line() -> None:
    """D50: single flight, whoever goes away in mid-flight."""
    etcd = Etcd()
    etcd.hangs = True
    session = Session(etcd, "a:1")
    first = asyncio.ensure_future(session.token(soon()))
    second = asyncio.ensure_future(session.token(soon()))
    await asyncio.sleep(0)
    etcd.hangs = False
    first.cancel()
    assert await second == "token-2"
    assert first.cancelled()
    assert etcd.asked == 2

"""One gRPC channel to one address, and whether anything can be sent on it.

A channel is never balanced and never shared: each has its own connection, so that who answers is
who was asked. Whether a call was sent at all is decided here, before it: while the channel is not
READY nothing has left this process (MemberUnreachable), after that the outcome of a broken call is
unknown (ConnectionLost). This module knows no RPC.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

import grpc
from grpc import aio

from etcdmaint.errors import EtcdError, MemberUnreachable, TLSFailed
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.diagnosis import diagnose
from etcdmaint.etcd.endpoint import Endpoint

# More than etcd will hold, but a bound for a peer that is not etcd.
_LARGEST_ANSWER = 512 * 1024 * 1024
_FAILED = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class Connection:
    """Opens the channel when it is first needed, and afresh after a failed attempt."""

    def __init__(self, endpoint: Endpoint, access: Access, *, keepalive: float) -> None:
        self._endpoint = endpoint
        self._tls = access.tls
        self._dialled = access.address_map.resolve(endpoint)
        self._server_name = (access.tls and access.tls.server_name) or endpoint.host
        self._keepalive = keepalive
        self._channel: aio.Channel | None = None
        # Channels that have failed while calls were still open on them, as when a server says
        # goodbye. Closing one would cancel its calls.
        self._retired: list[aio.Channel] = []
        self._calls: Counter[aio.Channel] = Counter()
        self._connecting = asyncio.Lock()
        self.closed = False

    async def ready(self, deadline: float) -> aio.Channel:
        """The channel, connected; `deadline` is in the event loop's time.

        Raises MemberUnreachable, TLSFailed or NotEtcd: in each case nothing was sent.
        """
        if self.connected:
            return self._channel
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(deadline), self._connecting:
                # Somebody else may have connected it while we waited.
                if not self.connected:
                    await self._connect()
                return self._channel
        except TimeoutError:
            raise self._unreachable(
                MemberUnreachable(f"no connection within {round(max(deadline - begun, 0), 2):g} s")
            ) from None

    @property
    def connected(self) -> bool:
        """Whether a call can be sent at once."""
        channel = self._channel
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.READY

    async def _connect(self) -> None:
        self._check_open()
        if self._tls is not None and not self._endpoint.secure:
            raise self._unreachable(TLSFailed("http:// is not dialled where TLS is configured"))
        if self._tls is None and self._endpoint.secure:
            raise self._unreachable(TLSFailed("https:// needs a CA to verify it with"))
        if self._channel is not None and self._channel.get_state() in _FAILED:
            # An attempt from before, perhaps of gRPC's own accord: it tells nothing about now.
            await self._drop()
        if self._channel is None:
            self._channel = self._open()
        channel = self._channel
        try:
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state in _FAILED:
                    self._check_open()
                    raise self._unreachable(
                        await diagnose(self._dialled, self._tls, self._server_name)
                    )
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
        finally:
            if not self.connected:
                await self._drop()

    def _check_open(self) -> None:
        if self.closed:
            raise self._unreachable(MemberUnreachable("this client is closed"))

    def _open(self) -> aio.Channel:
        options: list[tuple[str, int | str]] = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.lb_policy_name", "pick_first"),
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.enable_http_proxy", 0),
            # Off with every kind: a Defragment that is sent twice runs twice.
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", _LARGEST_ANSWER),
            ("grpc.max_send_message_length", -1),
            # What the peer may send ahead of its reader: gRPC would widen it to tens of megabytes.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 1 << 20),
            # A host that vanishes under a long call is noticed by pings, sent only while a call is
            # open (etcd hangs up on more). ping_timeout_ms is the one that ends the call;
            # without max_pings_without_data = 0 they would stop after the second.
            ("grpc.keepalive_time_ms", int(self._keepalive * 1000)),
            ("grpc.keepalive_timeout_ms", int(self._keepalive * 1000)),
            ("grpc.http2.ping_timeout_ms", int(self._keepalive * 1000)),
            ("grpc.keepalive_permit_without_calls", 0),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        # With a scheme, no name can be taken for another kind of address.
        target = f"dns:///{self._dialled.target}"
        if self._tls is None:
            return aio.insecure_channel(target, options=options)
        if self._server_name != self._dialled.host:
            options.append(("grpc.ssl_target_name_override", self._server_name))
        credentials = grpc.ssl_channel_credentials(
            root_certificates=self._tls.ca,
            private_key=self._tls.key,
            certificate_chain=self._tls.certificate,
        )
        return aio.secure_channel(target, credentials, options=options)

    def _unreachable(self, why: EtcdError) -> EtcdError:
        return type(why)(
            f"{self._endpoint}: {why}", code="UNAVAILABLE", endpoint=str(self._endpoint)
        )

    @contextlib.contextmanager
    def holding(self, channel: aio.Channel) -> Iterator[None]:
        """Within the `with`, the channel is not closed by anything but `close`."""
        self._calls[channel] += 1
        try:
            yield
        finally:
            self._calls[channel] -= 1

    async def _drop(self) -> None:
        # A channel that has failed waits longer and longer before it tries again, so the next
        # attempt gets a fresh one.
        channel, self._channel = self._channel, None
        mine = [*self._retired, *([channel] if channel is not None else [])]
        self._retired = [each for each in mine if self._calls[each] > 0]
        for each in mine:
            if each not in self._retired:
                del self._calls[each]
                await each.close()

    async def close(self) -> None:
        """Close the channel; calls that are still open end as ConnectionLost."""
        self.closed = True
        self._calls.clear()
        await self._drop()

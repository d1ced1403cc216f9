"""Why no connection could be made, found out by trying once more by hand.

gRPC's own texts differ from release to release, say little (`Unwrap failed` where the server asked
for a client certificate), and quote bytes of the peer. So after a failed attempt the same steps are
taken with Python's own sockets and ssl, and the step that fails is named in our own words. No
secret is sent: no token, no password, and the client key only proves itself to a verified peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from etcdmaint.errors import EtcdError, InvalidInput, MemberUnreachable, NotEtcd, TLSFailed
from etcdmaint.etcd.access import Tls
from etcdmaint.etcd.endpoint import Endpoint

# An HTTP/2 client's first words (RFC 9113, 3.4) with an empty SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS = 4

# How long a server that wants another client certificate has to say so before we speak.
_ALERT_SECONDS = 0.5
_CLOSED = (
    "the connection was closed in the TLS handshake: "
    "does this port speak TLS, and with this client certificate?"
)

_RESOLVERS = ThreadPoolExecutor(8, "etcd-names")

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def diagnose(dialled: Endpoint, tls: Tls | None, server_name: str) -> EtcdError:
    """The reason, as an exception that is not raised: its text has neither address nor peer's bytes.

    `server_name` is the name that TLS verifies. The caller bounds the time.
    """
    try:
        context = _context(tls)
        async with connection(dialled, context, server_name) as streams:
            return await _first_words(streams, dialled, secure=context is not None)
    except ConnectionResetError as fault:
        return refusal(fault, secure=True) if tls is not None else await _closed(dialled)
    except (OSError, InvalidInput) as fault:
        return refusal(fault, secure=tls is not None)


def refusal(fault: Exception, *, secure: bool) -> EtcdError:
    """What a failure to connect means, as an exception that is not raised."""
    match fault:
        case InvalidInput():
            return TLSFailed(f"the {fault.field} {fault.fault}")
        case ssl.SSLError():
            return TLSFailed(_handshake_fault(fault))
        case socket.gaierror():
            return MemberUnreachable("the name does not resolve")
        case ConnectionResetError() if secure:
            return TLSFailed(_CLOSED)
        case OSError():
            return MemberUnreachable(_reason(fault))
        case _:
            return NotEtcd("what answers there is not etcd")


@contextlib.asynccontextmanager
async def connection(
    dialled: Endpoint, context: ssl.SSLContext | None, server_name: str
) -> AsyncIterator[_Streams]:
    """A plain or a TLS connection, dropped without a farewell at the end."""
    reader, writer = await _connected(dialled, context, server_name)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _connected(
    dialled: Endpoint, context: ssl.SSLContext | None, server_name: str
) -> _Streams:
    failure: OSError = socket.gaierror()
    for address in await _addresses(dialled.host):
        try:
            return await asyncio.open_connection(
                address,
                dialled.port,
                ssl=context,
                server_hostname=server_name if context is not None else None,
            )
        except ssl.SSLError:
            raise
        except OSError as fault:
            failure = fault
    raise failure


async def _addresses(host: str) -> list[str]:
    """What a name stands for; raises socket.gaierror.

    A resolver that hangs hangs for long, and nothing ends it. asyncio's own threads would then be
    waited for at the end of the loop, and be missing to all others.
    """
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, look_up)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _context(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = tls.context()
    context.set_alpn_protocols(["h2"])
    return context


async def _first_words(streams: _Streams, dialled: Endpoint, *, secure: bool) -> EtcdError:
    reader, writer = streams
    answer = b""
    if secure:
        # With TLS 1.3 a client certificate is turned down after the handshake, as an error of this
        # read; had we written before, the reset connection would have swallowed it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ALERT_SECONDS):
                answer = await reader.read(9)
    if not answer:
        writer.write(_PREFACE)
        try:
            answer = await reader.readexactly(9)
        except asyncio.IncompleteReadError as fault:
            answer = fault.partial
    if not answer:
        return TLSFailed(_CLOSED) if secure else await _closed(dialled)
    if len(answer) == 9 and answer[3] == _SETTINGS and answer[5:] == bytes(4):
        return MemberUnreachable("the connection failed, although another one works now")
    if answer.startswith(b"HTTP/"):
        return NotEtcd("a web server answers there, not etcd")
    if answer[:2] == b"\x15\x03":
        return await _closed(dialled)
    return NotEtcd("what answers there is not etcd")


async def _closed(dialled: Endpoint) -> EtcdError:
    # Plain words to a TLS port end in a closed connection; so does much else.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(OSError):
        async with connection(dialled, context, dialled.host):
            return TLSFailed("this port speaks TLS: use https:// and give the CA")
    return MemberUnreachable("it closes connections at once")


def _handshake_fault(fault: ssl.SSLError) -> str:
    if isinstance(fault, ssl.SSLCertVerificationError):
        # Python's text names the name that *we* asked for, and nothing that the peer has sent.
        return f"its certificate is refused: {fault.verify_message.rstrip('.')}"
    reason = (fault.reason or "").upper()
    if alert := re.search(r"ALERT_(\w*(?:CERTIFICATE|UNKNOWN_CA)\w*)", reason):
        # A fixed vocabulary (RFC 8446, 6.2), not the peer's own words.
        what = alert[1].replace("_", " ").lower()
        return f"it refuses our client certificate, or the lack of one: {what}"
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
        return "this port does not speak TLS"
    if isinstance(fault, ssl.SSLEOFError):
        return _CLOSED
    return f"the TLS handshake failed: {reason.replace('_', ' ').lower() or 'no reason given'}"


def _reason(fault: OSError) -> str:
    # asyncio puts the address into strerror.
    return "it does not answer" if fault.errno is None else os.strerror(fault.errno).lower()

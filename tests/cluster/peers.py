"""Who else may listen where etcd should: each in a thread of its own, for a process under test."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

BABBLE = b"words-of-a-stranger"
"""What strangers say; no status, event or log may repeat it (D51)."""

Talk = Callable[[socket.socket], None]


@contextlib.contextmanager
def listening(talk: Talk) -> Iterator[str]:
    """A URL where each connection is talked to like that."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as connections:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.callback(connection.close)
                threading.Thread(target=guarded, args=(connection,), daemon=True).start()

        def guarded(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):
                talk(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def web_server(connection: socket.socket) -> None:
    """A page of its own."""
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 200 OK\r\nServer: " + BABBLE + b"\r\n\r\n" + BABBLE)
    connection.close()


def babbler(connection: socket.socket) -> None:
    """Whatever comes to its mind."""
    connection.sendall(BABBLE * 100)
    connection.recv(1000)


def silence(connection: socket.socket) -> None:
    """Nothing, for ever."""
    while connection.recv(1000):
        pass


@contextlib.contextmanager
def other_grpc() -> Iterator[str]:
    """A gRPC server whose answers are no messages of etcd's."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda *_: b"\xff\xff\xff" + BABBLE)

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def balancer(ports: Callable[[], Sequence[int]]) -> Iterator[str]:
    """Something in front of these ports: each connection leads to the next one of them."""
    turn = itertools.count()

    def relay(front: socket.socket) -> None:
        behind = ports()
        with socket.create_connection(("127.0.0.1", behind[next(turn) % len(behind)])) as back:
            other = threading.Thread(target=pump, args=(back, front), daemon=True)
            other.start()
            pump(front, back)
            other.join()

    def pump(one: socket.socket, two: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                two.sendall(data)
        for each in (one, two):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    with listening(relay) as url:
        yield url

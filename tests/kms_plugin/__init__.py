"""A KMS plugin for tests: a real gRPC server on a unix socket that speaks v2 and v1beta1.

It wraps a key as the plugin behind the vectors does: `wrap1:` ‖ key id ‖ `:` ‖ (plaintext XOR
SHA-256(key id)). That hides nothing and is made to be undone. Everything about it may be changed
while it runs, as an administrator would: rotate `keys`, break `healthz`, let every call `fail` or
`stall`.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import grpc

from etcdmaint.compression.encryption.proto import kms_pb2 as pb

ANNOTATION = "key.vectors.example.com"


class KmsPlugin:
    """One plugin at `socket`: a path, or an abstract name that begins with `@`.

    The first of `keys` wraps and is what Status reports; every one of them unwraps. With `annotate`
    it wants its annotation back. `calls` counts by method; `fail` maps a method to the code that it
    answers with; `stall` is how many seconds each call takes.
    """

    def __init__(self, socket: str, keys: Sequence[str], *, annotate: bool = False) -> None:
        self.socket = socket
        self.keys = list(keys)
        self.annotate = annotate
        self.healthz = "ok"
        self.version = "v2"
        self.encrypts_with: str | None = None
        self.fail: dict[str, grpc.StatusCode] = {}
        self.stall = 0.0
        self.calls: Counter[str] = Counter()
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    @property
    def endpoint(self) -> str:
        """What an EncryptionConfiguration says."""
        return f"unix:///{self.socket.lstrip('/')}"

    def start(self) -> Self:
        server = grpc.server(ThreadPoolExecutor(8), options=(("grpc.so_reuseport", 0),))
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "v2.KeyManagementService",
                    {
                        "Status": self._handler("Status", pb.StatusRequest, self._status),
                        "Encrypt": self._handler("Encrypt", pb.EncryptRequest, self._encrypt),
                        "Decrypt": self._handler("Decrypt", pb.DecryptRequest, self._decrypt),
                    },
                ),
                grpc.method_handlers_generic_handler(
                    "v1beta1.KeyManagementService",
                    {
                        "Version": self._handler("Version", pb.V1VersionRequest, self._v1_version),
                        "Encrypt": self._handler("Encrypt", pb.V1EncryptRequest, self._v1_encrypt),
                        "Decrypt": self._handler("Decrypt", pb.V1DecryptRequest, self._v1_decrypt),
                    },
                ),
            )
        )
        scheme = "unix-abstract" if self.socket.startswith("@") else "unix"
        server.add_insecure_port(f"{scheme}:{quote(self.socket.removeprefix('@'))}")
        server.start()
        self._server = server
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wrap(self, plaintext: bytes, key_id: str) -> bytes:
        return b"wrap1:%s:%s" % (key_id.encode(), _xor(plaintext, key_id))

    def _handler(
        self, name: str, request: Any, answer: Callable[[Any, grpc.ServicerContext], Any]
    ) -> grpc.RpcMethodHandler:
        def behaviour(message: Any, context: grpc.ServicerContext) -> Any:
            with self._lock:
                self.calls[name] += 1
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
            try:
                if self.stall:
                    time.sleep(self.stall)
                if name in self.fail:
                    context.abort(self.fail[name], "told to fail")
                return answer(message, context)
            finally:
                with self._lock:
                    self._at_once -= 1

        return grpc.unary_unary_rpc_method_handler(
            behaviour,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def _status(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        return pb.StatusResponse(version=self.version, healthz=self.healthz, key_id=self.keys[0])

    def _encrypt(self, request: Any, _context: grpc.ServicerContext) -> Any:
        key_id = self.encrypts_with or self.keys[0]
        annotations = {ANNOTATION: key_id.encode()} if self.annotate else {}
        ciphertext = self.wrap(request.plaintext, key_id)
        return pb.EncryptResponse(ciphertext=ciphertext, key_id=key_id, annotations=annotations)

    def _decrypt(self, request: Any, context: grpc.ServicerContext) -> Any:
        plaintext, key_id = self._unwrap(request.ciphertext, context)
        if request.key_id != key_id:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the key id does not match")
        if request.annotations.get(ANNOTATION, key_id.encode()) != key_id.encode():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the annotation does not match")
        return pb.DecryptResponse(plaintext=plaintext)

    def _v1_version(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        version = "v1beta1" if self.version == "v2" else self.version
        return pb.V1VersionResponse(version=version, runtime_name="test", runtime_version="1")

    def _v1_encrypt(self, request: Any, _context: grpc.ServicerContext) -> Any:
        return pb.V1EncryptResponse(cipher=self.wrap(request.plain, self.keys[0]))

    def _v1_decrypt(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.V1DecryptResponse(plain=self._unwrap(request.cipher, context)[0])

    def _unwrap(self, ciphertext: bytes, context: grpc.ServicerContext) -> tuple[bytes, str]:
        for key_id in self.keys:
            prefix = b"wrap1:%s:" % key_id.encode()
            if ciphertext.startswith(prefix):
                return _xor(ciphertext[len(prefix) :], key_id), key_id
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unknown key")
        raise AssertionError("abort raises")


def _xor(text: bytes, key_id: str) -> bytes:
    pad = hashlib.sha256(key_id.encode()).digest()
    return bytes(byte ^ pad[index % len(pad)] for index, byte in enumerate(text))

"""A KMS plugin behind its unix socket: the calls, and the message that kms v2 stores.

The one module of this package that knows gRPC and protobuf, imported only when a configuration
names a plugin. It must not know what the bytes are for, and lets none of them into a message: of a
plugin's own error text only printable characters come through, and none where a plaintext was sent.

Source: k8s.io/kms, services v2.KeyManagementService and v1beta1.KeyManagementService.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError, Message

from etcdmaint.compression.encryption.configuration import Kms
from etcdmaint.compression.encryption.proto import kms_pb2
from etcdmaint.errors import DecryptionFailed, EncryptionError, KmsRefused, KmsUnavailable

# The generated module has no types.
_pb: Any = kms_pb2
SOURCE_KEY: int = _pb.AES_GCM_KEY
SOURCE_SEED: int = _pb.HKDF_SHA256_XNONCE_AES_GCM_SEED

_V1_VERSION = "v1beta1"
_V2 = "/v2.KeyManagementService/"
_V1 = "/v1beta1.KeyManagementService/"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    # A plugin that was restarted is found again at once: within the timeout of a call.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)
# The call did not reach a decision; any other code is the plugin's own verdict.
_UNDECIDED = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
# What may mean that nobody was there: gRPC itself answers UNKNOWN for a path that no socket can have.
_NO_ANSWER = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN})
_MAX_DETAILS = 200


@dataclass(frozen=True, slots=True)
class Status:
    """The answer to Status of v2."""

    version: str
    healthz: str
    key_id: str


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A data key or seed as the plugin encrypted it, with what it wants back for decrypting."""

    ciphertext: bytes = field(repr=False)
    key_id: str
    annotations: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class EncryptedObject:
    """What follows the prefix of a value that kms v2 wrote."""

    data: bytes = field(repr=False)
    wrapped: Wrapped
    source_type: int


def parse_object(body: bytes) -> EncryptedObject:
    """Read as proto3 reads: unknown fields are skipped. Raises DecryptionFailed."""
    message = _pb.EncryptedObject()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise DecryptionFailed("the value is not a kms v2 message") from None
    wrapped = Wrapped(message.encrypted_dek_source, message.key_id, dict(message.annotations))
    return EncryptedObject(message.encrypted_data, wrapped, message.encrypted_dek_source_type)


def dump_object(value: EncryptedObject) -> bytes:
    """The bytes to store."""
    message = _pb.EncryptedObject(
        encrypted_data=value.data,
        key_id=value.wrapped.key_id,
        encrypted_dek_source=value.wrapped.ciphertext,
        annotations=value.wrapped.annotations,
        encrypted_dek_source_type=value.source_type,
    )
    return bytes(message.SerializeToString())


class Plugin:
    """One socket. Every call may block for the provider's timeout; all are thread-safe.

    Nothing is dialled before the first call. `calls` counts them by method. `pace` is called before
    each Decrypt, and may block to keep a rate.
    """

    def __init__(self, provider: Kms, *, pace: Callable[[], None] | None = None) -> None:
        self.name = provider.name
        self.calls: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._timeout = provider.timeout
        self._pace = pace
        self._socket = provider.socket
        self._channel = grpc.insecure_channel(_target(provider.socket), options=_OPTIONS)

    def close(self) -> None:
        """Hang up; no call may follow."""
        self._channel.close()

    def useless(self, error: DecryptionFailed) -> KmsRefused:
        """What a data key is that no cipher can use: the plugin's doing or the value's, who knows.

        So nothing is called damaged: what is damaged may be deleted.
        """
        text = f"the KMS plugin {self.name!a} opens a data key that is none: {error}"
        return KmsRefused(text, provider="kms", key_name=self.name)

    def _call(
        self, method: str, request: Message, answer: Callable[[bytes], Any], *, opens: bool = False
    ) -> Any:
        """One RPC. What `opens` a data key may be refused; any other error means unavailable."""
        if opens and self._pace is not None:
            self._pace()
        short = method.rpartition("/")[2]
        with self._counting:
            self.calls[short] += 1
        rpc = self._channel.unary_unary(
            method, request_serializer=lambda m: m.SerializeToString(), response_deserializer=answer
        )
        failure: EncryptionError
        try:
            # As kube-apiserver does: a plugin that is just being restarted fails nobody's call.
            reply = rpc(request, timeout=self._timeout, wait_for_ready=True)
            if reply is not None:
                return reply
            # A good end and no message, which is no answer.
            failure = KmsUnavailable(f"the KMS plugin {self.name!a} answers {short} with nothing")
        except grpc.RpcError as error:
            failure = self._failure(error, short, opens=opens)
        raise failure

    def _failure(self, error: grpc.RpcError, method: str, *, opens: bool) -> EncryptionError:
        code = error.code()
        text = f"the KMS plugin {self.name!a} answers {method} with {code.name}"
        if code in _NO_ANSWER and (why := _unreachable(self._socket)):
            return KmsUnavailable(f"the KMS plugin {self.name!a} cannot be reached: {why}")
        if method != "Encrypt":
            details = "".join(c if c.isprintable() else " " for c in error.details() or "")
            text += f": {details[:_MAX_DETAILS]}" if details else ""
        if opens and code not in _UNDECIDED:
            return KmsRefused(text, provider="kms", key_name=self.name)
        return KmsUnavailable(text)


class PluginV2(Plugin):
    """A plugin that speaks v2."""

    def status(self) -> Status:
        """Version, health and the id of the key that Encrypt uses now. Raises KmsUnavailable."""
        answer = self._call(f"{_V2}Status", _pb.StatusRequest(), _pb.StatusResponse.FromString)
        return Status(answer.version, answer.healthz, answer.key_id)

    def encrypt(self, plaintext: bytes) -> Wrapped:
        """Wrap a seed. Raises KmsUnavailable."""
        request = _pb.EncryptRequest(plaintext=plaintext, uid=str(uuid.uuid4()))
        answer = self._call(f"{_V2}Encrypt", request, _pb.EncryptResponse.FromString)
        return Wrapped(answer.ciphertext, answer.key_id, dict(answer.annotations))

    def decrypt(self, wrapped: Wrapped) -> bytes:
        """Unwrap a seed or key. Raises KmsRefused, KmsUnavailable."""
        request = _pb.DecryptRequest(
            ciphertext=wrapped.ciphertext,
            uid=str(uuid.uuid4()),
            key_id=wrapped.key_id,
            annotations=wrapped.annotations,
        )
        answer = self._call(f"{_V2}Decrypt", request, _pb.DecryptResponse.FromString, opens=True)
        return bytes(answer.plaintext)


class PluginV1(Plugin):
    """A plugin that speaks v1beta1, for reading."""

    def version(self) -> None:
        """Make sure that it speaks v1beta1. Raises KmsUnavailable."""
        answer = self._call(
            f"{_V1}Version",
            _pb.V1VersionRequest(version=_V1_VERSION),
            _pb.V1VersionResponse.FromString,
        )
        if answer.version != _V1_VERSION:
            raise KmsUnavailable(f"the KMS plugin {self.name!a} does not speak {_V1_VERSION}")

    def decrypt(self, wrapped: bytes) -> bytes:
        """Unwrap a data key. Raises KmsRefused, KmsUnavailable."""
        request = _pb.V1DecryptRequest(version=_V1_VERSION, cipher=wrapped)
        answer = self._call(f"{_V1}Decrypt", request, _pb.V1DecryptResponse.FromString, opens=True)
        return bytes(answer.plain)


def _target(path: str) -> str:
    if path.startswith("@"):
        return f"unix-abstract:{quote(path[1:])}"
    return f"unix:{quote(path)}"


def _unreachable(path: str) -> str:
    """Why nobody can be reached at a socket, "" where somebody can: gRPC does not say."""
    with socket.socket(socket.AF_UNIX) as probe:
        # A listener that is too busy to accept is one.
        probe.setblocking(False)
        try:
            probe.connect(f"\0{path[1:]}" if path.startswith("@") else path)
        except BlockingIOError:
            return ""
        except OSError as error:
            return f"{path!a}: {error.strerror or error}"
    return ""

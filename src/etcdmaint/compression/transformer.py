"""Compression in front of encryption: a decorator over whatever writes and reads the value below.

On the way in the plaintext is framed and then handed down, on the way out the delegate comes first:
there is no way to build the other order, which would compress ciphertext. Reading goes by the bytes
and never by the policy; only writing and staleness ask the rule. One predicate decides both, so a
value written under a policy is never stale under it.

This module must not know what the delegate is, nor talk to etcd.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from etcdmaint.compression.frame import (
    Algorithm,
    FrameError,
    MalformedFrame,
    UnsupportedAlgorithm,
    decode,
    encode,
)
from etcdmaint.compression.inflation import LIMITER, InflationLimiter
from etcdmaint.compression.metrics import Direction, Metrics, Operation, Outcome
from etcdmaint.compression.policy import Policy
from etcdmaint.compression.resources import INTERNAL, Keyspace, shown
from etcdmaint.compression.rule import Rewrite, Rule

# More kinds of objects than any cluster has; hostile keys could name any number.
_MOST_TRANSFORMERS: Final = 10_000

_log = logging.getLogger(__name__)


class Delegate(Protocol):
    """What lies under the compression: the encryption of one resource, or nothing."""

    def to_storage(self, plaintext: bytes, key: bytes, /) -> bytes:
        """The value to store; `key` is the etcd key, which encryption authenticates."""

    def from_storage(self, stored: bytes, key: bytes, /) -> tuple[bytes, bool]:
        """The plaintext, and whether it should be written again."""


class Identity:
    """No encryption: values as they are."""

    __slots__ = ()

    def to_storage(self, plaintext: bytes, _key: bytes, /) -> bytes:
        """The same bytes."""
        return plaintext

    def from_storage(self, stored: bytes, _key: bytes, /) -> tuple[bytes, bool]:
        """The same bytes, never stale."""
        return stored, False


class Transformer:
    """The compression of one resource. Synchronous and safe for threads.

    `resource` is the label of the metrics (`deployments.apps`); `redact` turns an etcd key into what
    errors and logs may say of it: all of it, unless it is a Secret's.
    """

    __slots__ = (
        "_counting",
        "_delegate",
        "_limiter",
        "_metrics",
        "_migrates",
        "_redact",
        "resource",
        "rule",
    )

    def __init__(
        self,
        rule: Rule,
        delegate: Delegate,
        *,
        resource: str = "",
        metrics: Metrics | None = None,
        limiter: InflationLimiter = LIMITER,
        redact: Callable[[bytes], str] | None = None,
    ) -> None:
        self.rule = rule
        self.resource = resource
        self._delegate = delegate
        self._metrics = metrics
        self._limiter = limiter
        self._redact = redact or (_cut if resource == "secrets" else shown)
        # Asked for every value that passes, so asked of the rule once.
        self._counting = None if rule.inert else metrics
        self._migrates = rule.compresses and rule.rewrite is Rewrite.EAGER

    def to_storage(self, plaintext: bytes, key: bytes) -> bytes:
        """Frame the plaintext if the rule says so, then hand it down (KEP-6264, The write path).

        Raises PlaintextTooLarge where a plaintext that begins with a zero byte does not fit into a
        frame, and whatever the delegate raises.
        """
        if not self.rule.frames(plaintext):
            if self._counting:
                outcome = self._unframed(len(plaintext))
                self._counting.operation(self.resource, Operation.COMPRESS, outcome)
            return self._delegate.to_storage(plaintext, key)
        start = time.perf_counter() if self._metrics else 0.0
        framed = encode(plaintext)
        if self._metrics:
            self._metrics.duration(Operation.COMPRESS, time.perf_counter() - start)
            stored = framed[4] == Algorithm.STORED
            outcome = Outcome.STORED if stored else Outcome.COMPRESSED
            self._metrics.operation(self.resource, Operation.COMPRESS, outcome)
        return self._delegate.to_storage(framed, key)

    def from_storage(
        self, stored: bytes, key: bytes, *, timeout: float | None = None
    ) -> tuple[bytes, bool]:
        """The plaintext, and whether the value should be written again (The read path).

        Raises ChecksumMismatch, UnsupportedAlgorithm or MalformedFrame, which carry the key; after
        `timeout` seconds in the queue TimeoutError, which is none of them; and whatever the delegate
        raises.
        """
        value, stale = self._delegate.from_storage(stored, key)
        if value[:1] == b"\x00":
            plaintext = self._unframe(value, key, timeout)
            if self.rule.stale(True, plaintext):
                stale = True
                if self._metrics:
                    self._metrics.rewrite_needed(self.resource, Direction.TO_BARE)
            return plaintext, stale
        if self._counting:
            self._counting.operation(self.resource, Operation.DECOMPRESS, Outcome.UNFRAMED)
        if self._migrates and self.rule.stale(False, value):
            stale = True
            if self._counting:
                self._counting.rewrite_needed(self.resource, Direction.TO_FRAMED)
        return value, stale

    def _unframe(self, value: bytes, key: bytes, timeout: float | None) -> bytes:
        metrics = self._metrics
        start = time.perf_counter() if metrics else 0.0
        try:
            turn = self._limiter.turn(timeout, metrics.inflation_wait if metrics else None)
            plaintext = decode(value, turn)
        except FrameError as error:
            raise self._failure(error, key) from None
        if metrics:
            metrics.duration(Operation.DECOMPRESS, time.perf_counter() - start)
            stored = value[4] == Algorithm.STORED
            outcome = Outcome.STORED if stored else Outcome.DECOMPRESSED
            metrics.operation(self.resource, Operation.DECOMPRESS, outcome)
        return plaintext

    def _failure(self, error: FrameError, key: bytes) -> FrameError:
        shown = self._redact(key)
        newer = isinstance(error, UnsupportedAlgorithm)
        if newer:
            _log.error("stored value of a newer release: key=%s %s", shown, error)
        elif isinstance(error, MalformedFrame):
            # Which check failed helps whoever forges values: it is for the eyes of an operator.
            _log.debug("stored value is no good frame: key=%s %s", shown, error)
        else:
            _log.error("stored value is damaged: key=%s", shown)
        if metrics := self._metrics:
            (metrics.unsupported_algorithm if newer else metrics.format_error)(self.resource)
        return type(error)(f"{shown}: {error}")

    def _unframed(self, size: int) -> Outcome:
        if not self.rule.compresses:
            return Outcome.UNFRAMED_NOT_SELECTED
        if size > self.rule.ceiling:
            return Outcome.UNFRAMED_ABOVE_CEILING
        return Outcome.UNFRAMED_BELOW_THRESHOLD


def _cut(key: bytes) -> str:
    """A key without its last part, whatever prefix it begins with."""
    return shown(key.rpartition(b"/")[0]) + "/…"


class Transformers:
    """The transformers of a process: one policy, and for each resource its own delegate."""

    __slots__ = ("_delegate_for", "_known", "_limiter", "_metrics", "_policy", "_redact", "keys")

    def __init__(
        self,
        policy: Policy,
        delegate_for: Callable[[str, str], Delegate],
        *,
        metrics: Metrics | None = None,
        prefix: bytes = b"/registry",
        limiter: InflationLimiter = LIMITER,
        redact: Callable[[bytes], str] | None = None,
    ) -> None:
        self.keys = Keyspace(prefix)
        self._policy = policy
        self._delegate_for = delegate_for
        self._metrics = metrics
        self._limiter = limiter
        self._redact = redact or self.keys.redacted
        self._known: dict[tuple[str, str], Transformer] = {}
        if metrics and policy.hash:
            metrics.config_loaded(policy.hash)

    def for_key(self, key: bytes) -> Transformer | None:
        """The transformer of the object behind an etcd key, in constant time.

        None for a key that is no known resource's: leave such a value as it is.
        """
        resource = self.keys.resource(key)
        return self.for_resource(*resource) if resource else None

    def for_resource(self, group: str, resource: str) -> Transformer:
        """The transformer of a resource; that of core has the group ""."""
        known = self._known.get((group, resource))
        if known is not None:
            return known
        # What the API server keeps for itself passes by the policy and the encryption.
        internal = (group, resource) in INTERNAL
        transformer = Transformer(
            Rule(inert=not self._policy.hash)
            if internal
            else self._policy.rule_for(group, resource),
            Identity() if internal else self._delegate_for(group, resource),
            resource=f"{resource}.{group}" if group else resource,
            metrics=self._metrics,
            limiter=self._limiter,
            redact=self._redact,
        )
        if len(self._known) < _MOST_TRANSFORMERS:
            self._known[group, resource] = transformer
        return transformer

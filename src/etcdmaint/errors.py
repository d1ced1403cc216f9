"""Every error that etcdmaint raises on purpose.

Each class has a CamelCase `reason` (it becomes the reason of a condition, an event or a metric label,
so the set is closed) and says whether trying the same thing again later can help (`retryable`).
This module imports nothing of the package.

::

    EtcdmaintError
    ├── InvalidInput (ValueError)           a field, flag or file has a bad value
    ├── ClusterNotFound                     a clusterRef that leads nowhere
    ├── ClusterNotReady                     it leads to a cluster that cannot be dialled yet
    ├── CredentialsUnavailable              a Secret is missing, lacks a key or holds rubbish
    ├── ClusterNotHealthy                   the gate says: not now
    ├── UnsafeEtcdVersion                   this etcd release loses data when defragmented
    ├── LeadershipLost                      this process may not act any more
    │   └── SlotLost                        … on this cluster: its slot went to nobody or somebody else
    ├── SlotHeld                            somebody else works on this cluster
    ├── ForeignDefragmentation              somebody else defragmented a member meanwhile
    ├── StopRequested                       asked to stop between two steps
    ├── EtcdError                           an RPC failed
    │   ├── MemberUnreachable               no connection; nothing was carried out
    │   │   └── TLSFailed                   … since the handshake failed
    │   ├── ConnectionLost                  broke in mid-call: the outcome is unknown
    │   ├── RPCTimeout                      no answer in time: the outcome is unknown
    │   ├── WrongMember                     another member, or another cluster, answered
    │   ├── NotEtcd                         whatever answered is not etcd
    │   ├── NoLeader                        no leader or no quorum
    │   ├── NotLeader                       only the leader answers this
    │   ├── BadTransferee                   leadership cannot go there
    │   ├── ProposalDropped                 lost in a change of leader; may be tried again
    │   ├── TooManyRequests
    │   ├── LearnerRefused                  a learner does not answer this
    │   ├── SpaceExceeded                   the NOSPACE alarm is armed
    │   ├── NoDiskSpace                     the disk is full
    │   ├── ClusterCorrupt                  the CORRUPT alarm is armed
    │   ├── RevisionCompacted               that revision is gone
    │   ├── FutureRevision                  that revision is yet to come
    │   ├── LeaseNotFound
    │   ├── MessageTooLarge
    │   ├── RPCUnsupported                  this etcd release lacks the RPC
    │   ├── AuthenticationFailed            wrong user or password
    │   ├── AuthenticationRequired          auth is on and no credentials were given
    │   ├── AuthNotEnabled                  credentials were given and auth is off
    │   ├── TokenExpired                    log in again
    │   ├── PermissionDenied                this user may not do that
    │   └── RPCFailed                       anything else
    ├── EncryptionError                     a stored value and the encryption configuration
    │   ├── EncryptionKeyMissing            no provider or key of the configuration is meant for it
    │   │   └── KmsRefused                  … or the KMS plugin does not open its data key
    │   ├── DecryptionFailed                a key that is meant for it does not open it: damage
    │   ├── KmsUnavailable                  the KMS plugin does not answer as it should
    │   └── EncryptionUnsupported           the first provider is one that we only read
    └── FrameError                          a stored value is no readable frame
        ├── ChecksumMismatch                the bytes are damaged
        ├── UnsupportedAlgorithm            written by a newer release
        └── MalformedFrame                  intact, but no writer should have made it

    PlaintextTooLarge (ValueError)          the caller asked to frame more than a frame may hold
"""

from __future__ import annotations

from typing import ClassVar


class EtcdmaintError(Exception):
    """The root: never raised itself.

    `reason` is the name of the class, unless the class says another word.
    """

    reason: ClassVar[str] = "Error"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, retryable: bool | None = None) -> None:
        if "reason" not in vars(cls):
            cls.reason = cls.__name__
        if retryable is not None:
            cls.retryable = retryable


class InvalidInput(EtcdmaintError, ValueError):
    """A field, flag or file has a bad value.

    `field` is the path as its author wrote it (`spec.rule.minReclaim`, `--volume-size`), `fault` says
    what is wrong with the value.
    """

    reason = "InvalidSpec"

    def __init__(self, field: str, fault: str) -> None:
        super().__init__(f"{field}: {fault}" if field else fault)
        self.field = field
        self.fault = fault


class ClusterNotFound(EtcdmaintError, retryable=True):
    """A clusterRef that names no object."""


class ClusterNotReady(EtcdmaintError, retryable=True):
    """The cluster exists but cannot be dialled yet: `reason` says in which state it is."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason  # type: ignore[misc]  # each state has its own word


class CredentialsUnavailable(EtcdmaintError, retryable=True):
    """A Secret is missing, lacks a key, or holds something that is no credential."""


class ClusterNotHealthy(EtcdmaintError, retryable=True):
    """The gate says not now. `reason` names the check, `member` whom it is about ("" = the cluster)."""

    def __init__(self, reason: str, message: str, *, member: str = "") -> None:
        super().__init__(message)
        self.reason = reason  # type: ignore[misc]  # each check has its own word
        self.member = member


class UnsafeEtcdVersion(EtcdmaintError):
    """Defragmenting this etcd release is known to lose data."""


class LeadershipLost(EtcdmaintError):
    """The leader Lease, or the slot in etcd, is not ours any more: this process must not act."""


class SlotLost(LeadershipLost):
    """The cluster's slot has expired, was removed or was taken: the run may not go on."""


class SlotHeld(EtcdmaintError, retryable=True):
    """Somebody else holds the cluster's slot."""

    reason = "Queued"

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class ForeignDefragmentation(EtcdmaintError):
    """A member was defragmented by somebody else while this run went without a slot."""


class StopRequested(EtcdmaintError, retryable=True):
    """Asked to stop; raised between two steps, never inside one."""

    reason = "Stopped"


class EtcdError(EtcdmaintError):
    """An RPC failed.

    `code` is gRPC's status code name (`UNAVAILABLE`), `details` etcd's own text without anything that
    a peer which is not etcd may have sent, `endpoint` who was asked.
    """

    reason = "RPCFailed"

    def __init__(
        self, message: str, *, code: str = "", details: str = "", endpoint: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        self.endpoint = endpoint


class MemberUnreachable(EtcdError, retryable=True):
    """No connection could be made: nothing was carried out."""


class TLSFailed(MemberUnreachable):
    """The TLS handshake failed; the message says how."""


class ConnectionLost(EtcdError, retryable=True):
    """The connection broke in mid-call: the server may have carried it out, or still be at it."""


class RPCTimeout(EtcdError, retryable=True):
    """No answer within the deadline: the server may have carried it out, or still be at it."""


class WrongMember(EtcdError):
    """Another member, or a member of another cluster, answered at this address."""


class NotEtcd(EtcdError):
    """Whatever answers at this address does not speak etcd's protocol."""


class NoLeader(EtcdError, retryable=True):
    """The cluster has no leader, or no quorum to answer with."""


class NotLeader(EtcdError, retryable=True):
    """Only the leader answers this, and the member asked is not it."""


class BadTransferee(EtcdError):
    """Leadership cannot be moved to that member."""


class ProposalDropped(EtcdError, retryable=True):
    """The proposal was lost in a change of leader; it was not carried out."""


class TooManyRequests(EtcdError, retryable=True):
    """The member is too far behind to take more."""


class LearnerRefused(EtcdError):
    """A learner does not answer this RPC."""

    reason = "Learner"


class SpaceExceeded(EtcdError, retryable=True):
    """The NOSPACE alarm is armed: etcd takes no write."""

    reason = "NoSpaceAlarm"


class NoDiskSpace(EtcdError):
    """The member's disk is full: it will exit at its next write."""


class ClusterCorrupt(EtcdError):
    """The CORRUPT alarm is armed."""

    reason = "CorruptAlarm"


class RevisionCompacted(EtcdError):
    """The revision asked for has been compacted away.

    `compact_revision` is the oldest that is left, 0 where etcd did not say (only a watch is told).
    """

    def __init__(self, message: str, *, compact_revision: int = 0, **asked: str) -> None:
        super().__init__(message, **asked)
        self.compact_revision = compact_revision


class FutureRevision(EtcdError):
    """The revision asked for is yet to come: this etcd is younger than the one who asks remembers."""


class LeaseNotFound(EtcdError):
    """The lease has expired or was revoked."""


class MessageTooLarge(EtcdError):
    """The request or the answer is larger than one of the two sides takes."""


class RPCUnsupported(EtcdError):
    """This etcd release does not have the RPC."""


class AuthenticationFailed(EtcdError):
    """etcd does not know this user or refuses the password."""


class AuthenticationRequired(EtcdError):
    """etcd's auth is on and no credentials were given."""


class AuthNotEnabled(EtcdError):
    """Credentials were given, but etcd's auth is off."""


class TokenExpired(EtcdError, retryable=True):
    """The token is not valid any more; logging in again gives a new one."""


class PermissionDenied(EtcdError):
    """The user is known but may not do this."""


class RPCFailed(EtcdError):
    """An RPC failed in a way that has no class of its own."""


class EncryptionError(EtcdmaintError):
    """A stored value cannot be decrypted, or a plaintext not be encrypted.

    Its text names providers and keys, never a byte of a key or of a value.
    """

    corrupt: ClassVar[bool] = False


class EncryptionKeyMissing(EncryptionError):
    """No provider, or no key, of the configuration is meant for this value.

    `provider` and `key_name` are what the value's own prefix says, as far as it can be told; both
    are empty for a value that is not encrypted at all, where the configuration lacks identity.
    """

    def __init__(self, message: str, *, provider: str = "", key_name: str = "") -> None:
        super().__init__(message)
        self.provider = provider
        self.key_name = key_name


class KmsRefused(EncryptionKeyMissing):
    """The KMS plugin answers, but does not open this value's data key: gone, or disabled."""


class DecryptionFailed(EncryptionError):
    """A key that is meant for this value does not open it.

    The value is damaged, or was encrypted with another key of that name, or (where the etcd key is
    authenticated) lies under another etcd key than it was written to. Nothing can tell these apart.
    """

    corrupt = True


class KmsUnavailable(EncryptionError, retryable=True):
    """The KMS plugin cannot be reached, answers too late, or answers what it must not."""


class EncryptionUnsupported(EncryptionError):
    """The provider that would have to write is one that this package only reads (kms v1)."""


class FrameError(EtcdmaintError):
    """A stored value is no readable frame (KEP-6264, Error handling)."""

    corrupt: ClassVar[bool] = False


class ChecksumMismatch(FrameError):
    """The bytes are damaged: corruption, the only class in which the value itself is at fault."""

    corrupt = True


class UnsupportedAlgorithm(FrameError):
    """An intact frame with an algorithm that this release does not know: version skew."""


class MalformedFrame(FrameError):
    """An intact frame that no writer should have made: a bug somewhere, not corruption."""


class PlaintextTooLarge(ValueError):
    """More bytes than a frame may hold (KEP-6264: the ceiling)."""

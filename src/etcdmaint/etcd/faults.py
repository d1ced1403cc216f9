"""From what gRPC reports to the exceptions of `etcdmaint.errors`, by code *and* by text.

Neither is enough alone. etcd 3.5 says `auth: permission denied` with code UNKNOWN where 3.6 has
PERMISSION_DENIED; RESOURCE_EXHAUSTED is an armed alarm, a member that lags, or a message too large;
UNAVAILABLE is a learner, a lost quorum, a timeout inside etcd, or a broken connection.

The text of a peer that is not known to be etcd is never passed on: it may be the body of any HTTP
server that somebody has pointed us at.
"""

from __future__ import annotations

import re

from etcdmaint import errors
from etcdmaint.errors import EtcdError

# The first fragment found decides, whatever the code.
_BY_TEXT: tuple[tuple[str, type[EtcdError]], ...] = (
    ("no space left on device", errors.NoDiskSpace),
    ("invalid auth token", errors.TokenExpired),
    ("revision of auth store is old", errors.TokenExpired),
    ("user name is empty", errors.AuthenticationRequired),
    ("etcdserver: permission denied", errors.PermissionDenied),
    ("auth: permission denied", errors.PermissionDenied),
    ("authentication is not enabled", errors.AuthNotEnabled),
    ("authentication failed, invalid user", errors.AuthenticationFailed),
    ("rpc not supported for learner", errors.LearnerRefused),
    ("etcdserver: not leader", errors.NotLeader),
    ("bad leader transferee", errors.BadTransferee),
    ("raft proposal dropped", errors.ProposalDropped),
    # Only ever the answer to a linearizable read.
    ("etcdserver: leader changed", errors.ProposalDropped),
    ("etcdserver: no leader", errors.NoLeader),
    # A proposal may still be carried out after etcd has given up waiting for it.
    ("etcdserver: request timed out", errors.RPCTimeout),
    ("etcdserver: server stopped", errors.ConnectionLost),
    ("too many requests", errors.TooManyRequests),
    ("database space exceeded", errors.SpaceExceeded),
    ("corrupt cluster", errors.ClusterCorrupt),
    ("revision has been compacted", errors.RevisionCompacted),
    ("is a future revision", errors.FutureRevision),
    ("requested lease not found", errors.LeaseNotFound),
    ("request is too large", errors.MessageTooLarge),
    ("message larger than max", errors.MessageTooLarge),
    ("etcdserver: not capable", errors.RPCUnsupported),
)
_BY_CODE: dict[str, type[EtcdError]] = {
    "UNAVAILABLE": errors.ConnectionLost,
    # Not ours: a call that we cancel ourselves never gets here.
    "CANCELLED": errors.ConnectionLost,
    "UNAUTHENTICATED": errors.AuthenticationFailed,
    "PERMISSION_DENIED": errors.PermissionDenied,
}
# gRPC's own words for a stream that broke without a status.
_BROKEN = re.compile(r"RST_STREAM|GOAWAY|Socket closed|Stream removed|Connection reset")
# gRPC's own words for an HTTP answer that is no gRPC: a web server, or a proxy that lost its backend.
_HTTP = re.compile(r"http2 header with status|invalid content-type", re.IGNORECASE)
# What grpc-go answers about a method that this release does not have.
_NO_METHOD = re.compile(r"unknown method \w+ for service etcdserverpb\.\w+")
_ETCD_TEXT = re.compile(r"(etcdserver|auth|raft proposal)\b[ -~]{0,200}")


def fault(
    code: str, details: str, *, method: str, endpoint: str, seconds: float, proven: bool
) -> EtcdError:
    """The exception for a call that was sent and failed.

    `seconds` is what it was given. `proven` says that this peer has answered as etcd before.
    Whatever cannot be told for certain becomes ConnectionLost (the outcome is unknown), never
    MemberUnreachable (nothing was done).
    """
    kind = classify(code, details, proven=proven)
    if kind is errors.RPCTimeout and not details.startswith(("etcdserver", "context")):
        text = f"no answer within {round(seconds, 2):g} s"
    elif kind is errors.NotEtcd:
        text = "what answers there is not etcd"
    else:
        text = quotable(details, proven=proven) or f"failed with {code}"
    return kind(
        f"{method} at {endpoint}: {text}",
        code=code,
        details=quotable(details, proven=proven),
        endpoint=endpoint,
    )


def classify(code: str, details: str, *, proven: bool) -> type[EtcdError]:
    """Which exception a code and a text stand for."""
    for fragment, kind in _BY_TEXT:
        if fragment in details:
            return kind
    if code == "DEADLINE_EXCEEDED" or "Deadline Exceeded" in details:
        # The deadline is told in many ways: as a removed stream, as one that the server has reset.
        return errors.RPCTimeout
    if code == "UNIMPLEMENTED" and _NO_METHOD.search(details):
        return errors.RPCUnsupported
    if _HTTP.search(details) or code == "UNIMPLEMENTED":
        # In front of a member that did answer it is a proxy, and the call may have gone through.
        return errors.ConnectionLost if proven else errors.NotEtcd
    if _BROKEN.search(details):
        return errors.ConnectionLost
    return _BY_CODE.get(code, errors.RPCFailed)


def quotable(details: str, *, proven: bool) -> str:
    """A text of etcd's own, made safe to print; empty where the text may be somebody else's."""
    if not proven and not _ETCD_TEXT.fullmatch(details):
        return ""
    return "".join(mark if mark.isprintable() else "?" for mark in details[:300]).strip()

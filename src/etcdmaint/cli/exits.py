"""What the command line says and gives back when a command does not succeed.

It says what is wrong and what to do, on one line; never a traceback, never a secret. The exit codes
are a contract with scripts. This module must not know any command.
"""

from __future__ import annotations

from enum import IntEnum

from etcdmaint import errors
from etcdmaint.errors import EtcdmaintError


class ExitCode(IntEnum):
    """What the process gives back."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    DEFERRED = 3
    UNSAFE = 4
    HELD = 5
    ALARM_LEFT = 6
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.DONE: "done, also when nothing was due",
    ExitCode.FAILED: "failed",
    ExitCode.USAGE: "wrong usage",
    ExitCode.DEFERRED: "deferred: the cluster is not healthy enough to be touched now",
    ExitCode.UNSAFE: "refused: this etcd release loses data when defragmented",
    ExitCode.HELD: "somebody else works on this cluster",
    ExitCode.ALARM_LEFT: "done, but an alarm is still armed",
    ExitCode.INTERRUPTED: "interrupted, also by SIGTERM",
}

_CODES: tuple[tuple[type[EtcdmaintError], ExitCode], ...] = (
    (errors.InvalidInput, ExitCode.USAGE),
    (errors.ClusterNotHealthy, ExitCode.DEFERRED),
    (errors.ClusterNotReady, ExitCode.DEFERRED),
    (errors.UnsafeEtcdVersion, ExitCode.UNSAFE),
    (errors.SlotHeld, ExitCode.HELD),
    (errors.ForeignDefragmentation, ExitCode.HELD),
    (errors.StopRequested, ExitCode.INTERRUPTED),
)

# The first class that fits gives the advice, so subclasses come before their parents.
_ADVICE: tuple[tuple[type[EtcdmaintError], str], ...] = (
    (
        errors.TLSFailed,
        "check --cacert, --cert and --key, and that the certificate names this address",
    ),
    (
        errors.MemberUnreachable,
        "check --endpoints and the network; through NAT or a port-forward use --etcd-address-map",
    ),
    (
        errors.RPCTimeout,
        "ask `etcdmaint status` which member hangs, or give a longer --command-timeout",
    ),
    (errors.ConnectionLost, "ask `etcdmaint status` how the members are before anything else"),
    (errors.WrongMember, "give the members' own addresses, not a load balancer's"),
    (errors.NotEtcd, "give etcd's client address in --endpoints (usually port 2379)"),
    (
        errors.NoLeader,
        "a majority of the members must run; ask `etcdmaint status` which are missing",
    ),
    (errors.AuthenticationRequired, "give --user and its password"),
    (errors.AuthenticationFailed, "check --user and its password"),
    (errors.AuthNotEnabled, "leave out --user and ETCDCTL_USER: this etcd does not ask for one"),
    (errors.PermissionDenied, "maintenance needs a user with the role root: give another --user"),
    (errors.LearnerRefused, "give a voting member in --endpoints too"),
)

_OF_THE_EXTRA_CLI = frozenset({"click", "cryptography", "google", "grpc", "nacl", "rich"})


def code_for(error: BaseException) -> ExitCode:
    """The exit code of an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED


def sentence(error: EtcdmaintError) -> str:
    """What is wrong and what to do, on one line."""
    text = one_line(str(error)).rstrip(".") or error.reason
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return text if advice in text else f"{text}; {advice}"
    return text


def missing_package(error: ModuleNotFoundError) -> str:
    """The sentence for a package that an extra would have brought; "" for a module of our own."""
    name = error.name or ""
    if not name or name.split(".")[0] == "etcdmaint":
        return ""
    extra = "cli" if name.split(".")[0] in _OF_THE_EXTRA_CLI else "operator"
    return (
        f"this needs the Python package {name}, which is not installed: install etcdmaint with its extra "
        f"`{extra}`, in a checkout by pip install '.[{extra}]'"
    )


def one_line(text: str) -> str:
    """Without line ends and without control characters, which could steer the terminal."""
    return "".join(
        character if character.isprintable() else "?" for character in " ".join(text.split())
    )


def cause(error: BaseException) -> BaseException:
    """The first error of a group: a TaskGroup wraps what its tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        known = error.subgroup(EtcdmaintError)
        error = (known or error).exceptions[0]
    return error

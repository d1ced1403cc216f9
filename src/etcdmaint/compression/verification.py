"""Is it safe to go back to a release that reads no frames? (KEP-6264, Downgrade; R148 to R151)

Only what was seen counts: every value that the API server lists was read, at the same revision, and
none of them begins with a zero byte once decrypted. Counters prove nothing (R141), and neither does a
scan that found nothing. And nobody may go on writing frames: an API server that would, or of which it
is not known, is a reason to refuse. All pure; who asks the API server is somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from etcdmaint.compression.census import OTHERS, Census, Row
from etcdmaint.compression.contents import FRAMED, Content
from etcdmaint.compression.policy import FIRST_READER, Policy
from etcdmaint.compression.resources import INTERNAL, named

# The first release that can write a frame.
_FIRST_WRITER: Final = min(FIRST_READER.values())
_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})")
_INTERNAL_NAMES: Final = frozenset(resource for _, resource in INTERNAL)


@dataclass(frozen=True, slots=True)
class ApiServer:
    """One API server: its URL, its release (`v1.38.0`), and the hash of its policy file.

    `policy_hash` is "" where it says that it has none, None where it does not say. `process` is the
    same where one process answers at two URLs, and "" where it does not tell.
    """

    url: str
    version: str
    policy_hash: str | None
    process: str = ""

    @property
    def can_write_frames(self) -> bool | None:
        """Whether its release knows KEP-6264; None where the release cannot be told."""
        found = _VERSION.match(self.version)
        return None if found is None else (int(found[1]), int(found[2])) >= _FIRST_WRITER


@dataclass(frozen=True, slots=True)
class Finding:
    """One resource: how many values etcd has, how many the API server lists, and what is wrong."""

    resource: str
    stored: int
    listed: int | None
    faults: tuple[str, ...]

    @property
    def verified(self) -> bool:
        """Whether it may be relied on."""
        return not self.faults


def fleet_faults(
    servers: Sequence[ApiServer],
    known: int | None,
    policies: Sequence[Policy],
    resources: Sequence[tuple[str, str]],
) -> tuple[str, ...]:
    """Why somebody may still be writing frames; nothing if nobody can.

    `known` is how many API servers there are (None: that is not known), `policies` the files whose
    content is known, `resources` what is to be verified, or nothing for all.
    """
    faults = []
    if known is None:
        faults.append("how many API servers there are is not known")
    elif known > (asked := len({server.process or server.url for server in servers})):
        faults.append(
            f"there are {known} API servers and {asked} {'was' if asked == 1 else 'were'} asked: "
            "name each of them with --apiserver, by its own address"
        )
    by_hash = {policy.hash: policy for policy in policies}
    for server in servers:
        can = server.can_write_frames
        if can is None:
            faults.append(f"the release of {server.url} is not known")
        elif can and server.policy_hash is None:
            faults.append(f"{server.url} ({server.version}) does not tell its policy")
        elif can and server.policy_hash:
            policy = by_hash.get(server.policy_hash)
            if policy is None:
                faults.append(
                    f"{server.url} works with the policy {server.policy_hash}, which is not known: "
                    "give the file with --policy"
                )
            elif selected := _selected(policy, resources):
                faults.append(f"{server.url} still compresses {selected}: deselect and restart")
    return tuple(faults)


def _selected(policy: Policy, resources: Sequence[tuple[str, str]]) -> str:
    """What of these a policy compresses; "" for nothing."""
    if not resources:
        return "something" if any(rule.compresses for rule in policy.rules) else ""
    return ", ".join(
        named(group, resource)
        for group, resource in resources
        if policy.rule_for(group, resource).compresses
    )


def judge(
    census: Census, listed: Mapping[str, int | str | None], asked: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """A finding for each resource that was found, or `asked` for, by name.

    `listed` is what the API server has at the very revision of the census; None: it serves no such
    resource; a text: why it cannot list them. It is not asked for where `faults_of` has any already.
    """
    findings = [_judge(row, listed.get(row.name)) for row in census]
    missing = [name for name in asked if name not in census.rows]
    findings += [
        Finding(name, 0, None, ("nothing is stored: an empty scan proves nothing",))
        for name in missing
    ]
    if not findings:
        findings.append(Finding("all", 0, None, ("nothing was found at all",)))
    return tuple(findings)


def faults_of(row: Row) -> tuple[str, ...]:
    """What is wrong with a resource whatever the API server says of it."""
    faults = []
    if row.name == OTHERS:
        faults.append("these are of more resources than are told apart")
    if frames := row.of(*FRAMED).values:
        faults.append(f"{frames} are frames")
    # Under a key of nobody too: it may belong to a resource that is newer than we are.
    if unread := row.of(Content.ENCRYPTED).values:
        faults.append(f"{unread} are encrypted and were not looked into")
    if damaged := row.damaged:
        faults.append(f"{damaged} cannot be read")
    return tuple(faults)


def is_listed(row: Row) -> bool:
    """Whether an API server could list it: not what it keeps for itself, nor keys of nobody."""
    return row.located and row.name not in _INTERNAL_NAMES


def _judge(row: Row, listed: int | str | None) -> Finding:
    stored = row.total.values
    faults = faults_of(row)
    if is_listed(row) and not faults:
        if listed is None:
            faults = ("the API server serves no such resource, so nothing proves the count",)
        elif isinstance(listed, str):
            faults = (f"the API server cannot list them ({listed})",)
        elif listed != stored:
            faults = (f"the API server lists {listed}",)
    return Finding(row.name, stored, listed if isinstance(listed, int) else None, faults)

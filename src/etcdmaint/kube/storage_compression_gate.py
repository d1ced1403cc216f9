"""May the file be published: a question to the release of the API servers that would load it.

A published file may stop every API server that loads it, so what is not known is not taken for good
(R116 to R119). Pure: versions in, verdicts out. Behind a load balancer the version is one replica's,
which the verdict says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from etcdmaint.compression.policy import Stage
from etcdmaint.kube.storage_compression_file import (
    FIRST_WITH_STAGE,
    PolicyFile,
    Release,
    Requirement,
)
from etcdmaint.kube.verdict import Verdict

NOT_THIS_CLUSTER: Final = "NotThisCluster"

_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
_GIT_VERSION = re.compile(r"v[0-9A-Za-z.+-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """What an API server says of itself at /version; `oldest` is its minimum compatibility version.

    That one and the emulated release are told by recent releases only: None is not told.
    """

    name: str
    release: Release
    emulation: Release | None = None
    oldest: Release | None = None

    @property
    def knows(self) -> Release:
        """The release whose fields it may be trusted to know."""
        return min(self.release, self.emulation or self.release)

    def __str__(self) -> str:
        if self.oldest is None:
            return self.name
        return f"{self.name}, minimum compatibility version {dotted(self.oldest)}"


def read_version(answer: Mapping[str, Any]) -> ServerVersion | None:
    """The answer to GET /version; None for one that is none."""
    release = _release(answer, "major", "minor")
    if release is None:
        return None
    name = answer.get("gitVersion")
    if not isinstance(name, str) or not _GIT_VERSION.fullmatch(name):
        name = f"v{dotted(release)}"
    return ServerVersion(
        name,
        release,
        _release(answer, "emulationMajor", "emulationMinor"),
        _release(answer, "minCompatibilityMajor", "minCompatibilityMinor"),
    )


def may_publish(file: PolicyFile, server: ServerVersion | None, doubt: Verdict) -> Verdict | None:
    """None where every API server in front of that etcd would start with the file; else why not.

    `server` None: it is not known whose release counts, as `doubt` says.
    """
    for requirement, judge in ((file.reader, _judge_reader), (file.fields, _judge_fields)):
        if requirement is None:
            continue
        if server is None:
            needed = dotted(requirement.release)
            return Verdict(
                None,
                doubt.reason,
                f"{requirement.field} needs release {needed}, and it is not known which one the API "
                f"servers in front of this etcd have: {doubt.message}",
            )
        refusal = judge(requirement, server)
        if refusal is not None:
            return refusal
    return None


def supported(server: ServerVersion | None, doubt: Verdict) -> Verdict:
    """Whether the API server has the proposal at all."""
    if server is None:
        return doubt
    if server.knows < FIRST_WITH_STAGE[Stage.ALPHA]:
        return Verdict(False, "NoKEP6264", f"this API server ({server.name}) has no KEP-6264")
    return Verdict(
        None,
        "NotObserved",
        f"this API server ({server.name}) is of a release that should have KEP-6264; that it has was "
        "not observed",
    )


def dotted(release: Release) -> str:
    """`1.38`."""
    return f"{release[0]}.{release[1]}"


def _judge_reader(requirement: Requirement, server: ServerVersion) -> Verdict | None:
    needed = dotted(requirement.release)
    # It can never be newer than what is emulated (R118).
    at_most = server.oldest or server.knows
    if at_most < requirement.release:
        return Verdict(
            False,
            "MinCompatibilityTooLow",
            f"the API server that answered is {server}; it would not start with this file: "
            f"{requirement.field} compresses, which needs a minimum compatibility version of {needed} "
            f"or newer (release {needed} with --min-compatibility-version={needed}; the default of a "
            "later one will do). Behind a load balancer other replicas may differ",
        )
    if server.oldest is None:
        message = (
            f"the API server that answered, {server.name}, does not tell the oldest release that "
        )
        return Verdict(None, "VersionUnknown", f"{message}must be able to read what it stores")
    return None


def _judge_fields(requirement: Requirement, server: ServerVersion) -> Verdict | None:
    if server.knows >= requirement.release:
        return None
    emulated = f" (emulating {dotted(server.emulation)})" if server.emulation else ""
    return Verdict(
        False,
        "FieldTooNew",
        f"the API server that answered is {server.name}{emulated}; it would not start with this file: "
        f"{requirement.field} is known from release {dotted(requirement.release)} on. Behind a load "
        "balancer other replicas may differ",
    )


def _release(answer: Mapping[str, Any], major: str, minor: str) -> Release | None:
    found = []
    for name in (major, minor):
        # Some distributions write `37+`.
        match = _NUMBER.match(text) if isinstance(text := answer.get(name), str) else None
        if match is None:
            return None
        found.append(int(match[0]))
    return found[0], found[1]

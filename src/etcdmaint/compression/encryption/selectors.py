"""Which resources an entry of an encryption configuration is for: Kubernetes' grammar and rules.

`secrets`, `deployments.apps`, `*.apps`, `*.` (the core group), `*.*`. Written after apiserver's
EncryptionConfiguration validation; the selectors of KEP-6264 have other rules and live elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What kube-apiserver stores beside its REST storage and never encrypts, whatever the file says.
NEVER_ENCRYPTED = frozenset(
    {"apiserveripinfo", "apiserverpeeripinfo", "serviceipallocations", "servicenodeportallocations"}
)
_WITHOUT_API = NEVER_ENCRYPTED - {"apiserverpeeripinfo"}


@dataclass(frozen=True, slots=True)
class Selector:
    """One resource of one group, or `*` for all of them; the group "" is core."""

    group: str
    resource: str

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Split at the first dot; `secrets` and `secrets.` are both of the core group."""
        resource, _, group = text.partition(".")
        return cls(group, resource)

    def covers(self, group: str, resource: str) -> bool:
        """Whether this selects that resource (or would mask that selector)."""
        return self.group in ("*", group) and self.resource in ("*", resource)


def fault_of(text: str) -> str:
    """What is wrong with one selector, "" for nothing. The first fault counts, as upstream."""
    selector = Selector.parse(text)
    if text != text.lower():
        return "must not contain capital letters"
    if text == "*":
        return "use '*.' for all resources of the core group, or '*.*' for all resources"
    if text in _WITHOUT_API:
        return "this resource has no REST API and is never encrypted"
    if selector.group == "events.k8s.io":
        return "events are stored in the core group: use 'events'"
    if selector.group == "extensions":
        return "the group 'extensions' is gone: name the group that its resources moved to"
    if selector.group == "*" and selector.resource != "*":
        return "one resource of every group cannot be selected"
    return ""


def faults_of_list(selectors: Sequence[Selector]) -> list[str]:
    """What is wrong with the selectors of one entry taken together."""
    faults = []
    if len(set(selectors)) < len(selectors):
        faults.append("the same resource is given twice")
    everything = Selector("*", "*") in selectors
    groups = [selector.group for selector in selectors]
    crowded = any(
        selector.resource == "*" and groups.count(selector.group) > 1 for selector in selectors
    )
    if len(selectors) > 1 and (everything or crowded):
        faults.append("a wildcard covers another resource of the same list, and would mask it")
    return faults

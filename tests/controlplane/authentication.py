"""Turn on etcd's own authentication, the way an administrator would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .gateway import Gateway

# etcd's way of saying "from the first key to the last".
_EVERY_KEY = {"permType": "READWRITE", "key": "AA==", "range_end": "AA=="}


def enable_authentication(
    gateway: Gateway, root_password: str, users: Mapping[str, tuple[str, Sequence[str]]]
) -> None:
    """Make root, the users and their roles, then switch authentication on.

    ``users`` maps a name to its password and its roles. etcd's rights are about keys alone: what
    concerns the cluster (Defragment, MoveLeader, alarms) needs the role root.
    """
    everyone = {"root": (root_password, ["root"]), **users}
    for role in sorted({role for _, roles in everyone.values() for role in roles}):
        gateway.post("/v3/auth/role/add", {"name": role})
        if role != "root":
            gateway.post("/v3/auth/role/grant", {"name": role, "perm": _EVERY_KEY})
    for name, (password, roles) in everyone.items():
        gateway.post("/v3/auth/user/add", {"name": name, "password": password})
        for role in roles:
            gateway.post("/v3/auth/user/grant", {"user": name, "role": role})
    gateway.post("/v3/auth/enable", {})

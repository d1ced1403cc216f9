"""Secrets that tests make, break and mend."""

from __future__ import annotations

import base64

from tests.controlplane.apiserver import ControlPlane


def put_secret(plane: ControlPlane, namespace: str, name: str, **data: bytes | str) -> None:
    """Make a Secret, or make it anew; a key's dots are written as underscores."""
    body = {
        "metadata": {"name": name},
        "data": {
            key.replace("_", "."): base64.b64encode(
                value.encode() if isinstance(value, str) else value
            ).decode()
            for key, value in data.items()
        },
    }
    path = f"/api/v1/namespaces/{namespace}/secrets"
    found = plane.api.request("GET", path)
    if any(item["metadata"]["name"] == name for item in found["items"]):
        plane.api.request("DELETE", f"{path}/{name}")
    plane.api.request("POST", path, body)

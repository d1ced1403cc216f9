"""The test's own hand on the Kubernetes API: one call at a time, as one user.

Quicker than starting a kubectl, and independent of the client library under test.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

# While a resource's storage is made ready, or made anew, its requests are answered with these.
_NOT_YET = {404, 429, 503}
# What kubectl and other clients of today learn the resources from.
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class ApiError(Exception):
    """The API server said no; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class KubeApi:
    """The API server at ``url`` as the user whom ``token`` stands for."""

    def __init__(self, url: str, token: str, context: ssl.SSLContext) -> None:
        self._url = url
        self._token = token
        self._context = context

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = 60.0,
    ) -> dict[str, Any]:
        """One call; the answer's JSON object."""
        found = json.loads(self._fetch(method, path, body, content_type, timeout, accept))
        assert isinstance(found, dict)
        return found

    def ready(self, timeout: float = 2.0) -> bool:
        """Whether ``/readyz`` says ok."""
        try:
            return self._fetch("GET", "/readyz", None, "text/plain", timeout) == b"ok"
        except (OSError, ApiError):
            return False

    def has_default_namespace(self) -> bool:
        """Whether the namespaces that Kubernetes makes itself are there; ``default`` is the last."""
        try:
            self.request("GET", "/api/v1/namespaces/default")
        except (OSError, ApiError):
            return False
        return True

    def established(self, crd: str) -> bool:
        """Whether a CRD (``plural.group``) is established, and each version answers and is listed.

        Each of these comes in its own time: the last is what clients find a kind's path by.
        """
        plural, _, group = crd.partition(".")
        try:
            definition = self.request(
                "GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd}"
            )
            served = {each["name"] for each in definition["spec"]["versions"] if each["served"]}
            for version in served:
                self.request("GET", f"/apis/{group}/{version}/{plural}?limit=1")
            discovered = self._discovered(group, plural)
        except ApiError as error:
            if error.status in _NOT_YET:
                return False
            raise
        conditions = definition.get("status", {}).get("conditions") or []
        established = any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
        return established and served <= discovered

    def may(
        self,
        user: str,
        verb: str,
        group: str,
        resource: str,
        namespace: str = "",
        name: str = "",
    ) -> bool:
        """Whether the authorizer lets a user do that by now; ``resource`` may have a subresource.

        A right that was just bound is known to it a little later.
        """
        plural, _, subresource = resource.partition("/")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.request("POST", path, body)["status"]["allowed"])

    def create_namespace(self, name: str) -> None:
        """Make a namespace."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def delete_namespace(self, name: str) -> None:
        """Ask for a namespace's end; does not wait for it."""
        self.request("DELETE", f"/api/v1/namespaces/{name}")

    def _discovered(self, group: str, plural: str) -> set[str]:
        """The versions of a group in which discovery lists a resource."""
        return {
            version["version"]
            for found in self.request("GET", "/apis", accept=_DISCOVERY)["items"]
            if found["metadata"]["name"] == group
            for version in found["versions"]
            if any(each["resource"] == plural for each in version.get("resources", ()))
        }

    def _fetch(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        content_type: str,
        timeout: float,
        accept: str = "*/*",
    ) -> bytes:
        call = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._token}",
                "Content-Type": content_type,
                "Accept": accept,
            },
        )
        try:
            with urllib.request.urlopen(call, timeout=timeout, context=self._context) as answer:
                content: bytes = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(error.code, error.read().decode(errors="replace")) from None
        return content

"""Objects of one cluster: get, list, apply, patch, delete by kind, with cached API discovery."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.kubernetes.connection import MERGE, SERVER_APPLY, KubeConnection, KubeResponse

Json = Any
Document = Mapping[str, Json]
MANAGER: Final = "pilotlight"  # field manager of server-side apply
CONCURRENCY: Final = 8
PAGE: Final = "500"


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind that the cluster serves."""

    api_version: str
    name: str
    plural: str
    namespaced: bool

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = "/apis/" if "/" in self.api_version else "/api/"
        parts = ["namespaces", namespace] if self.namespaced and namespace else []
        parts += [self.plural, *filter(None, (name, subresource))]
        return root + self.api_version + "/" + "/".join(quote(part, safe="") for part in parts)


class Cluster:
    """API discovery is cached for the life of this object."""

    def __init__(self, connection: KubeConnection) -> None:
        self.connection = connection
        self._served: dict[str, dict[str, ResourceKind]] = {}

    @cached_property
    def groups(self) -> Mapping[str, str]:
        """API groups with their preferred version: `apps` → `apps/v1`."""
        response = self.connection.request("GET", "/apis").document
        return {"": "v1", **{each["name"]: each["preferredVersion"]["groupVersion"] for each in response["groups"]}}

    def kind(self, api_version: str, name: str) -> ResourceKind | None:
        """Return the kind; None: not served."""
        if api_version not in self._served:
            self._served[api_version] = self._kinds(api_version)
        return self._served[api_version].get(name)

    def _kinds(self, api_version: str) -> dict[str, ResourceKind]:
        root = "/apis/" if "/" in api_version else "/api/"
        try:
            response = self.connection.request("GET", root + api_version).document
        except NotFound:
            return {}
        return {
            each["kind"]: ResourceKind(api_version, each["kind"], each["name"], each["namespaced"])
            for each in response["resources"]
            if "/" not in each["name"]
        }

    def require_kind(self, api_version: str, name: str) -> ResourceKind:
        kind = self.kind(api_version, name)
        if kind is None:
            raise NotFound(f"the cluster knows no {name} of {api_version}", "platformctl doctor --target kubernetes")
        return kind

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Json] | None:
        resource = self.kind(api_version, kind)
        if resource is None:
            return None
        try:
            document: dict[str, Json] = self.connection.request("GET", resource.path(namespace, name)).document
        except NotFound:
            return None
        return document

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, selector: str = ""
    ) -> "Sequence[dict[str, Json]]":
        """List a namespace, or all; empty if the kind is not served. Adds apiVersion and kind, which items lack."""
        resource = self.kind(api_version, kind)
        return list(self._items(resource, namespace or "", selector)) if resource else []

    def _items(self, kind: ResourceKind, namespace: str, selector: str) -> Iterator[dict[str, Json]]:
        query = {"limit": PAGE, **({"labelSelector": selector} if selector else {})}
        while True:
            response = self.connection.request("GET", kind.path(namespace), query).document
            for item in response.get("items") or ():
                yield {"apiVersion": kind.api_version, "kind": kind.name, **item}
            continuation = (response.get("metadata") or {}).get("continue")
            if not continuation:
                return
            query["continue"] = continuation

    def list_kinds(
        self, wanted: Sequence[tuple[str, str]], namespace: str | None, selector: str = ""
    ) -> "Sequence[dict[str, Json]]":
        """List several kinds concurrently, each an (apiVersion, kind)."""
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            lists = pool.map(lambda each: self.list(each[0], each[1], namespace, selector), wanted)
            return [item for items in lists for item in items]

    def apply(self, document: Document, *, force: bool = False, dry_run: bool = False) -> KubeResponse:
        """Server-side apply; fields of other managers are a conflict unless `force`."""
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        query |= {"force": "true"} if force else {}
        query |= {"dryRun": "All"} if dry_run else {}
        return self.connection.request("PATCH", self._path(document), query, document, SERVER_APPLY)

    def create(self, document: Document) -> KubeResponse:
        metadata = document["metadata"]
        kind = self.require_kind(document["apiVersion"], document["kind"])
        query = {"fieldManager": MANAGER}
        return self.connection.request("POST", kind.path(metadata.get("namespace", "")), query, document)

    def merge(self, document: Document, change: Json, subresource: str = "") -> KubeResponse:
        """Send a merge patch for the object that the document names."""
        path = self._path(document, subresource)
        return self.connection.request("PATCH", path, {"fieldManager": MANAGER}, change, MERGE)

    def delete(self, document: Document, *, foreground: bool = False) -> None:
        """Delete an object; no error if it does not exist."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        try:
            self.connection.request("DELETE", self._path(document), None, options)
        except NotFound:
            return

    def is_allowed(self, verb: str, kind: ResourceKind, namespace: str) -> bool:
        """Whether this account has the permission (SelfSubjectAccessReview)."""
        wanted = {"namespace": namespace, "verb": verb, "group": kind.group, "resource": kind.plural}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        response = self.connection.request("POST", path, None, review).document
        return bool((response.get("status") or {}).get("allowed"))

    def _path(self, document: Document, subresource: str = "") -> str:
        kind = self.require_kind(document["apiVersion"], document["kind"])
        metadata = document["metadata"]
        if kind.namespaced and not metadata.get("namespace"):
            raise PlatformError(f"{kind.name} {metadata['name']} has no namespace")
        return kind.path(metadata.get("namespace", ""), metadata["name"], subresource)

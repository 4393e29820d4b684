"""One cluster as objects: get, list, apply, patch, delete by kind. Which kinds there are is asked once."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.kubernetes.connection import MERGE, SERVER_APPLY, Answer, Connection

Json = Any
Document = Mapping[str, Json]
MANAGER: Final = "pilotlight"  # of the fields that are ours, as server-side apply keeps the account
AT_ONCE: Final = 8
PAGE: Final = "500"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind that the cluster knows. `api_version` is the one that it prefers."""

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
    """`served` caches what the cluster knows for the life of this object: a verb, or a moment of a long one."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._served: dict[str, dict[str, Kind]] = {}

    @cached_property
    def groups(self) -> Mapping[str, str]:
        """API groups with the version that the cluster prefers: `apps` → `apps/v1`."""
        told = self.connection.ask("GET", "/apis").document
        return {"": "v1", **{each["name"]: each["preferredVersion"]["groupVersion"] for each in told["groups"]}}

    def kind(self, api_version: str, name: str) -> Kind | None:
        """None: the cluster does not know it."""
        if api_version not in self._served:
            self._served[api_version] = self._kinds(api_version)
        return self._served[api_version].get(name)

    def _kinds(self, api_version: str) -> dict[str, Kind]:
        root = "/apis/" if "/" in api_version else "/api/"
        try:
            told = self.connection.ask("GET", root + api_version).document
        except NotFound:
            return {}
        return {
            each["kind"]: Kind(api_version, each["kind"], each["name"], each["namespaced"])
            for each in told["resources"]
            if "/" not in each["name"]
        }

    def known(self, api_version: str, name: str) -> Kind:
        found = self.kind(api_version, name)
        if found is None:
            raise NotFound(f"the cluster knows no {name} of {api_version}", "platformctl doctor --target kubernetes")
        return found

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Json] | None:
        found = self.kind(api_version, kind)
        if found is None:
            return None
        try:
            got: dict[str, Json] = self.connection.ask("GET", found.path(namespace, name)).document
        except NotFound:
            return None
        return got

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, selector: str = ""
    ) -> "Sequence[dict[str, Json]]":
        """Of one namespace, or of all; empty also where the cluster does not know the kind. With apiVersion and kind,
        which the API leaves out of the items of a list."""
        found = self.kind(api_version, kind)
        return list(self._items(found, namespace or "", selector)) if found else []

    def _items(self, kind: Kind, namespace: str, selector: str) -> Iterator[dict[str, Json]]:
        query = {"limit": PAGE, **({"labelSelector": selector} if selector else {})}
        while True:
            told = self.connection.ask("GET", kind.path(namespace), query).document
            for item in told.get("items") or ():
                yield {"apiVersion": kind.api_version, "kind": kind.name, **item}
            more = (told.get("metadata") or {}).get("continue")
            if not more:
                return
            query["continue"] = more

    def lists(
        self, wanted: Sequence[tuple[str, str]], namespace: str | None, selector: str = ""
    ) -> "Sequence[dict[str, Json]]":
        """Of several kinds at once, each of (apiVersion, kind)."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(lambda each: self.list(each[0], each[1], namespace, selector), wanted)
            return [item for items in found for item in items]

    def apply(self, document: Document, *, force: bool = False, dry_run: bool = False) -> Answer:
        """Server-side apply under our name: fields that somebody else manages are a conflict unless `force`."""
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        query |= {"force": "true"} if force else {}
        query |= {"dryRun": "All"} if dry_run else {}
        return self.connection.ask("PATCH", self._path(document), query, document, SERVER_APPLY)

    def create(self, document: Document) -> Answer:
        metadata = document["metadata"]
        kind = self.known(document["apiVersion"], document["kind"])
        query = {"fieldManager": MANAGER}
        return self.connection.ask("POST", kind.path(metadata.get("namespace", "")), query, document)

    def merge(self, document: Document, change: Json, subresource: str = "") -> Answer:
        """A merge patch to the object that the document names."""
        path = self._path(document, subresource)
        return self.connection.ask("PATCH", path, {"fieldManager": MANAGER}, change, MERGE)

    def delete(self, document: Document, *, foreground: bool = False) -> None:
        """One that is gone already is no error."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        try:
            self.connection.ask("DELETE", self._path(document), None, options)
        except NotFound:
            return

    def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        """Whether whoever we are has this right, as the cluster judges it."""
        wanted = {"namespace": namespace, "verb": verb, "group": kind.group, "resource": kind.plural}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        told = self.connection.ask("POST", path, None, review).document
        return bool((told.get("status") or {}).get("allowed"))

    def _path(self, document: Document, subresource: str = "") -> str:
        kind = self.known(document["apiVersion"], document["kind"])
        metadata = document["metadata"]
        if kind.namespaced and not metadata.get("namespace"):
            raise PlatformError(f"{kind.name} {metadata['name']} has no namespace")
        return kind.path(metadata.get("namespace", ""), metadata["name"], subresource)

"""Objects of all reconciled services in memory, fed by watches, and a cluster that reads from there.

An unchanged service costs no request. What the controller writes is in the cache at once, before the watch reports it.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import json

from pilotlight.k8s import names
from pilotlight.targets.kubernetes import canary_store, kinds, releases
from pilotlight.targets.kubernetes.apply import APPLIERS, is_drift
from pilotlight.targets.kubernetes.capabilities import CATALOGUE
from pilotlight.targets.kubernetes.client import Cluster, KubeApiError, KubeConnection, KubeResponse
from pilotlight.targets.kubernetes.observe.snapshot import READ

Json = Any
Document = Mapping[str, Json]
Kind = tuple[str, str]  # apiVersion, kind
# Kinds of which objects with the label of a service are held.
LABELLED: Final = tuple(dict.fromkeys((*READ, *kinds.OWNED, kinds.REFERENCE_GRANT, kinds.LEASE)))
WATCHED: Final = (*LABELLED, *CATALOGUE)
# Listed whole to explain why a service is not ready; one list serves all of them for a while.
EXPLAINING: Final = (kinds.EVENT, ("v1", "Node"), kinds.POD)
REUSE_S: Final = 5.0


class HeldObject(NamedTuple):
    """One object as JSON: 200 services of ten objects take 6 MB."""

    version: int  # resourceVersion
    service: str
    text: bytes


class ObjectCache:
    """Newest known version of each object; thread-safe. Returns copies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[Kind, dict[tuple[str, str], HeldObject]] = {}
        self._by_service: dict[tuple[Kind, str, str], set[str]] = {}  # kind, namespace, service → names
        self.newest = 0  # resourceVersion

    def put(self, document: Document) -> None:
        kind, key, version = _kind(document), _key(document), _version(document)
        service = kinds.labels(document).get(names.LABEL_SERVICE, "")
        with self._lock:
            self.newest = max(self.newest, version)
            known = self._objects.get(kind, {}).get(key)
            if known is None or known.version <= version:
                self._remove(kind, key)
                held = HeldObject(version, service, json.encode(_trimmed(document)))
                self._objects.setdefault(kind, {})[key] = held
                self._by_service.setdefault((kind, key[0], service), set()).add(key[1])
                if kind == releases.API and releases.LABEL in kinds.labels(document):
                    self._drop_older_releases(key[0], service)

    def _drop_older_releases(self, namespace: str, service: str) -> None:
        """Hold the content of the newest release only: ten of them are most of a service's memory."""
        stored = self._objects[releases.API]
        mine = [(namespace, name) for name in self._by_service[releases.API, namespace, service]]
        documents = {key: json.decode(stored[key].text) for key in mine}
        # StatefulSets and LeaderWorkerSets have ControllerRevisions of their own, with the labels of their pods.
        documents = {key: each for key, each in documents.items() if releases.LABEL in kinds.labels(each)}
        readable = [key for key in documents if releases.is_readable(documents[key])]
        newest = max(readable, key=lambda key: int(documents[key].get("revision") or 0), default=None)
        for key in documents:
            if key != newest and documents[key].pop("data", None):
                stored[key] = stored[key]._replace(text=json.encode(documents[key]))

    def discard(self, document: Document) -> None:
        """Remove an object, unless a newer one of its name is known."""
        kind, key = _kind(document), _key(document)
        with self._lock:
            known = self._objects.get(kind, {}).get(key)
            if known is not None and known.version <= _version(document):
                self._remove(kind, key)

    def _remove(self, kind: Kind, key: tuple[str, str]) -> None:
        known = self._objects.get(kind, {}).pop(key, None)
        if known is not None:
            mine = self._by_service[kind, key[0], known.service]
            mine.discard(key[1])
            if not mine:
                del self._by_service[kind, key[0], known.service]

    def replace(self, kind: Kind, documents: Iterable[Document], before: int) -> None:
        """Take over a list of all objects of a kind; what was known `before` it and is not in it is gone."""
        listed = {_key(each): each for each in documents}
        with self._lock:
            known = self._objects.get(kind, {}).items()
            for key in [key for key, each in known if key not in listed and each.version <= before]:
                self._remove(kind, key)
        for each in listed.values():
            self.put(each)

    def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Json] | None:
        with self._lock:
            held = self._objects.get(kind, {}).get((namespace, name))
        return json.decode(held.text, type=dict[str, Json]) if held else None

    def list(self, kind: Kind, namespace: str | None, service: str = "") -> "list[dict[str, Json]]":
        """List the objects of a kind in a namespace, or in all; of one service, or all."""
        with self._lock:
            objects = self._objects.get(kind, {})
            if namespace and service:
                found = [objects[namespace, name] for name in self._by_service.get((kind, namespace, service), ())]
            else:
                every = objects.items()
                found = [
                    each for key, each in every if namespace in (None, "", key[0]) and service in ("", each.service)
                ]
        return [json.decode(each.text, type=dict[str, Json]) for each in found]


class CachedCluster(Cluster):
    """Cluster that reads kinds in `cached` from the cache, and takes changes by hand back without a question."""

    def __init__(self, connection: KubeConnection, cache: ObjectCache, cached: Iterable[Kind]) -> None:
        super().__init__(connection)
        self.cache, self.cached = cache, frozenset(cached)
        self._lists: dict[tuple[str, str | None], tuple[float, Sequence[dict[str, Json]]]] = {}
        self._listing = threading.Lock()

    def forget_kinds(self) -> None:
        """Discover the served kinds again: an add-on may have been installed."""
        self._served = {}
        self.__dict__.pop("groups", None)

    def fill(self, namespaces: Sequence[str]) -> None:
        """List everything that is cached, since watches may miss deletions; in these namespaces, or in all."""
        for kind in self.cached:
            resource = self.kind(*kind)
            homes = namespaces if namespaces and resource is not None and resource.namespaced else (None,)
            selector = names.LABEL_SERVICE if kind in LABELLED else ""
            before = self.cache.newest
            objects = [each for home in homes for each in Cluster.list(self, *kind, home, selector)]
            self.cache.replace(kind, objects, before)

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Json] | None:
        known = self.cache.get((api_version, kind), namespace, name)
        if known is not None or (api_version, kind) == kinds.LEASE:
            return known
        return super().get(api_version, kind, namespace, name)  # one without our label is not cached

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, selector: str = ""
    ) -> Sequence[dict[str, Json]]:
        label, _, service = selector.removesuffix(f",{canary_store.COMPONENT}=canary").partition("=")
        labelled = (api_version, kind) in LABELLED
        if (api_version, kind) in self.cached and "," not in service and label == names.LABEL_SERVICE * labelled:
            return self.cache.list((api_version, kind), namespace, service)
        if selector or (api_version, kind) not in EXPLAINING:
            return super().list(api_version, kind, namespace, selector)
        with self._listing:
            at, objects = self._lists.get((kind, namespace), (-REUSE_S, ()))
            if time.monotonic() - at >= REUSE_S:
                objects = super().list(api_version, kind, namespace)
                self._lists[kind, namespace] = time.monotonic(), objects
            return objects

    def list_kinds(
        self, wanted: Sequence[Kind], namespace: str | None, selector: str = ""
    ) -> Sequence[dict[str, Json]]:
        return [each for kind in wanted for each in self.list(*kind, namespace, selector)]

    def apply(self, document: Document, *, force: bool = False, dry_run: bool = False) -> KubeResponse:
        try:
            response = super().apply(document, force=force, dry_run=dry_run)
        except KubeApiError as error:
            if not is_drift(error):
                raise
            response = super().apply(document, force=True, dry_run=dry_run)
        return response if dry_run else self._written(response)

    def create(self, document: Document) -> KubeResponse:
        return self._written(super().create(document))

    def merge(self, document: Document, change: Json, subresource: str = "") -> KubeResponse:
        return self._written(super().merge(document, change, subresource))

    def delete(self, document: Document) -> None:
        super().delete(document)
        known = self.cache.get(_kind(document), *_key(document))
        if known is not None:
            self.cache.discard(known)

    def _written(self, response: KubeResponse) -> KubeResponse:
        kind, labels = _kind(response.document), kinds.labels(response.document)
        if kind in self.cached and (kind not in LABELLED or names.LABEL_SERVICE in labels):
            self.cache.put(response.document)
        return response


def _kind(document: Document) -> Kind:
    return str(document["apiVersion"]), str(document["kind"])


def _key(document: Document) -> tuple[str, str]:
    return str(document["metadata"].get("namespace") or ""), str(document["metadata"]["name"])


def _version(document: Document) -> int:
    """Return the resourceVersion: a number in every API server over etcd; 0: unknown, older than any."""
    version = str(document["metadata"].get("resourceVersion") or "")
    return int(version) if version.isdigit() else 0


def _trimmed(document: Document) -> Document:
    """Return the document with its field managers as far as drift is looked for in them."""
    managed = document["metadata"].get("managedFields") or () if _kind(document) in kinds.OWNED else ()
    ours = [each for each in managed if each.get("manager") in APPLIERS]
    return {**document, "metadata": {**document["metadata"], "managedFields": ours}}

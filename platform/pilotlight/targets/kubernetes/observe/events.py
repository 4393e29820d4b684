"""Events of a service: core/v1 Events of its objects, including deleted ones.

An Event references an object, not a service. Existing objects have our label; a deleted pod or revision is recognized
by its name, which begins with its workload's.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

from msgspec import json

from pilotlight.errors import PlatformError
from pilotlight.k8s import names
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.error_from_log import failed_event
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.client import MANAGER, Cluster, KubeApiError
from pilotlight.targets.kubernetes.kinds import unless_forbidden
from pilotlight.targets.kubernetes.observe import logs
from pilotlight.targets.kubernetes.observe.diagnosis import event_time, is_ready
from pilotlight.targets.kubernetes.observe.snapshot import last_lines
from pilotlight.targets.target import Event, Key

Json = Any
Document = Mapping[str, Json]
Owners = Mapping[tuple[str, str], str]  # namespace and name of an object → its service

OWNING: Final = (
    *kinds.WORKLOADS, kinds.KNATIVE_REVISION, ("apps/v1", "ReplicaSet"), kinds.POD, kinds.SCALED_OBJECT, kinds.HPA,
    kinds.HTTP_ROUTE, ("v1", "Service"), ("v1", "PersistentVolumeClaim"),
)  # fmt: skip
KEDA_HPA: Final = "keda-hpa-"
TOO_OLD: Final = 410  # Gone: the resource version is too old to watch from
WATCH_S: Final = "300"


def events(cluster: Cluster, key: Key | None, follow: bool) -> Iterator[Event]:
    """Yield events, oldest first; with `follow` also new ones, without end."""
    if key is not None:
        logs.require_service(cluster, key)
    return _service_events(cluster, key, follow)


def _service_events(cluster: Cluster, key: Key | None, follow: bool) -> Iterator[Event]:
    number = 0
    owners_cache = _OwnerCache(cluster, key)
    for document, live in _documents(cluster, key, follow):
        service = owners_cache.service_of(document, live)
        if service and (key is None or service == key[1]):
            number += 1
            yield as_event(document, service, number, owners_cache.cause(document, live))


class _OwnerCache:
    """Services by object. Objects of others may be many: each is read at most once."""

    def __init__(self, cluster: Cluster, key: Key | None) -> None:
        self._cluster, self._namespace = cluster, key[0] if key else None
        self._owners: dict[tuple[str, str], str] = {}
        self._foreign: set[tuple[str, str]] = set()
        self._pods: dict[tuple[str, str], Document] = {}
        self._listed = False

    def service_of(self, document: Document, live: bool) -> str:
        """Return the service; a `live` event may be about an object created after the list."""
        about = document.get("involvedObject") or {}
        reference = _reference(about, document)
        if not self._listed:
            self._listed = True
            objects = self._cluster.list_kinds(OWNING, self._namespace, names.LABEL_SERVICE)
            self._owners = owners(objects)
            self._pods = {_reference(each["metadata"], each): each for each in objects if each["kind"] == "Pod"}
        service = owner(reference, self._owners)
        if not service and live and reference not in self._foreign:
            service = self._read(reference, str(about.get("apiVersion") or ""), str(about.get("kind") or ""))
        return service

    def cause(self, document: Document, live: bool) -> str:
        """Return why a pod does not answer its probe, by its log; such an event has only the status code."""
        if document.get("reason") != "Unhealthy":
            return ""
        reference = _reference(document.get("involvedObject") or {}, document)
        lookup = partial(self._cluster.get, *kinds.POD, *reference)
        pod = unless_forbidden(lookup, None) if live else self._pods.get(reference)
        return failed_event(last_lines(self._cluster, pod)) if pod is not None and not is_ready(pod) else ""

    def _read(self, reference: tuple[str, str], api_version: str, kind: str) -> str:
        lookup = partial(self._cluster.get, api_version, kind, *reference)
        document = unless_forbidden(lookup, None) if api_version and kind else None
        service = kinds.labels(document).get(names.LABEL_SERVICE, "") if document else ""
        if service:
            self._owners[reference] = service
        else:
            self._foreign.add(reference)
        return service


def _reference(about: Document, document: Document) -> tuple[str, str]:
    """Return namespace and name of the object that a document is about."""
    namespace = about.get("namespace") or document["metadata"].get("namespace") or ""
    return str(namespace), str(about.get("name") or "")


def owners(objects: Iterable[Document]) -> dict[tuple[str, str], str]:
    return {
        (each["metadata"].get("namespace", ""), each["metadata"]["name"]): kinds.labels(each)[names.LABEL_SERVICE]
        for each in objects
    }


def owner(reference: tuple[str, str], known: Owners) -> str:
    """Return the service by the object's name, else by its longest known prefix, such as `iris-predictor-00001`."""
    namespace, name = reference[0], reference[1].removeprefix(KEDA_HPA)
    while name and (namespace, name) not in known:
        name = name.rpartition("-")[0]
    return known.get((namespace, name), "")


def as_event(document: Document, service: str, number: int, cause: str = "") -> Event:
    about = document.get("involvedObject") or {}
    times = int((document.get("series") or {}).get("count") or document.get("count") or 1)
    kind: Literal["Normal", "Warning"] = "Warning" if document.get("type") == "Warning" else "Normal"
    message = str(document.get("message") or "").strip() + (f" (×{times})" if times > 1 else "")
    message += f": {cause}" if cause else ""
    namespace, _ = _reference(about, document)
    what = f"{about.get('kind', '')}/{about.get('name', '')}"
    return Event(at(document), namespace, service, what, kind, str(document.get("reason") or ""), message, number)


def at(document: Document) -> str:
    """Return the last time of an event, to the second."""
    time = event_time(document)
    return f"{time[:19]}Z" if time else ""


def _documents(cluster: Cluster, key: Key | None, follow: bool) -> Iterator[tuple[Document, bool]]:
    """Yield listed events, then watched ones (live). After an expired watch it lists again, without repetitions."""
    path = cluster.require_kind(*kinds.EVENT).path(key[0] if key else "")
    seen: set[tuple[str, str]] = set()
    while True:
        response = cluster.connection.request("GET", path).document
        listed = sorted(response.get("items") or (), key=at)
        before, seen = seen, set(map(_version, listed))
        yield from ((document, False) for document in listed if _version(document) not in before)
        if not follow:
            return
        for document in _watched(cluster, path, str(response["metadata"]["resourceVersion"])):
            seen.add(_version(document))
            yield document, True


def _version(document: Document) -> tuple[str, str]:
    metadata = document["metadata"]
    return str(metadata.get("uid") or metadata["name"]), str(metadata.get("resourceVersion") or "")


def _watched(cluster: Cluster, path: str, version: str) -> Iterator[Document]:
    """Watch until the resource version expires or the connection breaks."""
    while True:
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": WATCH_S, "allowWatchBookmarks": "true"}
        try:
            for line in cluster.connection.lines(path, query):
                change = json.decode(line)
                if change["type"] == "ERROR":
                    return
                version = str(change["object"]["metadata"]["resourceVersion"])
                if change["type"] in ("ADDED", "MODIFIED"):
                    yield change["object"]
        except KubeApiError as error:
            if error.code != TOO_OLD:
                raise
            return
        except OSError:
            return  # the next list retries while the server restarts


def post_event(cluster: Cluster, subject: Document, type_: str, reason: str, message: str) -> None:
    """Create an Event on an object; errors are ignored."""
    with suppress(PlatformError):
        cluster.create(_event(subject, type_, reason, message))


def _event(subject: Document, type_: str, reason: str, message: str) -> dict[str, Json]:
    metadata, at = subject["metadata"], utc_now("seconds")
    involved = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": names.truncate(f"{metadata['name']}-"), "namespace": metadata["namespace"]},
        "involvedObject": {"apiVersion": subject["apiVersion"], "kind": subject["kind"], **involved},
        "reason": reason,
        "message": message[:1000],
        "type": type_,
        "source": {"component": MANAGER},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }

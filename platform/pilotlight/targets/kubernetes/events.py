"""What the cluster noted about a service: core/v1 Events of its objects, also of those that are gone already.

An Event names an object and no service. Objects that there are carry our label; a pod or revision that is gone is known
by its name, which begins with its workload's.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal

from msgspec import json

from pilotlight import names
from pilotlight.targets.kubernetes import kinds, presence
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.connection import Refused
from pilotlight.targets.kubernetes.rights import allowed
from pilotlight.targets.target import Event, Key

Json = Any
Document = Mapping[str, Json]
Owners = Mapping[tuple[str, str], str]  # namespace and name of an object → its service

OWNING: Final = (
    *kinds.WORKLOADS, kinds.KNATIVE_REVISION, ("apps/v1", "ReplicaSet"), kinds.POD, kinds.SCALED_OBJECT, kinds.HPA,
    kinds.HTTP_ROUTE, ("v1", "Service"), ("v1", "PersistentVolumeClaim"),
)  # fmt: skip
KEDA_HPA: Final = "keda-hpa-"
TOO_OLD: Final = 410  # the cluster has forgotten what a watch wants to go on from
WATCH_S: Final = "300"


def events(cluster: Cluster, key: Key | None, follow: bool) -> Iterator[Event]:
    """Oldest first; with `follow` what comes after, until the caller stops asking."""
    if key is not None:
        presence.require(cluster, key)
    return _told(cluster, key, follow)


def _told(cluster: Cluster, key: Key | None, follow: bool) -> Iterator[Event]:
    number = 0
    account = _Account(cluster, key)
    for document, just_now in _documents(cluster, key, follow):
        service = account.service_of(document, just_now)
        if service and (key is None or service == key[1]):
            number += 1
            yield as_event(document, service, number)


class _Account:
    """Which service an object belongs to. A busy cluster has many objects of others: each is looked at once at most."""

    def __init__(self, cluster: Cluster, key: Key | None) -> None:
        self._cluster, self._namespace = cluster, key[0] if key else None
        self._owners: dict[tuple[str, str], str] = {}
        self._strangers: set[tuple[str, str]] = set()
        self._listed = False

    def service_of(self, document: Document, just_now: bool) -> str:
        """What happens just now may be about an object that was not there when all were listed."""
        about = document.get("involvedObject") or {}
        met = (str(about.get("namespace") or document["metadata"].get("namespace") or ""), str(about.get("name") or ""))
        if not self._listed:
            self._listed = True
            self._owners = owners(self._cluster.lists(OWNING, self._namespace, names.LABEL_SERVICE))
        found = owner(met, self._owners)
        if not found and just_now and met not in self._strangers:
            found = self._looked_at(met, str(about.get("apiVersion") or ""), str(about.get("kind") or ""))
        return found

    def _looked_at(self, met: tuple[str, str], api_version: str, kind: str) -> str:
        seen = allowed(partial(self._cluster.get, api_version, kind, *met), None) if api_version and kind else None
        service = kinds.labels(seen).get(names.LABEL_SERVICE, "") if seen else ""
        if service:
            self._owners[met] = service
        else:
            self._strangers.add(met)
        return service


def owners(objects: Iterable[Document]) -> dict[tuple[str, str], str]:
    return {
        (each["metadata"].get("namespace", ""), each["metadata"]["name"]): kinds.labels(each)[names.LABEL_SERVICE]
        for each in objects
    }


def owner(met: tuple[str, str], known: Owners) -> str:
    """By its own name, else by the longest one that its name begins with: `iris-predictor-00001-deployment-7d9…`."""
    namespace, name = met[0], met[1].removeprefix(KEDA_HPA)
    if (namespace, name) in known:
        return known[namespace, name]
    while "-" in name:
        name = name.rpartition("-")[0]
        if (namespace, name) in known:
            return known[namespace, name]
    return ""


def as_event(document: Document, service: str, number: int) -> Event:
    about = document.get("involvedObject") or {}
    times = int((document.get("series") or {}).get("count") or document.get("count") or 1)
    kind: Literal["Normal", "Warning"] = "Warning" if document.get("type") == "Warning" else "Normal"
    message = str(document.get("message") or "").strip() + (f" (×{times})" if times > 1 else "")
    namespace = str(about.get("namespace") or document["metadata"].get("namespace") or "")
    what = f"{about.get('kind', '')}/{about.get('name', '')}"
    return Event(at(document), namespace, service, what, kind, str(document.get("reason") or ""), message, number)


def at(document: Document) -> str:
    """When it was seen last, to the second. Which field tells depends on who wrote the event."""
    series = document.get("series") or {}
    told = (
        series.get("lastObservedTime") or document.get("lastTimestamp") or document.get("eventTime")
        or document.get("firstTimestamp") or document["metadata"].get("creationTimestamp")
    )  # fmt: skip
    return str(told)[:19] + "Z" if told else ""


def _documents(cluster: Cluster, key: Key | None, follow: bool) -> Iterator[tuple[Document, bool]]:
    """Those that there are, then what a watch tells just now. One that fell behind lists anew and repeats nothing."""
    path = cluster.known(*kinds.EVENT).path(key[0] if key else "")
    told: set[tuple[str, str]] = set()
    while True:
        answer = cluster.connection.ask("GET", path).document
        there = sorted(answer.get("items") or (), key=at)
        before, told = told, set(map(_version, there))
        yield from ((document, False) for document in there if _version(document) not in before)
        if not follow:
            return
        for document in _watched(cluster, path, str(answer["metadata"]["resourceVersion"])):
            told.add(_version(document))
            yield document, True


def _version(document: Document) -> tuple[str, str]:
    metadata = document["metadata"]
    return str(metadata.get("uid") or metadata["name"]), str(metadata.get("resourceVersion") or "")


def _watched(cluster: Cluster, path: str, version: str) -> Iterator[Document]:
    """Until the cluster no longer knows the version that it would have to go on from."""
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
        except Refused as refused:
            if refused.code != TOO_OLD:
                raise
            return
        except OSError:
            return  # the list that follows waits for a server that restarts

"""Logs of a service's pods: pod by pod, or followed live, including new pods.

Lines are requested with timestamps, so that a broken stream continues where it ended and a restarted container is read
from its beginning.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event as Signal
from threading import Thread
from time import monotonic
from typing import Any, Final

from pilotlight.errors import NotFound, PlatformError
from pilotlight.k8s.names import LABEL_REVISION
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.client import Cluster
from pilotlight.targets.kubernetes.observe.diagnosis import LOST_LOG, main_container
from pilotlight.targets.target import Key, LogLine, with_headings

Json = Any
Document = Mapping[str, Json]
REVISION_LABELS: Final = ("serving.knative.dev/revision", LABEL_REVISION)
POLL_S: Final = 1.0  # until a new pod is noticed
ENDED: Final = ("Succeeded", "Failed")


class Line(LogLine, frozen=True):
    at: str = ""  # fixed width: compares as text


def require_service(cluster: Cluster, key: Key) -> None:
    """Raise NotFound if the service has no workload: empty logs or events could mean a mistyped name."""
    if not cluster.list_kinds(kinds.WORKLOADS, key[0], kinds.selector(key[1])):
        raise NotFound(f"there is no service {'/'.join(key)}", "see platformctl list --target kubernetes")


def lines(cluster: Cluster, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]:
    """Yield lines, with headings between pods like `tail` for several files."""
    pods = select_pods(_pods(cluster, key), replica)
    if not pods:
        require_service(cluster, key)
    if follow and not previous:
        return with_headings(_follow(cluster, key, replica, tail))
    return with_headings(line for pod in pods for line in _read(cluster, pod, previous=previous, tail=tail))


def select_pods(pods: list[Document], replica: str) -> list[Document]:
    """Return the pods of `replica`, a pod or a revision (empty: all), newest last. Raises NotFound."""
    ordered = sorted(pods, key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
    selected = [pod for pod in ordered if not replica or _matches(pod, replica)]
    if ordered and not selected:
        names = ", ".join(str(pod["metadata"]["name"]) for pod in ordered)
        message = f"no pod or revision with pods is called {replica}; there are {names}"
        raise NotFound(message, "a cluster deletes the log with its pod, unless a log collector keeps it")
    return selected


def _matches(pod: Document, replica: str) -> bool:
    """Whether it is the pod or of the revision, which may be given by the end of its name; with overrides included."""
    names = [pod["metadata"]["name"], *(kinds.labels(pod).get(label, "") for label in REVISION_LABELS)]
    return any(name == replica or name.endswith(f"-{replica}") or name.startswith(f"{replica}-") for name in names)


def _pods(cluster: Cluster, key: Key) -> list[Document]:
    return list(cluster.list(*kinds.POD, key[0], kinds.selector(key[1])))


def _read(
    cluster: Cluster, pod: Document, *, previous: bool = False, follow: bool = False, tail: int = -1, after: str = ""
) -> Iterator[Line]:
    """Yield lines later than `after`; nothing if the container has not started yet."""
    metadata = pod["metadata"]
    query = {"container": main_container(pod), "timestamps": "true"}
    query |= {"previous": "true"} if previous else {}
    query |= {"follow": "true"} if follow else {}
    query |= {"sinceTime": after[:19] + "Z"} if after else {"tailLines": str(tail)} if tail >= 0 else {}
    path = cluster.require_kind(*kinds.POD).path(metadata["namespace"], metadata["name"], "log")
    with suppress(PlatformError, OSError):
        for written in cluster.connection.lines(path, query):
            line = written.decode(errors="replace")
            at, _, text = line.partition(" ")
            if at > after and not line.startswith(LOST_LOG):  # without a timestamp, it would compare as the latest
                yield Line(metadata["name"], text, at)


def _follow(cluster: Cluster, key: Key, replica: str, tail: int) -> Iterator[Line]:
    """Yield lines of all pods, one thread each; existing pods start with their tail, new ones at the beginning."""
    queue: SimpleQueue[Line] = SimpleQueue()
    ended = Signal()
    seen: set[str] = set()
    first_tail = tail
    try:
        while True:
            try:
                pods = select_pods(_pods(cluster, key), replica)
            except PlatformError:
                pods = []  # pods may come later, and the cluster may be unavailable for a moment
            for pod in pods:
                if _identity(pod) not in seen:  # a StatefulSet reuses pod names
                    seen.add(_identity(pod))
                    Thread(target=_read_into, args=(cluster, pod, first_tail, queue, ended), daemon=True).start()
            first_tail = -1
            deadline = monotonic() + POLL_S
            with suppress(Empty):
                while (left := deadline - monotonic()) > 0:
                    yield queue.get(timeout=left)
    finally:
        ended.set()


def _identity(pod: Document) -> str:
    return str(pod["metadata"].get("uid") or pod["metadata"]["name"])


def _read_into(cluster: Cluster, pod: Document, tail: int, queue: SimpleQueue[Line], ended: Signal) -> None:
    metadata, after = pod["metadata"], ""
    while not ended.is_set():
        for line in _read(cluster, pod, follow=True, tail=tail, after=after):
            after = line.at
            queue.put(line)
            if ended.is_set():
                return
        if ended.wait(POLL_S) or _has_ended(cluster, metadata["namespace"], metadata["name"]):
            return


def _has_ended(cluster: Cluster, namespace: str, name: str) -> bool:
    with suppress(PlatformError):
        pod = cluster.get(*kinds.POD, namespace, name)
        return pod is None or (pod.get("status") or {}).get("phase") in ENDED
    return False

"""What the pods of a service wrote: pod by pod, or all of them as it comes, with the pods that start meanwhile.

`lines` is the target's `logs`. Every line is asked for with its time, so that a stream that was cut goes on where it
ended and a container that restarted is read from its beginning.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event as Signal
from threading import Thread
from time import monotonic
from typing import Any, Final

from pilotlight import names
from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.kubernetes import kinds, presence
from pilotlight.targets.kubernetes.causes import LOST_LOG, main_container
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.target import Key

Json = Any
Document = Mapping[str, Json]
REVISION_LABELS: Final = ("serving.knative.dev/revision", names.LABEL_REVISION)
LOOK_S: Final = 1.0  # how soon a pod that starts is seen
ENDED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Line:
    pod: str
    at: str  # fixed width, so that later times are greater texts
    text: str


def lines(
    cluster: Cluster, key: Key, *, follow: bool, previous: bool, replica: str, tail: int
) -> Iterator[str]:  # fmt: skip
    """As `tail` shows several files: a heading where the lines of another pod begin."""
    found = chosen(_pods(cluster, key), replica)
    if not found:
        presence.require(cluster, key)
    if follow and not previous:
        return headed(_followed(cluster, key, replica, tail))
    return headed(line for pod in found for line in _read(cluster, pod, previous=previous, tail=tail))


def headed(found: Iterator[Line]) -> Iterator[str]:
    last = ""
    for line in found:
        if last and line.pod != last:
            yield f"==> {line.pod} <=="
        last = line.pod
        yield line.text


def _means(replica: str, name: str) -> bool:
    """Verbs take a revision by the end of its name; one made from it, where something was set by hand, counts too."""
    return name == replica or name.endswith(f"-{replica}") or name.startswith(f"{replica}-")


def chosen(pods: list[Document], replica: str) -> list[Document]:
    """Newest last. `replica` is the name of a pod, or of a revision; raises NotFound for one that none of them has."""
    ordered = sorted(pods, key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
    found = [pod for pod in ordered if not replica or any(_means(replica, name) for name in _known_as(pod))]
    if ordered and not found:
        there = ", ".join(str(pod["metadata"]["name"]) for pod in ordered)
        raise NotFound(f"no pod or revision with pods is called {replica}; there are {there}")
    return found


def _known_as(pod: Document) -> list[str]:
    return [pod["metadata"]["name"], *(kinds.labels(pod).get(label, "") for label in REVISION_LABELS)]


def _pods(cluster: Cluster, key: Key) -> list[Document]:
    return list(cluster.list(*kinds.POD, key[0], kinds.selector(key[1])))


def _read(
    cluster: Cluster, pod: Document, *, previous: bool = False, follow: bool = False, tail: int = -1, after: str = ""
) -> Iterator[Line]:
    """What there is, later than `after`. A container that has not started yet has nothing, and that is no error."""
    metadata = pod["metadata"]
    query = {"container": main_container(pod), "timestamps": "true"}
    query |= {"previous": "true"} if previous else {}
    query |= {"follow": "true"} if follow else {}
    query |= {"sinceTime": after[:19] + "Z"} if after else {"tailLines": str(tail)} if tail >= 0 else {}
    path = cluster.known(*kinds.POD).path(metadata["namespace"], metadata["name"], "log")
    with suppress(PlatformError, OSError):
        for written in cluster.connection.lines(path, query):
            line = written.decode(errors="replace")
            at, _, text = line.partition(" ")
            if at > after and not line.startswith(LOST_LOG):  # which has no time, and would pass for the latest
                yield Line(metadata["name"], at, text)


def _followed(cluster: Cluster, key: Key, replica: str, tail: int) -> Iterator[Line]:
    """One thread reads one pod. Those that were there begin with their last lines, later ones with their first."""
    queue: SimpleQueue[Line] = SimpleQueue()
    ended = Signal()
    seen: set[str] = set()
    begin = tail
    try:
        while True:
            for pod in _present(cluster, key, replica):
                if _identity(pod) not in seen:  # a StatefulSet gives a successor the same name
                    seen.add(_identity(pod))
                    Thread(target=_tell, args=(cluster, pod, begin, queue, ended), daemon=True).start()
            begin = -1
            yield from _until(queue, monotonic() + LOOK_S)
    finally:
        ended.set()


def _identity(pod: Document) -> str:
    return str(pod["metadata"].get("uid") or pod["metadata"]["name"])


def _until(queue: SimpleQueue[Line], deadline: float) -> Iterator[Line]:
    with suppress(Empty):
        while (left := deadline - monotonic()) > 0:
            yield queue.get(timeout=left)


def _present(cluster: Cluster, key: Key, replica: str) -> list[Document]:
    try:
        return chosen(_pods(cluster, key), replica)
    except PlatformError:
        return []  # its pods may come later, and a cluster that is away for a moment comes back


def _tell(cluster: Cluster, pod: Document, tail: int, queue: SimpleQueue[Line], ended: Signal) -> None:
    metadata, after = pod["metadata"], ""
    while not ended.is_set():
        for line in _read(cluster, pod, follow=True, tail=tail, after=after):
            after = line.at
            queue.put(line)
            if ended.is_set():
                return
        if ended.wait(LOOK_S) or _gone(cluster, metadata["namespace"], metadata["name"]):
            return


def _gone(cluster: Cluster, namespace: str, name: str) -> bool:
    with suppress(PlatformError):
        found = cluster.get(*kinds.POD, namespace, name)
        return found is None or (found.get("status") or {}).get("phase") in ENDED
    return False

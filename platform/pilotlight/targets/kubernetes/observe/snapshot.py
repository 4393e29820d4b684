"""Snapshot of all objects of services, from which observe/status.py derives the status.

Events, logs and nodes, which only explain a failure, are read if something is not ready.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pilotlight.errors import PlatformError
from pilotlight.k8s import names
from pilotlight.targets.kubernetes import kinds, releases
from pilotlight.targets.kubernetes.client import Cluster
from pilotlight.targets.kubernetes.observe.diagnosis import (
    Evidence,
    explaining_container,
    is_ready,
    is_unschedulable,
    without_lost_log,
)
from pilotlight.targets.kubernetes.preflight import has_autoscaler
from pilotlight.targets.target import Key

Json = Any
Document = Mapping[str, Json]
READ: Final = (
    *kinds.WORKLOADS, kinds.SCALED_OBJECT, kinds.HPA, kinds.HTTP_ROUTE, ("v1", "Service"), kinds.KNATIVE_REVISION,
    kinds.KNATIVE_ROUTE, kinds.DOMAIN_MAPPING, kinds.POD, ("apps/v1", "ReplicaSet"), releases.API,
)  # fmt: skip
EXPLAINED: Final = 3  # pods per service whose logs are read
LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects of one service. `evidence` by pod; `events` of all its objects."""

    key: Key
    objects: tuple[Document, ...] = ()
    events: tuple[Document, ...] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict)

    def of(self, kind: tuple[str, str]) -> list[Document]:
        return [each for each in self.objects if (each["apiVersion"], each["kind"]) == kind]

    @property
    def workloads(self) -> list[Document]:
        workloads = [each for kind in kinds.WORKLOADS for each in self.of(kind)]
        return [each for each in workloads if not kinds.is_controlled(each)]

    @property
    def pods(self) -> list[Document]:
        return self.of(kinds.POD)

    def named(self, kind: tuple[str, str], name: str) -> Document | None:
        return next((each for each in self.of(kind) if each["metadata"]["name"] == name), None)

    @property
    def generation(self) -> int:
        """The newest release; 1 for objects without releases, such as Helm's; 0: no objects."""
        generations = [int(each["revision"]) for each in self.of(releases.API) if releases.LABEL in kinds.labels(each)]
        return max([*generations, 1 if self.workloads else 0])


def take(cluster: Cluster, namespace: str | None, name: str = "") -> dict[Key, Snapshot]:
    """Return snapshots by service: of one name, of a namespace, or of the cluster."""
    selector = kinds.selector(name) if name else names.LABEL_SERVICE
    by_service: dict[Key, list[Document]] = {}
    for each in cluster.list_kinds(READ, namespace, selector):
        service = kinds.labels(each)[names.LABEL_SERVICE]
        by_service.setdefault((each["metadata"]["namespace"], service), []).append(each)
    return {key: _with_evidence(cluster, Snapshot(key, tuple(objects))) for key, objects in sorted(by_service.items())}


def _with_evidence(cluster: Cluster, snapshot: Snapshot) -> Snapshot:
    waiting = [pod for pod in snapshot.pods if not is_ready(pod) and not is_ending(pod)]
    if not waiting and not any(_lacks_pods(each) for each in snapshot.workloads):
        return snapshot
    own = {str(each["metadata"]["name"]) for each in snapshot.objects}
    events = [each for each in cluster.list(*kinds.EVENT, snapshot.key[0]) if _involved(each) in own]
    nodes, others = _nodes(cluster, waiting)
    grown = bool(nodes) and has_autoscaler(cluster)
    evidence = {
        str(pod["metadata"]["name"]): Evidence(
            [each for each in events if _involved(each) == pod["metadata"]["name"]],
            last_lines(cluster, pod), nodes, others, grown,
        )
        for pod in sorted(waiting, key=created, reverse=True)[:EXPLAINED]
    }  # fmt: skip
    return replace(snapshot, events=tuple(events), evidence=evidence)


def _involved(event: Document) -> str | None:
    return (event.get("involvedObject") or {}).get("name")


def is_ending(pod: Document) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _lacks_pods(workload: Document) -> bool:
    """Whether fewer pods are ready than desired: their creation may have failed."""
    wanted = (workload.get("spec") or {}).get("replicas")
    return wanted is not None and int((workload.get("status") or {}).get("readyReplicas") or 0) < wanted


def created(document: Document) -> str:
    return str(document["metadata"].get("creationTimestamp") or "")


def _nodes(cluster: Cluster, waiting: Iterable[Document]) -> tuple[Sequence[Document], Sequence[Document]]:
    """Return nodes and all pods if a pod is unschedulable; nothing without permission."""
    if not any(map(is_unschedulable, waiting)):
        return (), ()
    try:
        return cluster.list("v1", "Node"), cluster.list(*kinds.POD)
    except PlatformError:
        return (), ()


def last_lines(cluster: Cluster, pod: Document) -> list[str]:
    """Return the last lines of the log that explains the pod, of the previous run if the container has restarted."""
    name, status = explaining_container(pod), pod.get("status") or {}
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    container: Document = next((each for each in statuses if each["name"] == name), {})
    state, restarts = container.get("state") or {}, int(container.get("restartCount") or 0)
    if not state.keys() & {"running", "terminated", "waiting"} or ("waiting" in state and not restarts):
        return []
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/log"
    query = {"container": name, "tailLines": str(LINES)}
    for previous in ["true", "false"] if restarts else ["false"]:
        try:
            lines = cluster.connection.text(path, query | {"previous": previous})
        except PlatformError:
            continue
        if readable := without_lost_log(lines):
            return readable
    return []

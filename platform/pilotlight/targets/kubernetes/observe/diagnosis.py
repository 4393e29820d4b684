"""Why a pod is not ready, from its state, its events, the end of its log and the resources of nodes. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pilotlight.contract import is_predictor_image
from pilotlight.k8s.quantities import mebibytes, quantity_or_zero
from pilotlight.targets.error_from_log import failed_event, last_error
from pilotlight.targets.kubernetes.kinds import condition

Json = Any
Document = Mapping[str, Json]
_SHORT: Final = re.compile(r"Insufficient ([\w./-]+?)[.,]?(?:\s|$)")
PUSH_IMAGE: Final = "build it, push it and name its registry by --image-registry: docs/how-to/kubernetes.md"
IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
CONFIG: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
SIDECARS: Final = ("queue-proxy", "istio-proxy", "linkerd-proxy")
CRASHES: Final = 2  # restarts from which on a crash is fatal
LONGEST: Final = 400
KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
KUEUE_GATE: Final = "kueue.x-k8s.io/admission"
LOST_LOG: Final = "unable to retrieve container logs for "  # sent by a node instead of lines, with status 200


def too_large(pod: Document, resource: str, nodes: Sequence[Document]) -> bool:
    """Whether the request exceeds every node's capacity; False without known nodes."""
    return bool(nodes) and all(
        requested(pod, resource) > quantity_or_zero(_allocatable(node, resource)) for node in nodes
    )


def describe_shortage(pod: Document, resource: str, nodes: Sequence[Document], pods: Iterable[Document]) -> str:
    """Return a phrase such as `requests 1 nvidia.com/gpu; no node has any`, with a pod that ends and holds some."""
    wanted = requested(pod, resource)
    asks = f"requests {_amount(resource, wanted)} {resource}"
    if not nodes:
        return asks
    free = {str(node["metadata"]["name"]): quantity_or_zero(_allocatable(node, resource)) for node in nodes}
    if not any(free.values()):
        return f"{asks}; no node has any"
    ending = ""
    for other in pods:
        where, held = str((other.get("spec") or {}).get("nodeName") or ""), requested(other, resource)
        if where in free and (other.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            free[where] -= held
            if held and other["metadata"].get("deletionTimestamp"):
                ending = f"; {other['metadata']['name']} still holds {_amount(resource, held)} and is terminating"
                if any(each["name"] == SIDECARS[0] for each in other["spec"]["containers"]):
                    ending += ": Knative drains it for 30 s"
    node, most = max(free.items(), key=lambda each: each[1])
    return f"{asks}; at most {_amount(resource, max(most, Decimal(0)))} is free, on {node}{ending}"


def requested(pod: Document, resource: str) -> Decimal:
    """Return the pod's request: the sum of its containers, or that of its largest init container."""
    spec = pod.get("spec") or {}
    running = sum((_container_request(each, resource) for each in spec.get("containers") or ()), Decimal(0))
    return max([running, *(_container_request(each, resource) for each in spec.get("initContainers") or ())])


def _container_request(container: Document, resource: str) -> Decimal:
    resources = container.get("resources") or {}
    return quantity_or_zero((resources.get("requests") or resources.get("limits") or {}).get(resource, "0"))


def _allocatable(node: Document, resource: str) -> str:
    return str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))


def _amount(resource: str, value: Decimal) -> str:
    if resource in ("memory", "ephemeral-storage"):
        return mebibytes(int(value))
    return f"{value.normalize():f}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    sentence: str
    fatal: bool = False  # it will not become ready by waiting


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts besides the pod. `logs`: last lines of its container, of the previous run if it has restarted."""

    events: Sequence[Document] = ()
    logs: Sequence[str] = ()
    nodes: Sequence[Document] = ()
    pods: Sequence[Document] = ()  # of all namespaces, as far as permitted
    has_autoscaler: bool = False  # the cluster may add nodes


def diagnose(pod: Document, evidence: Evidence) -> Diagnosis | None:
    """Return the diagnosis; None: no problem is known."""
    status = pod.get("status") or {}
    if is_ready(pod):
        return None
    if status.get("phase") == "Failed":
        reason = status.get("message") or status.get("reason") or "its status has no reason"
        return Diagnosis(f"the pod has failed: {reason}", True)
    for container in (*_unfinished_init(pod), *(status.get("containerStatuses") or ())):
        if (diagnosis := _container(pod, container, evidence)) is not None:
            return diagnosis
    return _unscheduled(pod, evidence) or _from_events(evidence)


def is_ready(pod: Document) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def is_unschedulable(pod: Document) -> bool:
    return condition(pod, "PodScheduled").get("status") == "False"


def without_lost_log(lines: Iterable[str]) -> list[str]:
    """Return log lines without a node's message that the log is lost."""
    return [line for line in lines if not line.startswith(LOST_LOG)]


def main_container(pod: Document) -> str:
    """Return the first container that is no sidecar."""
    names = [str(each["name"]) for each in pod["spec"].get("containers") or () if each["name"] not in SIDECARS]
    return names[0] if names else ""


def explaining_container(pod: Document) -> str:
    """Return the container whose log explains the pod: an init container that has failed, else the main one."""
    failed = (str(each["name"]) for each in _unfinished_init(pod) if _exit(each))
    return next(failed, "") or main_container(pod)


def _unfinished_init(pod: Document) -> list[Document]:
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return [each for each in statuses if _exit(each).get("exitCode") != 0]


def _exit(container: Document) -> Document:
    """Return how the container ended, now or before its restart."""
    ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
    return ended or {}


def _container(pod: Document, container: Document, evidence: Evidence) -> Diagnosis | None:
    name, state = str(container["name"]), container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), _short(str(waiting.get("message") or ""))
    if reason in IMAGE:
        image = str(container.get("image"))
        fix = f"; {PUSH_IMAGE}" if is_predictor_image(image) else ""
        return Diagnosis(f"image {image} cannot be pulled: {message or reason}{fix}", True)
    if reason in CONFIG:
        return Diagnosis(f"container {name} cannot be created: {message or reason}", True)
    last = _exit(container)
    if last and (last.get("exitCode") or int(container.get("restartCount") or 0)):
        return _ended(pod, container, last, reason, evidence)
    # Knative probes through its sidecar, so that the container itself is ready from the start.
    if "running" in state and name == main_container(pod):
        failure = failed_event(evidence.logs)
        return Diagnosis(failure, True) if failure else None
    return None


def _ended(pod: Document, container: Document, last: Document, waiting: str, evidence: Evidence) -> Diagnosis:
    name, restarts = str(container["name"]), int(container.get("restartCount") or 0)
    code = last.get("exitCode")
    if last.get("reason") == "OOMKilled":
        spec: Document = next((each for each in pod["spec"].get("containers") or () if each["name"] == name), {})
        limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
        return Diagnosis(f"container {name} ran out of memory" + (f": its limit is {limit}" if limit else ""), True)
    message = last_error(evidence.logs) if name == explaining_container(pod) else str(last.get("message") or "")
    again = f", {restarts} restarts" if restarts > 1 else ""
    sentence = f"container {name} exited with code {code}{again}" + (f": {message}" if message else "")
    return Diagnosis(sentence, restarts >= CRASHES or waiting == "CrashLoopBackOff")


def _unscheduled(pod: Document, evidence: Evidence) -> Diagnosis | None:
    if not is_unschedulable(pod):
        return None
    scheduled = condition(pod, "PodScheduled")
    message = str(scheduled.get("message") or scheduled.get("reason") or "")
    if waiting := _reservation(pod, message):
        return Diagnosis(waiting)
    resources = dict.fromkeys(_SHORT.findall(message))
    shortages = [describe_shortage(pod, name, evidence.nodes, evidence.pods) for name in resources]
    problem = f"the pod {'; '.join(shortages)}" if shortages else _short(message)
    impossible = not evidence.has_autoscaler and any(too_large(pod, name, evidence.nodes) for name in resources)
    return Diagnosis(f"it cannot be scheduled: {problem}", impossible)


def _reservation(pod: Document, message: str) -> str:
    """Return what a pod waits for before nodes are considered: a queue of Kueue, a scheduling gate, or its devices."""
    spec, labels = pod.get("spec") or {}, pod["metadata"].get("labels") or {}
    gates = [str(each["name"]) for each in spec.get("schedulingGates") or ()]
    if KUEUE_GATE in gates:
        return f"it is waiting in the queue {labels.get(KUEUE_QUEUE, '')!r} of Kueue; kubectl get workloads shows why"
    claims = ", ".join(str(each["name"]) for each in spec.get("resourceClaims") or ())
    if claims and "claim" in message:
        return f"it is waiting for its device claims {claims}: {_short(message)}"
    return f"it is waiting for the scheduling gates {', '.join(gates)} to be removed" if gates else ""


def _from_events(evidence: Evidence) -> Diagnosis | None:
    """Return the diagnosis by the newest event: failed mounts, sandboxes, scheduling, probes."""
    for event in sorted(evidence.events, key=event_time, reverse=True):
        reason, message = str(event.get("reason")), _short(str(event.get("message") or ""))
        if reason in ("FailedMount", "FailedAttachVolume"):
            return Diagnosis(f"a volume cannot be mounted: {message}")
        if reason in ("FailedCreatePodSandBox", "FailedScheduling", "Unhealthy"):
            return Diagnosis(message)
    return None


def pod_creation_failure(events: Iterable[Document]) -> Diagnosis | None:
    """Return why pods are not created: quota, Pod Security, an admission webhook."""
    for event in sorted(events, key=event_time, reverse=True):
        if event.get("reason") == "FailedCreate":
            return Diagnosis(pod_creation_message(str(event.get("message") or "")), True)
    return None


def pod_creation_message(message: str) -> str:
    """Return the message `pods "x-7f" is forbidden: exceeded quota: …` without the pod's name."""
    reason = message.partition("is forbidden: ")[2] or message.partition("denied the request: ")[2] or message
    return _short(f"its pods cannot be created: {reason}")


def event_time(event: Document) -> str:
    """Return the last time of an event, empty without one; the field depends on the API version of its writer."""
    times = (
        (event.get("series") or {}).get("lastObservedTime"),
        *(event.get(name) for name in ("lastTimestamp", "eventTime", "firstTimestamp")),
        (event.get("metadata") or {}).get("creationTimestamp"),
    )
    return str(next(filter(None, times), ""))


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"

"""Why a pod does not serve, in one sentence: from its state, its events and the end of its log. Pure.

`fatal` tells a start that will not work by waiting longer from one that may.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pilotlight.targets.kubernetes import room
from pilotlight.targets.log_lines import failed_event, last_error

Json = Any
Document = Mapping[str, Json]
IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
CONFIG: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
SIDECARS: Final = ("queue-proxy", "istio-proxy", "linkerd-proxy")
CRASHES: Final = 2  # one crash may be an accident
LONGEST: Final = 400
LOST_LOG: Final = "unable to retrieve container logs for "  # said by a node instead of lines, with status 200


@dataclass(frozen=True, slots=True)
class Cause:
    sentence: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known beside the pod. `logs` are the last lines of its container, of the run before if it ended."""

    events: Sequence[Document] = ()
    logs: Sequence[str] = ()
    nodes: Sequence[Document] = ()
    pods: Sequence[Document] = ()  # of all namespaces, as far as they may be seen
    grows: bool = False  # somebody adds nodes to the cluster when there is need


def cause(pod: Document, evidence: Evidence) -> Cause | None:
    """None: nothing is wrong with it, or not yet."""
    status = pod.get("status") or {}
    if is_ready(pod):
        return None
    if status.get("phase") == "Failed":
        return Cause(
            f"the pod has failed: {status.get('message') or status.get('reason') or 'no reason is told'}", True
        )
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if (found := _container(pod, container, evidence)) is not None:
            return found
    return _unscheduled(pod, evidence) or _from_events(evidence)


def is_ready(pod: Document) -> bool:
    return any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in (pod.get("status") or {}).get("conditions") or ()
    )


def kept(lines: Iterable[str]) -> list[str]:
    """Of a log, without what the node says where it has dropped it."""
    return [line for line in lines if not line.startswith(LOST_LOG)]


def main_container(pod: Document) -> str:
    """The one whose log says why: no sidecar."""
    found = [str(each["name"]) for each in pod["spec"].get("containers") or () if each["name"] not in SIDECARS]
    return found[0] if found else ""


def _container(pod: Document, container: Document, evidence: Evidence) -> Cause | None:
    name, state = str(container["name"]), container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    reason, message = str(waiting.get("reason") or ""), _short(str(waiting.get("message") or ""))
    if reason in IMAGE:
        return Cause(f"image {container.get('image')} cannot be had: {message or reason}", True)
    if reason in CONFIG:
        return Cause(f"container {name} cannot be made: {message or reason}", True)
    last = ended or (container.get("lastState") or {}).get("terminated") or {}
    if last and (last.get("exitCode") or int(container.get("restartCount") or 0)):
        return _ended(pod, container, last, reason, evidence)
    # Knative probes through its sidecar: the container itself counts as ready from its first moment.
    if "running" in state and name == main_container(pod):
        said = failed_event(evidence.logs)
        return Cause(said, True) if said else None
    return None


def _ended(pod: Document, container: Document, last: Document, waiting: str, evidence: Evidence) -> Cause:
    name, restarts = str(container["name"]), int(container.get("restartCount") or 0)
    code = last.get("exitCode")
    if last.get("reason") == "OOMKilled":
        limit = _limit(pod, name)
        return Cause(f"container {name} ran out of memory" + (f": its limit is {limit}" if limit else ""), True)
    said = last_error(evidence.logs) if name == main_container(pod) else str(last.get("message") or "")
    again = f", {restarts} restarts" if restarts > 1 else ""
    sentence = f"container {name} ended with exit code {code}{again}" + (f": {said}" if said else "")
    return Cause(sentence, restarts >= CRASHES or waiting == "CrashLoopBackOff")


def _limit(pod: Document, name: str) -> str:
    for each in pod["spec"].get("containers") or ():
        if each["name"] == name:
            return str(((each.get("resources") or {}).get("limits") or {}).get("memory") or "")
    return ""


def _unscheduled(pod: Document, evidence: Evidence) -> Cause | None:
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            message = str(each.get("message") or each.get("reason") or "")
            short = room.short_of(message)
            wanting = [room.told(pod, name, evidence.nodes, evidence.pods) for name in short]
            told = f"the pod {'; '.join(wanting)}" if wanting else _short(message)
            never = not evidence.grows and any(room.too_large(pod, name, evidence.nodes) for name in short)
            return Cause(f"no node can take it: {told}", never)
    return None


def _from_events(evidence: Evidence) -> Cause | None:
    """Volumes that cannot be mounted, sandboxes that cannot be made, probes that fail; the newest counts."""
    for event in sorted(evidence.events, key=when, reverse=True):
        reason, message = str(event.get("reason")), _short(str(event.get("message") or ""))
        if reason in ("FailedMount", "FailedAttachVolume"):
            return Cause(f"a volume cannot be mounted: {message}")
        if reason in ("FailedCreatePodSandBox", "FailedScheduling"):
            return Cause(message)
        if reason == "Unhealthy":
            return Cause(f"it does not answer its probe: {message}")
    return None


def refused(events: Iterable[Document]) -> Cause | None:
    """Pods that the cluster will not even make: quota, Pod Security, an admission webhook."""
    for event in sorted(events, key=when, reverse=True):
        if event.get("reason") == "FailedCreate":
            return Cause(pods_refused(str(event.get("message") or "")), True)
    return None


def pods_refused(message: str) -> str:
    """`pods "x-7f" is forbidden: exceeded quota: …` without the name of a pod that is never seen."""
    told = message.partition("is forbidden: ")[2] or message.partition("denied the request: ")[2] or message
    return _short(f"the cluster makes no pod of it: {told}")


def when(event: Document) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"

"""The revisions of a service as a person is told of them: one row each, from what the cluster shows. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight import names
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.causes import Cause, Evidence, cause, is_ready, pods_refused, refused
from pilotlight.targets.kubernetes.overlay import is_knative, revision_of
from pilotlight.targets.kubernetes.snapshot import Snapshot, is_ending
from pilotlight.targets.target import ModelState, RevisionStatus

Json = Any
Document = Mapping[str, Json]
ENTRIES: Final = ("router", "transformer", "engine", "predictor")  # as requests pass them
KNATIVE_REVISION_LABEL: Final = "serving.knative.dev/revision"
KNATIVE_SERVICE_LABEL: Final = "serving.knative.dev/service"


def role_of(workload: Document) -> str:
    return kinds.labels(workload).get("app.kubernetes.io/component", "")


def entries(workloads: Sequence[Document]) -> list[Document]:
    """Those that receive the service's requests: one, or the two sides of a canary."""
    for role in ENTRIES:
        found = [each for each in workloads if role_of(each) == role]
        if found:
            return found
    return list(workloads)


def rows(snapshot: Snapshot) -> list[RevisionStatus]:
    """Newest first within each workload, entries first."""
    first = entries(snapshot.workloads)
    ordered = [*first, *(each for each in snapshot.workloads if each not in first)]
    return [row for workload in ordered for row in _of(snapshot, workload)]


def _of(snapshot: Snapshot, workload: Document) -> Iterator[RevisionStatus]:
    yield from _knative(snapshot, workload) if is_knative(workload) else _raw(snapshot, workload)


def latest_of(workload: Document) -> str:
    """The revision that the workload's object describes now."""
    created = (workload.get("status") or {}).get("latestCreatedRevisionName")
    return revision_of(workload) or str(created or "")


def _knative(snapshot: Snapshot, workload: Document) -> Iterator[RevisionStatus]:
    name, latest = str(workload["metadata"]["name"]), latest_of(workload)
    owned = [
        each
        for each in snapshot.of(kinds.KNATIVE_REVISION)
        if kinds.labels(each).get("serving.knative.dev/service") == name
    ]
    newest_first = sorted(owned, key=lambda each: str(each["metadata"].get("creationTimestamp")), reverse=True)
    newest_first.sort(key=lambda each: each["metadata"]["name"] != latest)
    shares = (workload.get("status") or {}).get("traffic") or ()
    for revision in newest_first:
        mine = [each for each in shares if each.get("revisionName") == revision["metadata"]["name"]]
        row = _knative_row(snapshot, workload, revision, mine)
        if row.name == latest or mine or row.ready or row.starting:
            yield row
    if latest and latest not in {each["metadata"]["name"] for each in newest_first}:
        reason = condition_text(workload, "ConfigurationsReady") or condition_text(workload, "Ready")
        yield RevisionStatus(latest, name, role_of(workload), 0, reason=reason)


def _knative_row(
    snapshot: Snapshot, workload: Document, revision: Document, shares: Sequence[Mapping[str, Json]]
) -> RevisionStatus:
    name, status = str(revision["metadata"]["name"]), revision.get("status") or {}
    pods = [pod for pod in snapshot.pods if kinds.labels(pod).get(KNATIVE_REVISION_LABEL) == name]
    ready = sum(is_ready(pod) for pod in pods if not is_ending(pod))
    starting = sum(not is_ready(pod) for pod in pods if not is_ending(pod))
    state, reason = _knative_state(revision, ready, _cause(snapshot, pods))
    tags = tuple(str(each["tag"]) for each in shares if each.get("tag"))
    percent = sum(int(each.get("percent") or 0) for each in shares)
    return RevisionStatus(
        name, str(workload["metadata"]["name"]), role_of(workload), percent, tags, ready, starting,
        max(int(status.get("desiredReplicas") or 0), ready), state, reason,
        url=next((str(each["url"]) for each in shares if each.get("url")), ""),
    )  # fmt: skip


def _knative_state(revision: Document, ready: int, why: Cause | None) -> tuple[ModelState, str]:
    told, said = condition(revision, "Ready"), condition_text(revision, "Ready")
    if told == "True":
        if ready:
            return "Loaded", ""
        return ("Standby", "") if condition(revision, "Active") == "False" else ("Loading", why.sentence if why else "")
    # Without room Knative says False too, and takes it back once there is some.
    hopeless = told == "False" and _condition_reason(revision, "Ready") != "Unschedulable"
    if hopeless or (why is not None and why.fatal):
        return "FailedToLoad", why.sentence if why else said
    return "Pending", why.sentence if why else said


def _raw(snapshot: Snapshot, workload: Document) -> Iterator[RevisionStatus]:
    """Pods of an earlier revision have a row while they are there: a rolling update has both for a while."""
    name, latest = str(workload["metadata"]["name"]), latest_of(workload)
    pods = [pod for pod in snapshot.pods if kinds.labels(pod).get(names.LABEL_WORKLOAD) == name and not is_ending(pod)]
    by_revision: dict[str, list[Document]] = {latest: []}
    for pod in pods:
        by_revision.setdefault(kinds.labels(pod).get(names.LABEL_REVISION, latest), []).append(pod)
    ready = {revision: sum(map(is_ready, mine)) for revision, mine in by_revision.items()}
    share = weight(snapshot, name)
    for revision, mine in by_revision.items():
        part = ready[revision] / sum(ready.values()) if any(ready.values()) else float(revision == latest)
        yield _raw_row(snapshot, workload, revision, mine, round(share * part))


def _raw_row(
    snapshot: Snapshot, workload: Document, revision: str, pods: Sequence[Document], percent: int
) -> RevisionStatus:
    name, wanted = str(workload["metadata"]["name"]), int(workload["spec"].get("replicas") or 0)
    newest, ready = revision == latest_of(workload), sum(map(is_ready, pods))
    why = _cause(snapshot, pods) or (_workload_cause(snapshot, workload) if newest else None)
    late = newest and _condition_reason(workload, "Progressing") == "ProgressDeadlineExceeded"
    waiting: ModelState = "Loading" if pods and why is None else "Pending"  # what is in its way has not begun either
    state: ModelState = "Loaded" if ready else "Standby" if not wanted and newest else waiting
    if state not in ("Loaded", "Standby") and ((why is not None and why.fatal) or late):
        state = "FailedToLoad"
    reason = why.sentence if why else condition_text(workload, "Progressing") if late else ""
    return RevisionStatus(
        revision, name, role_of(workload), percent, (), ready, len(pods) - ready,
        wanted if newest else 0, state, reason, decision=_decision(snapshot, name) if newest else "",
    )  # fmt: skip


def weight(snapshot: Snapshot, workload: str) -> int:
    """Its share of the requests, as the route or our gateway is told."""
    for service in snapshot.of(("v1", "Service")):
        text = (service["metadata"].get("annotations") or {}).get(names.ANNOTATION_SHARES, "")
        found = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        if found.get(workload, "").isdigit():
            return int(found[workload])
    for route in snapshot.of(kinds.HTTP_ROUTE):
        for rule in route["spec"].get("rules") or ():
            for reference in rule.get("backendRefs") or ():
                if reference.get("name") == workload:
                    return int(reference.get("weight", 1)) if len(rule["backendRefs"]) > 1 else 100
    return 100


def _cause(snapshot: Snapshot, pods: Sequence[Document]) -> Cause | None:
    """Of the pods that are not ready; one that will not become so is told before one that may."""
    waiting = [pod for pod in pods if not is_ready(pod) and not is_ending(pod)]
    found = [
        known
        for pod in waiting
        if (known := cause(pod, snapshot.evidence.get(pod["metadata"]["name"], Evidence()))) is not None
    ]
    return next((each for each in found if each.fatal), found[0] if found else None)


def _workload_cause(snapshot: Snapshot, workload: Document) -> Cause | None:
    """Pods that are never made: the Deployment says so, or its events."""
    if condition(workload, "ReplicaFailure") == "True":
        return Cause(pods_refused(_condition_message(workload, "ReplicaFailure")), True)
    name = str(workload["metadata"]["name"])
    mine = [
        each for each in snapshot.events if str((each.get("involvedObject") or {}).get("name", "")).startswith(name)
    ]
    ready = int((workload.get("status") or {}).get("readyReplicas") or 0)
    return refused(mine) if ready < int(workload["spec"].get("replicas") or 0) else None


def _decision(snapshot: Snapshot, workload: str) -> str:
    """What the autoscaler decided last, in its own words."""
    for scaler in snapshot.of(kinds.HPA):
        if (scaler["spec"].get("scaleTargetRef") or {}).get("name") == workload:
            status = scaler.get("status") or {}
            if _condition_reason(scaler, "ScalingActive") == "ScalingDisabled":
                return ""  # at zero KEDA decides, and the HPA rests
            if condition(scaler, "ScalingActive") == "False":
                return f"none, since its metrics cannot be read: {_condition_message(scaler, 'ScalingActive')}"
            said = _condition_message(scaler, "ScalingLimited") or _condition_message(scaler, "AbleToScale")
            return f"{status.get('desiredReplicas', 0)} replicas: {said}" if said else ""
    return ""


def condition(document: Document, kind: str) -> str:
    return str(_condition(document, kind).get("status") or "")


def _condition(document: Document, kind: str) -> Mapping[str, Json]:
    found = (document.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each.get("type") == kind), {})


def _condition_reason(document: Document, kind: str) -> str:
    return str(_condition(document, kind).get("reason") or "")


def _condition_message(document: Document, kind: str) -> str:
    return str(_condition(document, kind).get("message") or "")


def condition_text(document: Document, kind: str) -> str:
    return _condition_message(document, kind) or _condition_reason(document, kind)

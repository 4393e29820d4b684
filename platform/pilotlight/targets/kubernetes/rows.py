"""Status rows of a service's revisions, from a snapshot. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight import names
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.causes import (
    Diagnosis,
    Evidence,
    diagnose,
    is_ready,
    pod_creation_failure,
    pod_creation_message,
)
from pilotlight.targets.kubernetes.overlay import is_knative, revision_of
from pilotlight.targets.kubernetes.snapshot import Snapshot, is_ending
from pilotlight.targets.target import ModelState, RevisionStatus

Json = Any
Document = Mapping[str, Json]
ENTRIES: Final = ("router", "transformer", "engine", "predictor")  # in the order of a request
KNATIVE_REVISION_LABEL: Final = "serving.knative.dev/revision"
KNATIVE_SERVICE_LABEL: Final = "serving.knative.dev/service"


def role_of(workload: Document) -> str:
    return kinds.labels(workload).get("app.kubernetes.io/component", "")


def entries(workloads: Sequence[Document]) -> list[Document]:
    """Return the workloads that receive requests: one, or the two variants of a canary."""
    for role in ENTRIES:
        matching = [each for each in workloads if role_of(each) == role]
        if matching:
            return matching
    return list(workloads)


def revision_rows(snapshot: Snapshot) -> list[RevisionStatus]:
    """Return a row per revision: entry workloads first, newest revisions first."""
    first = entries(snapshot.workloads)
    ordered = [*first, *(each for each in snapshot.workloads if each not in first)]
    return [row for each in ordered for row in (_knative if is_knative(each) else _raw)(snapshot, each)]


def latest_of(workload: Document) -> str:
    """Return the revision that the workload describes."""
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
    state, reason = _knative_state(revision, ready, _diagnosis(snapshot, pods))
    tags = tuple(str(each["tag"]) for each in shares if each.get("tag"))
    percent = sum(int(each.get("percent") or 0) for each in shares)
    return RevisionStatus(
        name, str(workload["metadata"]["name"]), role_of(workload), percent, tags, ready, starting,
        max(int(status.get("desiredReplicas") or 0), ready), state, reason,
        url=next((str(each["url"]) for each in shares if each.get("url")), ""),
    )  # fmt: skip


def _knative_state(revision: Document, ready: int, diagnosis: Diagnosis | None) -> tuple[ModelState, str]:
    status, message = condition(revision, "Ready"), condition_text(revision, "Ready")
    if status == "True":
        if ready:
            return "Loaded", ""
        return (
            ("Standby", "")
            if condition(revision, "Active") == "False"
            else ("Loading", diagnosis.sentence if diagnosis else "")
        )
    # Knative reports False also for an unschedulable pod, and recovers once there is capacity.
    failed = status == "False" and _condition_reason(revision, "Ready") != "Unschedulable"
    if failed or (diagnosis is not None and diagnosis.fatal):
        return "FailedToLoad", diagnosis.sentence if diagnosis else message
    return "Pending", diagnosis.sentence if diagnosis else message


def _raw(snapshot: Snapshot, workload: Document) -> Iterator[RevisionStatus]:
    """Yield the rows of a raw workload: the latest revision, and earlier ones while they have pods."""
    name, latest = str(workload["metadata"]["name"]), latest_of(workload)
    pods = [pod for pod in snapshot.pods if kinds.labels(pod).get(names.LABEL_WORKLOAD) == name and not is_ending(pod)]
    by_revision: dict[str, list[Document]] = {latest: []}
    for pod in pods:
        by_revision.setdefault(kinds.labels(pod).get(names.LABEL_REVISION, latest), []).append(pod)
    ready = {revision: sum(map(is_ready, mine)) for revision, mine in by_revision.items()}
    share = traffic_percent(snapshot, name)
    for revision, mine in by_revision.items():
        part = ready[revision] / sum(ready.values()) if any(ready.values()) else float(revision == latest)
        yield _raw_row(snapshot, workload, revision, mine, round(share * part))


def _raw_row(
    snapshot: Snapshot, workload: Document, revision: str, pods: Sequence[Document], percent: int
) -> RevisionStatus:
    name, wanted = str(workload["metadata"]["name"]), int(workload["spec"].get("replicas") or 0)
    newest, ready = revision == latest_of(workload), sum(map(is_ready, pods))
    diagnosis = _diagnosis(snapshot, pods) or (_workload_diagnosis(snapshot, workload) if newest else None)
    overdue = newest and _condition_reason(workload, "Progressing") == "ProgressDeadlineExceeded"
    waiting: ModelState = (
        "Loading" if pods and diagnosis is None else "Pending"
    )  # with a diagnosis, loading has not begun
    state: ModelState = "Loaded" if ready else "Standby" if not wanted and newest else waiting
    if state not in ("Loaded", "Standby") and ((diagnosis is not None and diagnosis.fatal) or overdue):
        state = "FailedToLoad"
    reason = diagnosis.sentence if diagnosis else condition_text(workload, "Progressing") if overdue else ""
    return RevisionStatus(
        revision, name, role_of(workload), percent, (), ready, len(pods) - ready,
        wanted if newest else 0, state, reason, decision=_decision(snapshot, name) if newest else "",
    )  # fmt: skip


def traffic_percent(snapshot: Snapshot, workload: str) -> int:
    """Return the workload's traffic share, by the annotation for our gateway or the HTTPRoute."""
    for service in snapshot.of(("v1", "Service")):
        text = (service["metadata"].get("annotations") or {}).get(names.ANNOTATION_SHARES, "")
        shares = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        if shares.get(workload, "").isdigit():
            return int(shares[workload])
    for route in snapshot.of(kinds.HTTP_ROUTE):
        for rule in route["spec"].get("rules") or ():
            for reference in rule.get("backendRefs") or ():
                if reference.get("name") == workload:
                    return int(reference.get("weight", 1)) if len(rule["backendRefs"]) > 1 else 100
    return 100


def _diagnosis(snapshot: Snapshot, pods: Sequence[Document]) -> Diagnosis | None:
    """Return the diagnosis of the pods that are not ready, a fatal one first."""
    waiting = [pod for pod in pods if not is_ready(pod) and not is_ending(pod)]
    diagnoses = [
        known
        for pod in waiting
        if (known := diagnose(pod, snapshot.evidence.get(pod["metadata"]["name"], Evidence()))) is not None
    ]
    return next((each for each in diagnoses if each.fatal), diagnoses[0] if diagnoses else None)


def _workload_diagnosis(snapshot: Snapshot, workload: Document) -> Diagnosis | None:
    """Return why pods are not created, by the Deployment's condition or its events."""
    if condition(workload, "ReplicaFailure") == "True":
        return Diagnosis(pod_creation_message(_condition_message(workload, "ReplicaFailure")), True)
    name = str(workload["metadata"]["name"])
    mine = [
        each for each in snapshot.events if str((each.get("involvedObject") or {}).get("name", "")).startswith(name)
    ]
    ready = int((workload.get("status") or {}).get("readyReplicas") or 0)
    return pod_creation_failure(mine) if ready < int(workload["spec"].get("replicas") or 0) else None


def _decision(snapshot: Snapshot, workload: str) -> str:
    """Return the last decision of the HPA, with its message."""
    for scaler in snapshot.of(kinds.HPA):
        if (scaler["spec"].get("scaleTargetRef") or {}).get("name") == workload:
            status = scaler.get("status") or {}
            if _condition_reason(scaler, "ScalingActive") == "ScalingDisabled":
                return ""  # at zero the HPA is disabled by KEDA
            if condition(scaler, "ScalingActive") == "False":
                return f"none, since its metrics cannot be read: {_condition_message(scaler, 'ScalingActive')}"
            message = _condition_message(scaler, "ScalingLimited") or _condition_message(scaler, "AbleToScale")
            return f"{status.get('desiredReplicas', 0)} replicas: {message}" if message else ""
    return ""


def condition(document: Document, kind: str) -> str:
    return str(_condition(document, kind).get("status") or "")


def _condition(document: Document, kind: str) -> Mapping[str, Json]:
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def _condition_reason(document: Document, kind: str) -> str:
    return str(_condition(document, kind).get("reason") or "")


def _condition_message(document: Document, kind: str) -> str:
    return str(_condition(document, kind).get("message") or "")


def condition_text(document: Document, kind: str) -> str:
    return _condition_message(document, kind) or _condition_reason(document, kind)

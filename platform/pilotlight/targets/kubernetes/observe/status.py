"""Status of a service on a cluster, from a snapshot: rows of revisions, phase, conditions, addresses. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import DecodeError, json

from pilotlight.contract import ENV_MODEL_PATH
from pilotlight.k8s import names
from pilotlight.k8s.model_pins import decode
from pilotlight.targets.inferenceservice_status import PROVEN
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.observe.diagnosis import (
    PUSH_IMAGE,
    Diagnosis,
    Evidence,
    diagnose,
    is_ready,
    pod_creation_failure,
    pod_creation_message,
)
from pilotlight.targets.kubernetes.observe.snapshot import Snapshot, created, is_ending
from pilotlight.targets.kubernetes.scale_traffic_overrides import is_knative, revision_of
from pilotlight.targets.target import Condition, ModelState, Phase, ReplicaStatus, RevisionStatus, ServiceStatus
from pilotlight.wire.messages import redact_uri

Json = Any
Document = Mapping[str, Json]
KNATIVE_REVISION_LABEL: Final = "serving.knative.dev/revision"
KNATIVE_SERVICE_LABEL: Final = "serving.knative.dev/service"
MODES: Final = {
    "Service": "serverless", "Deployment": "raw", "StatefulSet": "stateful", "LeaderWorkerSet": "multi-node",
    "RayCluster": "multi-node",
}  # fmt: skip


def role_of(workload: Document) -> str:
    return kinds.labels(workload).get("app.kubernetes.io/component", "")


def entries(workloads: Sequence[Document]) -> list[Document]:
    """Return the workloads that receive requests: one, or the two variants of a canary."""
    for role in names.ENTRY_ROLES:
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
    created = (workload.get("status") or {}).get("latestCreatedRevisionName")
    return revision_of(workload) or str(created or "")


def _knative(snapshot: Snapshot, workload: Document) -> Iterator[RevisionStatus]:
    name, latest = str(workload["metadata"]["name"]), latest_of(workload)
    revisions = snapshot.of(kinds.KNATIVE_REVISION)
    owned = [each for each in revisions if kinds.labels(each).get(KNATIVE_SERVICE_LABEL) == name]
    newest_first = sorted(owned, key=created, reverse=True)
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
        url=next((str(each["url"]) for each in shares if each.get("url")), ""), **_model(revision),
        replicas=_replicas(pods),
    )  # fmt: skip


def _knative_state(revision: Document, ready: int, diagnosis: Diagnosis | None) -> tuple[ModelState, str]:
    status, message = condition(revision, "Ready"), condition_text(revision, "Ready")
    if status == "True":
        if ready:
            return "Loaded", ""
        if condition(revision, "Active") == "False":
            return "Standby", ""
        # Knative keeps Ready for good, also when a later pod cannot start.
        state: ModelState = "FailedToLoad" if diagnosis is not None and diagnosis.fatal else "Loading"
        return state, diagnosis.sentence if diagnosis else ""
    # Knative looks tags up itself, before there is a pod.
    if _condition_reason(revision, "Ready") == "ContainerMissing" and "pilotlight/predictor" in message:
        message = f"{message}; {PUSH_IMAGE}"
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
    ready = {revision: sum(map(is_ready, filter(kinds.is_leader, mine))) for revision, mine in by_revision.items()}
    share = traffic_percent(snapshot, name)
    for revision, mine in by_revision.items():
        part = ready[revision] / sum(ready.values()) if any(ready.values()) else float(revision == latest)
        yield _raw_row(snapshot, workload, revision, mine, round(share * part))


def _raw_row(
    snapshot: Snapshot, workload: Document, revision: str, pods: Sequence[Document], percent: int
) -> RevisionStatus:
    name, wanted = str(workload["metadata"]["name"]), int(workload["spec"].get("replicas") or 0)
    leaders = [pod for pod in pods if kinds.is_leader(pod)]
    newest, ready = revision == latest_of(workload), sum(map(is_ready, leaders))
    diagnosis = _diagnosis(snapshot, pods) or (_workload_diagnosis(snapshot, workload) if newest else None)
    overdue = newest and _condition_reason(workload, "Progressing") == "ProgressDeadlineExceeded"
    # With a diagnosis, loading has not begun.
    waiting: ModelState = "Loading" if pods and diagnosis is None else "Pending"
    state: ModelState = "Loaded" if ready else "Standby" if not wanted and newest else waiting
    if state not in ("Loaded", "Standby") and ((diagnosis is not None and diagnosis.fatal) or overdue):
        state = "FailedToLoad"
    reason = diagnosis.sentence if diagnosis else condition_text(workload, "Progressing") if overdue else ""
    return RevisionStatus(
        revision, name, role_of(workload), percent, (), ready, len(leaders) - ready,
        wanted if newest else 0, state, reason, decision=_decision(snapshot, name) if newest else "",
        replicas=_replicas(pods), **_model(pods[0] if pods else workload["spec"].get("template") or {}),
    )  # fmt: skip


def _replicas(pods: Iterable[Document]) -> tuple[ReplicaStatus, ...]:
    return tuple(
        ReplicaStatus(
            str(pod["metadata"]["name"]),
            "ready" if is_ready(pod) else str((pod.get("status") or {}).get("phase") or "Pending").lower(),
            str(pod["spec"].get("nodeName") or ""),
        )
        for pod in pods
        if not is_ending(pod)
    )


def _model(pod: Document) -> dict[str, Any]:
    """Return digest and size of the models that a pod or template is pinned to, and those that it is not pinned to."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    pins = decode(str(annotations.get(names.ANNOTATION_PINS, "")))
    return {
        "model_digest": " ".join(pin.digest for pin in pins.values()),
        "model_bytes": sum(pin.size for pin in pins.values()),
        "unpinned": tuple(redact_uri(uri) for uri in _fetched_uris(pod.get("spec") or {}) if uri not in pins),
    }


def _fetched_uris(spec: Document) -> Iterator[str]:
    """Yield the model URIs that a pod fetches: by our predictor, or before its containers start."""
    variables = [each for container in spec.get("containers") or () for each in container.get("env") or ()]
    paths = (str(each.get("value")) for each in variables if each["name"] == ENV_MODEL_PATH)
    yield from (path for path in paths if "://" in path)
    commands: Iterable[Sequence[str]] = (each.get("command") or () for each in spec.get("initContainers") or ())
    yield from (command[-2] for command in commands if "fetch" in command)


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
                return f"none, its metrics cannot be read: {_condition_message(scaler, 'ScalingActive')}"
            message = _condition_message(scaler, "ScalingLimited") or _condition_message(scaler, "AbleToScale")
            count = status.get("desiredReplicas", 0)
            return f"{count} replica{'' if count == 1 else 's'}: {message}" if message else ""
    return ""


def condition(document: Document, kind: str) -> str:
    return str(kinds.condition(document, kind).get("status") or "")


def _condition_reason(document: Document, kind: str) -> str:
    return str(kinds.condition(document, kind).get("reason") or "")


def _condition_message(document: Document, kind: str) -> str:
    return str(kinds.condition(document, kind).get("message") or "")


def condition_text(document: Document, kind: str) -> str:
    return _condition_message(document, kind) or _condition_reason(document, kind)


def status_of(snapshot: Snapshot, warnings: Sequence[str] = ()) -> ServiceStatus:
    revisions = revision_rows(snapshot)
    phase, message = phase_of(snapshot, revisions)
    urls = addresses(snapshot)
    knative = {each["metadata"]["name"]: each.get("status") or {} for each in snapshot.workloads if is_knative(each)}
    return ServiceStatus(
        *snapshot.key, snapshot.generation, phase, urls.get("http", ""),
        mode="/".join(sorted({MODES[each["kind"]] for each in snapshot.workloads})), urls=urls,
        component_urls={name: str(url) for name, status in knative.items() if (url := status.get("url"))},
        conditions=tuple(_conditions(snapshot, phase, message, revisions)), revisions=tuple(revisions), message=message,
        overrides=read_overrides(snapshot.workloads), warnings=(*warnings, *_warnings(snapshot)),
        target="kubernetes",
    )  # fmt: skip


def read_overrides(workloads: Sequence[Document]) -> dict[str, Mapping[str, Json]]:
    """Return the overrides, from the annotations of workloads."""
    revisions: dict[str, Mapping[str, Json]] = {}
    for each in workloads:
        text = (each["metadata"].get("annotations") or {}).get(names.ANNOTATION_OVERRIDES)
        with suppress(DecodeError):  # invalid edits are reported by the next deploy
            revisions |= {str(each["metadata"]["name"]): json.decode(text, type=dict[str, Json])} if text else {}
    return revisions


def phase_of(snapshot: Snapshot, revisions: Sequence[RevisionStatus]) -> tuple[Phase, str]:
    """Return the phase, and a sentence if it is not Ready."""
    workloads = snapshot.workloads
    if not workloads or any("deletionTimestamp" in each["metadata"] for each in workloads):
        ending = sum(map(is_ending, snapshot.pods))
        return "Stopping", f"{ending} pods are draining" if ending else "its objects are being deleted"
    newest = {latest_of(each) for each in workloads}
    latest = [row for row in revisions if row.name in newest]
    failed = next((row for row in latest if row.model_state == "FailedToLoad"), None)
    if failed is not None:
        problem = f"{failed.name}: {failed.reason or 'its model cannot be loaded'}"
        others = [row.name for row in revisions if row.percent and row is not failed and row.model_state in PROVEN]
        return ("Degraded", f"{problem}; {', '.join(others)} keeps serving") if others else ("Failed", problem)
    starting = next((row for row in latest if row.model_state not in PROVEN), None)
    if starting is not None:
        return "Progressing", f"{starting.name} is starting" + (f": {starting.reason}" if starting.reason else "")
    behind = next((text for each in workloads if (text := _unreconciled(snapshot, each))), "")
    if behind:
        return "Progressing", behind
    serving = [row for row in revisions if row.percent]
    if any(row.ready for row in serving):
        short = next((row for row in serving if row.ready < row.desired and row.reason), None)
        return ("Degraded", f"{short.name}: {short.reason}") if short else ("Ready", "")
    return ("Progressing", "a replica is starting") if any(row.desired for row in serving) else ("Standby", "")


def _unreconciled(snapshot: Snapshot, workload: Document) -> str:
    """Return what a controller has not reconciled yet; empty: up to date."""
    name, status = workload["metadata"]["name"], workload.get("status") or {}
    if int(status.get("observedGeneration") or 0) < int(workload["metadata"].get("generation") or 0):
        return f"{name} has not been reconciled yet"
    if is_knative(workload):
        if condition(workload, "Ready") == "True":
            return ""
        message = condition_text(workload, "Ready")
        # A message about the revision, which is ready already, is outdated.
        outdated = latest_of(workload) in message
        return message if message and not outdated else f"traffic is moving to {latest_of(workload)}"
    wanted, updated = int(workload["spec"].get("replicas") or 0), status.get("updatedReplicas")
    if workload["kind"] in ("Deployment", "StatefulSet") and int(updated or 0) < wanted:
        return f"{name}: {updated or 0} of {wanted} pods are of the new revision"
    if workload["kind"] == "Deployment" and int(status.get("replicas") or 0) > int(updated or 0):
        return f"{name}: {int(status['replicas']) - int(updated or 0)} pods of the old revision are draining"
    return _route_problem(snapshot)


def _route_problem(snapshot: Snapshot) -> str:
    """Return why the route of a raw service is not accepted; empty: it is."""
    for route in snapshot.of(kinds.HTTP_ROUTE):
        parents = (route.get("status") or {}).get("parents") or ()
        for parent in parents:
            for each in parent.get("conditions") or ():
                if each.get("type") in ("Accepted", "ResolvedRefs") and each.get("status") == "False":
                    return f"its route is not accepted: {each.get('message') or each.get('reason')}"
    return ""


def addresses(snapshot: Snapshot) -> dict[str, str]:
    """Return the URLs: `http` for clients, `cluster` for use inside, `load_balancer` where a Service is one."""
    namespace, name = snapshot.key
    for workload in entries(snapshot.workloads)[:1]:
        if is_knative(workload):
            route = snapshot.named(kinds.KNATIVE_ROUTE, names.entry_service(name)) or {}
            status = (route if condition(route, "Ready") == "True" else workload).get("status") or {}
            inside = str((status.get("address") or {}).get("url") or "")
            mapped = [each for each in snapshot.of(kinds.DOMAIN_MAPPING) if condition(each, "Ready") == "True"]
            outside = next((str(each["status"].get("url") or "") for each in mapped), "") or status.get("url")
            urls = {"http": str(outside or inside), "cluster": inside}
            return {key: url for key, url in urls.items() if url}
    inside = f"http://{names.entry_service(name)}.{namespace}.svc.cluster.local"
    hosts = [host for route in snapshot.of(kinds.HTTP_ROUTE) for host in route["spec"].get("hostnames") or ()]
    service = snapshot.named(("v1", "Service"), names.entry_service(name))
    port = next((each["port"] for each in ((service or {}).get("spec") or {}).get("ports") or ()), 80)
    inside += "" if port == 80 else f":{port}"
    urls = {"http": f"http://{hosts[0]}" if hosts else inside, "cluster": inside}
    for each in snapshot.of(("v1", "Service")):
        for ingress in ((each.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ():
            host, number = str(ingress.get("ip") or ingress.get("hostname")), each["spec"]["ports"][0]["port"]
            urls["load_balancer"] = f"http://[{host}]:{number}" if ":" in host else f"http://{host}:{number}"
    return urls


def _conditions(
    snapshot: Snapshot, phase: Phase, message: str, revisions: Sequence[RevisionStatus]
) -> Iterator[Condition]:
    """Yield the conditions: Ready, IngressReady, and one per component."""
    good = phase in ("Ready", "Standby", "Degraded")
    yield Condition("Ready", "True" if good else "False" if phase == "Failed" else "Unknown", phase, message)
    routed = any(row.percent for row in revisions) and not _route_problem(snapshot)
    yield Condition("IngressReady", "True" if routed else "Unknown", "", _route_problem(snapshot))
    for role in dict.fromkeys(map(role_of, snapshot.workloads)):
        mine = [row for row in revisions if row.role == role]
        proven = any(row.model_state in PROVEN for row in mine)
        reason = "" if proven else next((row.reason for row in mine if row.reason), "")
        yield Condition(f"{role.capitalize()}Ready", "True" if proven else "False", "", reason)


def _warnings(snapshot: Snapshot) -> Iterator[str]:
    """Yield warnings about autoscalers: fallback, paused, not ready."""
    for scaled in snapshot.of(kinds.SCALED_OBJECT):
        name = scaled["metadata"]["name"]
        if condition(scaled, "Fallback") == "True":
            servers = [each["metadata"].get("serverAddress") for each in scaled["spec"]["triggers"]]
            hint = f"; does {servers[-1]} scrape its pods?" if servers and servers[-1] else ""
            yield f"{name}: KEDA cannot read its metrics and holds the replicas{hint}"
        if condition(scaled, "Paused") == "True":
            yield f"{name}: scaling is paused by an annotation"
        if condition(scaled, "Ready") == "False":
            yield f"{name}: KEDA does not scale it: {condition_text(scaled, 'Ready')}"

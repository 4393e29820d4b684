"""Status of a service on a cluster: phase, conditions, addresses. Pure; rows.py has the revisions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import DecodeError, json

from pilotlight import names
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.overlay import is_knative
from pilotlight.targets.kubernetes.rows import condition, condition_text, entries, latest_of, revision_rows, role_of
from pilotlight.targets.kubernetes.snapshot import Snapshot, is_ending
from pilotlight.targets.target import Condition, Phase, RevisionStatus, ServiceStatus

Json = Any
Document = Mapping[str, Json]
PROVEN: Final = ("Loaded", "Standby")
MODES: Final = {
    "Service": "serverless",
    "Deployment": "raw",
    "StatefulSet": "stateful",
    "LeaderWorkerSet": "multi-node",
    "RayCluster": "multi-node",
}


def status_of(snapshot: Snapshot, warnings: Sequence[str] = ()) -> ServiceStatus:
    revisions = revision_rows(snapshot)
    phase, message = phase_of(snapshot, revisions)
    urls = addresses(snapshot)
    return ServiceStatus(
        *snapshot.key, snapshot.generation, phase, urls.get("http", ""),
        mode="/".join(sorted({MODES[each["kind"]] for each in snapshot.workloads})), urls=urls,
        conditions=tuple(_conditions(snapshot, phase, message, revisions)), revisions=tuple(revisions), message=message,
        overrides=read_overrides(snapshot.workloads), warnings=(*warnings, *_warnings(snapshot)),
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
        return "Stopping", f"{ending} pods finish what they have" if ending else "its objects are being deleted"
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
        return f"{name} has not been taken up yet"
    if is_knative(workload):
        if condition(workload, "Ready") == "True":
            return ""
        message = condition_text(workload, "Ready")
        # The revision is ready already; Knative's message about it is outdated.
        return (
            message
            if message and latest_of(workload) not in message
            else f"requests are being led to {latest_of(workload)}"
        )
    wanted, updated = int(workload["spec"].get("replicas") or 0), status.get("updatedReplicas")
    if workload["kind"] in ("Deployment", "StatefulSet") and int(updated or 0) < wanted:
        return f"{name}: {updated or 0} of {wanted} pods are of the new revision"
    if workload["kind"] == "Deployment" and int(status.get("replicas") or 0) > int(updated or 0):
        return f"{name}: {int(status['replicas']) - int(updated or 0)} pods of the old revision finish what they have"
    return _route_problem(snapshot)


def _route_problem(snapshot: Snapshot) -> str:
    """Return why the route of a raw service is not accepted; empty: it is."""
    for route in snapshot.of(kinds.HTTP_ROUTE):
        parents = (route.get("status") or {}).get("parents") or ()
        for parent in parents:
            for each in parent.get("conditions") or ():
                if each.get("type") in ("Accepted", "ResolvedRefs") and each.get("status") == "False":
                    return f"its route is not taken: {each.get('message') or each.get('reason')}"
    return ""


def addresses(snapshot: Snapshot) -> dict[str, str]:
    """Return the URLs: `http` for clients, `cluster` for use inside."""
    namespace, name = snapshot.key
    for workload in entries(snapshot.workloads)[:1]:
        if is_knative(workload):
            status = workload.get("status") or {}
            inside = str((status.get("address") or {}).get("url") or "")
            return {
                key: text for key, text in (("http", str(status.get("url") or inside)), ("cluster", inside)) if text
            }
    inside = f"http://{names.entry_service(name)}.{namespace}.svc.cluster.local"
    hosts = [host for route in snapshot.of(kinds.HTTP_ROUTE) for host in route["spec"].get("hostnames") or ()]
    service = snapshot.named(("v1", "Service"), names.entry_service(name))
    port = next((each["port"] for each in ((service or {}).get("spec") or {}).get("ports") or ()), 80)
    inside += "" if port == 80 else f":{port}"
    return {"http": f"http://{hosts[0]}" if hosts else inside, "cluster": inside}


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

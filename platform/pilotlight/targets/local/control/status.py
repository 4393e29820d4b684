"""Status of a service for users: phase, conditions and revisions, computed from run-time state. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from pilotlight.contract import ENV_MODEL_PATH, RESERVED_NAMES
from pilotlight.errors import Conflict, UsageError
from pilotlight.targets.local.control.service_state import (
    FAILURES_TO_REPORT,
    Revision,
    ServiceRun,
    max_replicas,
    min_replicas,
)
from pilotlight.targets.local.control.verification import unverified_message
from pilotlight.targets.local.manifests.pods import RULES
from pilotlight.targets.local.manifests.service_spec_types import ServiceSpec, WorkloadSpec
from pilotlight.targets.local.supervisor.probes import STATUS_TIMEOUT_S
from pilotlight.targets.local.supervisor.replica_record import PARKED_STATES, Replica
from pilotlight.targets.target import (
    STATUS_READ,
    Condition,
    Key,
    ModelState,
    Phase,
    ReplicaStatus,
    RevisionStatus,
    ServiceStatus,
    service_argument,
)
from pilotlight.wire import unix_socket
from pilotlight.wire.messages import redact_uri


@dataclass(frozen=True, slots=True)
class ServiceView:
    """Input of a status: a service, its replicas and the clock."""

    run: ServiceRun
    replicas: Sequence[Replica]  # living ones
    now: float
    base_url: str
    confirmed: Mapping[str, int] | None = None  # shares by revision that the gateway has applied; None: no route yet
    ports: tuple[int, int] = (0, 0)  # the service's own HTTP and gRPC ports that the gateway has applied
    https: str = ""  # host:port of the gateway's HTTPS listener, whose host gRPC ports listen at, with TLS


def check_name(key: Key) -> None:
    if key[1] in RESERVED_NAMES or key[0] in RESERVED_NAMES:
        names = ", ".join(sorted(RESERVED_NAMES))
        raise UsageError(f"{'/'.join(key)}: paths of the gateway start with {names}; choose another name")


def check_target(run: ServiceRun | None, spec: ServiceSpec) -> None:
    """Raise Conflict if the service runs on another target than that of the new specification."""
    if run is not None and not (run.unreadable or run.deleting) and run.spec.target != spec.target:
        message = f"{'/'.join(run.key)} runs on {run.spec.target}, delete it there first"
        raise Conflict(message, f"platformctl delete {service_argument(run.key)} --target {run.spec.target}")


def check_bounds(spec: ServiceSpec, bounds: Mapping[str, int]) -> None:
    """Raise UsageError for a lower bound of zero where the plan would refuse one."""
    if bounds.get("minReplicas") == 0 and not RULES[spec.target].wakes:
        raise UsageError(f"min is 0, but {spec.target} cannot queue requests at zero; it must be at least 1")


def moved_bounds(spec: ServiceSpec, bounds: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each bound of the manifest that gives way to the other one, which is set manually."""
    least, most = bounds.get("minReplicas"), bounds.get("maxReplicas")
    for workload, _ in spec.entry:
        scaling = spec.workload(workload).revision.scaling
        if most is None and least and 0 < max_replicas(scaling) < least:
            yield f"max replicas raised to {least}: the manifest has {max_replicas(scaling)}, below --min {least}"
        if least is None and most and min_replicas(scaling) > most:
            yield f"min replicas lowered to {most}: the manifest has {min_replicas(scaling)}, above --max {most}"


def url_of(base: str, key: Key) -> str:
    namespace, name = key
    return f"{base}/{name}" if namespace == "default" else f"{base}/{namespace}/{name}"


def status_of(view: ServiceView) -> ServiceStatus:
    run = view.run
    revisions = tuple(_revisions(view))
    phase, message = phase_of(view, revisions)
    verified = all(row.verified for row in revisions if row.percent)
    unverified = phase in ("Ready", "Standby", "Parked") and not verified
    if unverified:
        failures = (run.revisions[row.name].warmup_failure for row in revisions if row.percent and not row.verified)
        message = unverified_message(next(filter(None, failures), ""))
    running = (each for each in view.replicas if each.state in ("starting", "ready", "unready"))
    address = next((unix_socket.url(each.host, each.port) for each in running), "")
    url = url_of(view.base_url, run.key) if run.spec.exposed else address
    return ServiceStatus(
        *run.key, run.generation, phase, url, mode="/".join(sorted({work.mode for work in run.spec.workloads})),
        urls=_urls(view, url),
        conditions=tuple(_conditions(view, phase, message, unverified)), revisions=revisions, message=message,
        overrides=run.overrides, verified=verified, rolled_back=run.rolled_back, target=run.spec.target,
    )  # fmt: skip


def _urls(view: ServiceView, url: str) -> dict[str, str]:
    if not view.run.spec.exposed:
        return {"http": url} if url else {}
    # A port is shown only once the gateway routes it: an earlier request would be refused.
    own = zip(view.run.ports.values(), view.ports, strict=True)
    port, grpc_port = (port if port == applied else 0 for port, applied in own)
    host = view.https.rpartition(":")[0] or "127.0.0.1"
    urls = {
        "http": url, "port": f"http://127.0.0.1:{port}" if port else "",
        "https": url_of(f"https://{view.https}", view.run.key) if view.https else "",
        "grpcs" if view.https else "grpc": f"{host}:{grpc_port}" if grpc_port else "",
        "host": next(iter(view.run.spec.hosts), ""),
    }  # fmt: skip
    return {name: value for name, value in urls.items() if value}


def with_transition_times(status: ServiceStatus, before: Mapping[str, Condition], at: str) -> ServiceStatus:
    """Set `since` of each condition: the last transition of its status; `before` are those reported last."""

    def since(condition: Condition) -> str:
        known = before.get(condition.type)
        return known.since if known is not None and known.status == condition.status else at

    conditions = tuple(replace(condition, since=since(condition)) for condition in status.conditions)
    return replace(status, conditions=conditions)


def phase_of(view: ServiceView, revisions: Sequence[RevisionStatus]) -> tuple[Phase, str]:
    """Return the phase and a message; Progressing until the gateway has applied the route and its shares."""
    run = view.run
    phase, message = _phase(view, revisions)
    entries = dict(run.spec.entry)
    routed = [row for row in revisions if row.workload in entries]
    if phase not in ("Ready", "Standby", "Parked"):
        return phase, message
    confirmed = view.confirmed
    if not run.spec.exposed:
        return phase, message
    if confirmed is None:  # until then the gateway responds 404
        return "Progressing", "the gateway is applying its route"
    if any(confirmed.get(row.name, 0) != row.percent for row in routed):
        return "Progressing", "the gateway is applying the traffic split"
    return ("Degraded", run.rolled_back) if run.rolled_back else (phase, message)


def _phase(view: ServiceView, revisions: Sequence[RevisionStatus]) -> tuple[Phase, str]:
    run = view.run
    if run.deleting:
        return "Stopping", "its replicas are draining"
    if run.unreadable:
        return "Failed", run.unreadable
    latest = run.latest_revisions()
    failed = next((revision for revision in latest if has_failed(revision)), None)
    serving = all(_serves(view, name) for name, _ in run.spec.entry)
    if failed is not None:
        reason = f"{failed.name}: {failed.failure}"
        return ("Degraded", f"{reason}; {_serving_names(run)} keeps serving") if serving else ("Failed", reason)
    starting = [revision for revision in latest if not revision.ready_once]
    if starting:
        return "Progressing", f"{starting[0].name} is {_start_state(view)}" + _waiting_for(view, starting[0])
    answer_failures = [
        failure for row in revisions if row.percent and (failure := run.revisions[row.name].answer_failure)
    ]
    if any(row.ready for row in revisions if row.percent):
        if any(_status_awaited(view, replica) for replica in view.replicas):
            return "Progressing", STATUS_READ
        if answer_failures:
            return "Degraded", answer_failures[0]
        short = [row for row in revisions if row.ready < row.desired and row.percent and row.reason]
        if short and not short[0].failure and any(each.state == "pending" for each in short[0].replicas):
            return "Ready", f"{short[0].name} scales from {short[0].ready} to {short[0].desired}: {short[0].reason}"
        return ("Degraded", f"{short[0].name}: {short[0].reason}") if short else ("Ready", "")
    broken = next((row for row in revisions if row.percent and row.desired and row.model_state == "FailedToLoad"), None)
    if broken is not None:
        return "Failed", f"{broken.name}: {broken.reason}"
    if any(row.desired for row in revisions if row.percent):
        reason = next((row.reason for row in revisions if row.percent and row.desired and row.reason), "")
        return "Progressing", f"a replica is {_start_state(view)}" + (f" ({reason})" if reason else "")
    if answer_failures:
        return "Degraded", answer_failures[0]
    parked = any(row.model_state == "Parked" for row in revisions if row.percent)
    return ("Parked", "") if parked else ("Standby", "")


def _status_awaited(view: ServiceView, replica: Replica) -> bool:
    """Whether a replica of a revision that may be unverified has just become ready and its /status is not read yet."""
    revision = view.run.revisions.get(replica.revision)
    if revision is None or revision.verification != "unknown" or not replica.checks.predictor:
        return False
    since = revision.ready_since.get(replica.id)
    read = replica.state != "ready" or replica.status.get("state") == "ready"
    return not read and since is not None and view.now - since < STATUS_TIMEOUT_S


def has_failed(revision: Revision) -> bool:
    """Whether a revision that has never been ready is unlikely to become so."""
    broken = revision.deadline_exceeded or revision.failures >= FAILURES_TO_REPORT or revision.load_failed
    return not revision.ready_once and bool(revision.failure) and broken


def _serves(view: ServiceView, workload: str) -> bool:
    """Whether a revision in the workload's traffic has been ready."""
    shares = view.run.shares(workload)
    mode = view.run.spec.workload(workload).mode
    names = {share.revision for share in shares} if mode == "serverless" else set(view.run.revisions_of(workload))
    return any((revision := view.run.revisions.get(name)) is not None and revision.ready_once for name in names)


def _serving_names(run: ServiceRun) -> str:
    routed = {share.revision for workload in run.spec.workloads for share in run.shares(workload.name)}
    ready = [revision.name for revision in run.revisions.values() if revision.ready_once]
    return ", ".join([name for name in ready if name in routed] or ready) or "the one before it"


def _start_state(view: ServiceView) -> str:
    return "pending" if any(replica.state == "pending" for replica in view.replicas) else "starting"


def _waiting_for(view: ServiceView, revision: Revision) -> str:
    reasons = [replica.reason for replica in view.replicas if replica.revision == revision.name and replica.reason]
    return f" ({reasons[-1]})" if reasons else f" again after: {revision.failure}" if revision.failure else ""


def _revisions(view: ServiceView) -> Iterator[RevisionStatus]:
    for workload in view.run.spec.workloads:
        shares = view.run.shares(workload.name)
        percents = {share.revision: share.percent for share in shares}
        if workload.mode != "serverless":
            percents = {workload.revision.name: 100}
        # Those that have traffic or a place in the release, and those that still have replicas.
        shown = {replica.revision for replica in view.replicas} | view.run.required_revisions(workload)
        known = [name for name in view.run.revisions_of(workload.name) if name in shown | {workload.revision.name}]
        for name in sorted(known, key=lambda name: view.run.revisions[name].created_at, reverse=True):
            percent = dict(view.run.spec.entry).get(workload.name, 100) * percents.get(name, 0) // 100
            tags = tuple(share.tag for share in shares if share.revision == name and share.tag)
            yield _revision(view, workload, view.run.revisions[name], percent, tags)


def _revision(
    view: ServiceView, workload: WorkloadSpec, revision: Revision, percent: int, tags: tuple[str, ...]
) -> RevisionStatus:
    unit = view.run.unit_of(revision, view.now)
    replicas = [replica for replica in view.replicas if replica.revision == revision.name]
    ready = sum(replica.state == "ready" for replica in replicas)
    starting = sum(replica.state in ("waiting", "pending", "starting", "waking", "unready") for replica in replicas)
    desired = unit.desired if revision.name in view.run.required_revisions(workload) else 0
    log, now = unit.traffic, view.now
    busy = [replica for replica in replicas if replica.state != "draining"]
    state = model_state(revision, busy, desired)
    silent = ("ready", "pending") if state == "FailedToLoad" else ("ready",)  # the failure says more than the queue
    reasons = [replica.reason for replica in busy if replica.state not in silent and replica.reason]
    backoff_s = revision.next_start - now if desired > len(busy) and revision.next_start > now else None
    container, route = revision.spec.container, url_of(view.base_url, view.run.key)
    pins, uris = (
        container.pins.values(),
        [container.env.get(ENV_MODEL_PATH, ""), *(each.uri for each in container.fetches)],
    )
    return RevisionStatus(
        revision.name, workload.name, workload.role, percent, tags, ready, starting, desired,
        model_state=state, reason=reasons[-1] if reasons else revision.failure,
        progress=busy[-1].status.get("progress") or {} if busy else {},
        p50_ms=log.quantile_ms(0.5, now), p99_ms=log.quantile_ms(0.99, now), error_percent=log.error_percent(now),
        requests=log.requests(now), cold_starts=log.cold_starts,
        decision=unit.decision.reason if unit.decision else "", decided_at=unit.decided_at,
        url=f"{route}@{tags[0] if tags else revision.name}" if view.run.spec.exposed else "",
        cold_start=revision.cold_start, per_second=log.per_second(now), retry_in_s=backoff_s,
        verified=revision.verification in ("unknown", "verified"), failure=revision.failure,
        replicas=tuple(
            ReplicaStatus(
                each.id, each.state, each.node, each.handle, each.reason, tuple(map(str, each.gpus)), each.gpu_memory,
                each.forked,
            )
            for each in replicas
        ),
        model_digest=" ".join(pin.digest for pin in pins), model_bytes=sum(pin.size for pin in pins),
        unpinned=tuple(redact_uri(uri) for uri in uris if "://" in uri and uri not in container.pins),
        waiting=log.waiting,
    )  # fmt: skip


def model_state(revision: Revision, replicas: Sequence[Replica], desired: int) -> ModelState:
    """Return OME's state of the model. FailedToLoad: its last start failed; a crash after readiness is none."""
    if any(replica.state == "ready" for replica in replicas):
        return "Loaded"
    if any(replica.state in PARKED_STATES for replica in replicas):
        return "Parked"
    repeated = not replicas or revision.failures >= FAILURES_TO_REPORT
    if has_failed(revision) or (revision.failure and revision.start_failed and repeated):
        return "FailedToLoad"
    if replicas:
        return "Loading" if any(replica.state not in ("waiting", "pending") for replica in replicas) else "Pending"
    return "Standby" if revision.ready_once and not desired else "Pending"


def _conditions(view: ServiceView, phase: Phase, message: str, unverified: bool) -> Iterator[Condition]:
    """Yield KServe's and OME's component conditions (EngineReady, PredictorReady, …), then the summary ones."""
    for role in dict.fromkeys(work.role for work in view.run.spec.workloads):
        revisions = [revision for revision in view.run.latest_revisions() if revision.spec.role == role]
        yield _condition(f"{role.capitalize()}Ready", revisions)
    if not view.run.unreadable:
        yield _condition("LatestDeploymentReady", view.run.latest_revisions())
        if not view.run.spec.exposed:
            yield Condition("IngressReady", "True", "ClusterLocal", "its label disables the route of the gateway")
        elif view.confirmed is not None:
            yield Condition("IngressReady", "True", "Routed", f"{url_of(view.base_url, view.run.key)} leads here")
        else:
            yield Condition("IngressReady", "Unknown", "NotRouted", "the gateway has no route to it")
    not_ready: Literal["False", "Unknown"] = "Unknown" if phase == "Progressing" else "False"
    reason = "Unverified" if unverified else phase
    yield Condition("Ready", "True" if phase in ("Ready", "Standby", "Parked") else not_ready, reason, message)


def _condition(name: str, revisions: Sequence[Revision]) -> Condition:
    failed = next((revision for revision in revisions if has_failed(revision)), None)
    if failed is not None:
        return Condition(name, "False", "FailedToLoad", failed.failure)
    if all(revision.ready_once for revision in revisions):
        return Condition(name, "True", "Ready")
    return Condition(name, "Unknown", "Starting")

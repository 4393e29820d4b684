"""What a person is told about a service: phase, conditions and revisions, made from what the engine knows. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from pilotlight.contract import RESERVED_NAMES
from pilotlight.errors import UsageError
from pilotlight.targets.local.model import WorkloadSpec
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.supervisor.replica import AWAY, Replica
from pilotlight.targets.local.units import Revision
from pilotlight.targets.target import Condition, Key, ModelState, Phase, RevisionStatus, ServiceStatus

FAILURES_TO_TELL: Final = 2  # one crash may be an accident; what fails twice is told as failed


@dataclass(frozen=True, slots=True)
class View:
    """A service, the replicas of any of its revisions, and the clock."""

    run: ServiceRun
    replicas: Sequence[Replica]  # living ones
    now: float
    base_url: str
    confirmed: Mapping[str, int] | None = None  # shares by revision, as the gateway has them; None: nobody can tell
    ports: tuple[int, int] = (0, 0)  # of its own, for HTTP and for gRPC, that the gateway leads here


def check_name(key: Key) -> None:
    if key[1] in RESERVED_NAMES or key[0] in RESERVED_NAMES:
        names = ", ".join(sorted(RESERVED_NAMES))
        raise UsageError(f"{'/'.join(key)}: the gateway's own paths begin with {names}; choose another name")


def url_of(base: str, key: Key) -> str:
    namespace, name = key
    return f"{base}/{name}" if namespace == "default" else f"{base}/{namespace}/{name}"


def status_of(view: View) -> ServiceStatus:
    run = view.run
    revisions = tuple(_revisions(view))
    phase, message = phase_of(view, revisions)
    url = url_of(view.base_url, run.key)
    return ServiceStatus(
        *run.key, run.generation, phase, url, mode="/".join(sorted({work.mode for work in run.spec.workloads})),
        urls=_urls(view, url),
        conditions=tuple(_conditions(view, phase, message)), revisions=revisions, message=message,
        overrides=run.overrides,
    )  # fmt: skip


def _urls(view: View, url: str) -> dict[str, str]:
    """A port is told once it leads here: who came earlier would hear that nobody has it."""
    own = (view.run.port, view.run.grpc_port)
    port, grpc_port = (mine if mine == led else 0 for mine, led in zip(own, view.ports, strict=True))
    found = {
        "http": url, "port": f"http://127.0.0.1:{port}" if port else "",
        "grpc": f"127.0.0.1:{grpc_port}" if grpc_port else "", "host": next(iter(view.run.spec.hosts), ""),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def dated(status: ServiceStatus, before: Mapping[str, Condition], at: str) -> ServiceStatus:
    """With the instant since when each condition has had its status; `before` are those that were told last."""

    def since(condition: Condition) -> str:
        known = before.get(condition.type)
        return known.since if known is not None and known.status == condition.status else at

    conditions = tuple(replace(condition, since=since(condition)) for condition in status.conditions)
    return replace(status, conditions=conditions)


def phase_of(view: View, revisions: Sequence[RevisionStatus]) -> tuple[Phase, str]:
    """In one word, and one sentence where not everything is well. Shares hold once the gateway has confirmed them."""
    phase, message = _phase(view, revisions)
    entries = dict(view.run.spec.entry)
    mine = [row for row in revisions if row.workload in entries]
    if view.confirmed is None or phase not in ("Ready", "Standby", "Parked"):
        return phase, message
    untold = any(view.confirmed.get(row.name, 0) != row.percent for row in mine)
    return ("Progressing", "the gateway is being told who gets which share") if untold else (phase, message)


def _phase(view: View, revisions: Sequence[RevisionStatus]) -> tuple[Phase, str]:
    run = view.run
    if run.deleting:
        return "Stopping", "its replicas finish what they have"
    if run.unreadable:
        return "Failed", run.unreadable
    latest = run.latest()
    failed = next((found for found in latest if has_failed(found)), None)
    serving = all(_serves(view, name) for name, _ in run.spec.entry)
    if failed is not None:
        told = f"{failed.name}: {failed.failure}"
        return ("Degraded", f"{told}; {_still(run)} keeps serving") if serving else ("Failed", told)
    starting = [found for found in latest if not found.ready_once]
    if starting:
        return "Progressing", f"{starting[0].name} is starting" + _waiting_for(view, starting[0])
    if any(row.ready for row in revisions if row.percent):
        short = [row for row in revisions if row.ready < row.desired and row.percent and row.reason]
        return ("Degraded", f"{short[0].name}: {short[0].reason}") if short else ("Ready", "")
    broken = next((row for row in revisions if row.percent and row.desired and row.model_state == "FailedToLoad"), None)
    if broken is not None:
        return "Failed", f"{broken.name}: {broken.reason}"
    waking = any(row.desired for row in revisions if row.percent)
    if waking:
        reason = next((row.reason for row in revisions if row.percent and row.desired and row.reason), "")
        return "Progressing", "a replica is starting" + (f" ({reason})" if reason else "")
    parked = any(row.model_state == "Parked" for row in revisions if row.percent)
    return ("Parked", "") if parked else ("Standby", "")


def has_failed(revision: Revision) -> bool:
    """A revision that never answered and will hardly do so."""
    broken = revision.given_up or revision.failures >= FAILURES_TO_TELL or revision.refused
    return not revision.ready_once and bool(revision.failure) and broken


def _serves(view: View, workload: str) -> bool:
    """Whether its requests go to revisions that have been ready."""
    shares = view.run.shares(workload)
    mode = view.run.spec.workload(workload).mode
    names = {share.revision for share in shares} if mode == "serverless" else set(view.run.revisions_of(workload))
    return any((found := view.run.revisions.get(name)) is not None and found.ready_once for name in names)


def _still(run: ServiceRun) -> str:
    old = [found.name for found in run.revisions.values() if found.ready_once and found.name in _routed_names(run)] or [
        found.name for found in run.revisions.values() if found.ready_once
    ]
    return ", ".join(old) or "the one before it"


def _routed_names(run: ServiceRun) -> set[str]:
    return {share.revision for workload in run.spec.workloads for share in run.shares(workload.name)}


def _waiting_for(view: View, revision: Revision) -> str:
    reasons = [replica.reason for replica in view.replicas if replica.revision == revision.name and replica.reason]
    return f" ({reasons[-1]})" if reasons else f" again after: {revision.failure}" if revision.failure else ""


def _revisions(view: View) -> Iterator[RevisionStatus]:
    for workload in view.run.spec.workloads:
        shares = view.run.shares(workload.name)
        known = [name for name in view.run.revisions_of(workload.name) if _shown(view, workload, name)]
        newest_first = sorted(known, key=lambda name: view.run.revisions[name].created_at, reverse=True)
        for name in newest_first:
            percent = _percent(view.run, workload, name, {s.revision: s.percent for s in shares})
            tags = tuple(share.tag for share in shares if share.revision == name and share.tag)
            yield _revision(view, workload, view.run.revisions[name], percent, tags)


def _shown(view: View, workload: WorkloadSpec, name: str) -> bool:
    """What serves, what shall serve, and what still runs."""
    running = any(replica.revision == name for replica in view.replicas)
    return running or name == workload.revision.name or name in view.run.needed(workload)


def _percent(run: ServiceRun, workload: WorkloadSpec, name: str, shares: dict[str, int]) -> int:
    weight = dict(run.spec.entry).get(workload.name, 100)
    if workload.mode == "serverless":
        return weight * shares.get(name, 0) // 100
    return weight if name == workload.revision.name else 0


def _revision(
    view: View, workload: WorkloadSpec, revision: Revision, percent: int, tags: tuple[str, ...]
) -> RevisionStatus:
    unit = view.run.unit_of(revision, view.now)
    mine = [replica for replica in view.replicas if replica.revision == revision.name]
    ready = sum(replica.state == "ready" for replica in mine)
    starting = sum(replica.state in ("waiting", "starting", "unready") for replica in mine)
    wanted = unit.desired if revision.name in view.run.needed(workload) else 0
    log, now = unit.traffic, view.now
    busy = [replica for replica in mine if replica.state != "draining"]
    return RevisionStatus(
        revision.name, workload.name, workload.role, percent, tags, ready, starting, wanted,
        model_state=model_state(revision, busy), reason=_reason(revision, busy),
        progress=busy[-1].status.get("progress") or {} if busy else {},
        p50_ms=log.quantile_ms(0.5, now), p99_ms=log.quantile_ms(0.99, now), error_percent=log.error_percent(now),
        requests=log.requests(now), cold_starts=log.cold_starts,
        decision=unit.decision.reason if unit.decision else "", decided_at=unit.decided_at,
        url=f"{url_of(view.base_url, view.run.key)}@{tags[0] if tags else revision.name}",
        cold_start=revision.cold_start, per_second=log.per_second(now),
    )  # fmt: skip


def model_state(revision: Revision, replicas: Sequence[Replica]) -> ModelState:
    if any(replica.state == "ready" for replica in replicas):
        return "Loaded"
    if any(replica.state in AWAY for replica in replicas):
        return "Parked"
    if has_failed(revision) or (revision.failure and (not replicas or revision.failures >= FAILURES_TO_TELL)):
        return "FailedToLoad"
    if replicas:
        return "Loading" if any(replica.state != "waiting" for replica in replicas) else "Pending"
    return "Standby" if revision.ready_once else "Pending"


def _reason(revision: Revision, replicas: Sequence[Replica]) -> str:
    waiting = [replica.reason for replica in replicas if replica.state != "ready" and replica.reason]
    return waiting[-1] if waiting else revision.failure


def _conditions(view: View, phase: Phase, message: str) -> Iterator[Condition]:
    """As the components' own projects name them: EngineReady, PredictorReady, …, then what they amount to."""
    for role in dict.fromkeys(work.role for work in view.run.spec.workloads):
        mine = [found for found in view.run.latest() if found.spec.role == role]
        yield _condition(f"{role.capitalize()}Ready", mine)
    if not view.run.unreadable:
        yield _condition("LatestDeploymentReady", view.run.latest())
        yield Condition("IngressReady", "True", "Routed", f"{url_of(view.base_url, view.run.key)} leads here")
    well: Literal["True", "False", "Unknown"] = "Unknown" if phase == "Progressing" else "False"
    yield Condition("Ready", "True" if phase in ("Ready", "Standby", "Parked") else well, phase, message)


def _condition(name: str, revisions: Sequence[Revision]) -> Condition:
    broken = next((found for found in revisions if has_failed(found)), None)
    if broken is not None:
        return Condition(name, "False", "FailedToLoad", broken.failure)
    if all(found.ready_once for found in revisions):
        return Condition(name, "True", "Ready")
    return Condition(name, "Unknown", "Starting")

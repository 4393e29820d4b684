"""Gateway routes of a service, from its specification, the effective traffic split and the ready replicas."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from pilotlight.gateway.table import Backend, Replica, Route
from pilotlight.targets.local.access_rules import access, rate
from pilotlight.targets.local.model import WorkloadSpec
from pilotlight.targets.local.reconcile import Shares
from pilotlight.targets.local.service import ServiceRun

Ready = Callable[[str, str], Sequence[Replica]]  # namespace, revision → ready replicas
Key = Callable[[str, str], str]  # namespace, workload → key that other components must send


def routes(run: ServiceRun, ready: Ready, key: Key) -> Iterator[Route]:
    """Yield the service's own route, and one for each workload that only its components call."""
    spec = run.spec
    if run.unreadable:  # the reason may hold internals, so only the control API shows it
        reason = f"{spec.name} cannot be run; platformctl status {spec.name} says why"
        yield Route(spec.namespace, spec.name, (Backend("none", "none", 100, unavailable=reason),))
        return
    entries = dict(spec.entry)
    backends = tuple(
        backend
        for name, weight in spec.entry
        for backend in _backends(run, spec.workload(name), run.shares(name), weight, ready)
    )
    first = spec.workload(spec.entry[0][0]).revision
    yield Route(
        spec.namespace, spec.name, backends, hosts=spec.hosts, port=run.port, timeout_s=first.timeout_s,
        access=access(spec.access), rate=rate(spec.access), grpc_port=run.grpc_port,
    )  # fmt: skip
    for workload in spec.workloads:
        if workload.name not in entries:
            inner = tuple(_backends(run, workload, run.shares(workload.name), 100, ready))
            yield Route(
                spec.namespace, workload.name, inner, timeout_s=workload.revision.timeout_s, internal=True,
                key=key(spec.namespace, workload.name),
            )  # fmt: skip


def _backends(run: ServiceRun, workload: WorkloadSpec, shares: Shares, weight: int, ready: Ready) -> Iterator[Backend]:
    if workload.mode != "serverless":
        # During a rolling update replicas of every template share the workload's traffic.
        replicas = [replica for name in run.revisions_of(workload.name) for replica in ready(run.key[0], name)]
        yield _backend(run, workload, workload.revision.name, weight, (), replicas)
        return
    for revision in dict.fromkeys(share.revision for share in shares):
        entries = [share for share in shares if share.revision == revision]
        percent = sum(share.percent for share in entries)
        tags = tuple(share.tag for share in entries if share.tag)
        yield _backend(run, workload, revision, weight * percent // 100, tags, ready(run.key[0], revision))


def _backend(
    run: ServiceRun, workload: WorkloadSpec, revision: str, weight: int, tags: tuple[str, ...],
    replicas: Iterable[Replica],
) -> Backend:  # fmt: skip
    state = run.revisions.get(revision)
    spec = state.spec if state else workload.revision
    ready = tuple(replicas)
    return Backend(
        revision, workload.name, weight, ready, tags, spec.concurrency,
        hold_s=min(spec.timeout_s, spec.progress_deadline_s),
        unavailable="" if ready or state is None else run.unavailable_reason(state),
    )  # fmt: skip

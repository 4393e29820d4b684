"""The gateway's routes, made from what is specified, how traffic is split right now, and which replicas are ready."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from pilotlight.gateway.table import Backend, Replica, Route
from pilotlight.targets.local.access_rules import access, rate
from pilotlight.targets.local.model import WorkloadSpec
from pilotlight.targets.local.reconcile import Shares
from pilotlight.targets.local.service import ServiceRun

Ready = Callable[[str, str], Sequence[Replica]]  # namespace, revision → replicas that answer
Key = Callable[[str, str], str]  # namespace, workload → what other components must show to be let through


def routes(run: ServiceRun, ready: Ready, key: Key) -> Iterator[Route]:
    """The service's own route, and one for each workload that only other components ask."""
    spec = run.spec
    if run.unreadable:  # why is for who may ask the control API
        told = f"{spec.name} cannot be run; platformctl status {spec.name} says why"
        yield Route(spec.namespace, spec.name, (Backend("none", "none", 100, unavailable=told),))
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
        everyone = [replica for name in run.revisions_of(workload.name) for replica in ready(run.key[0], name)]
        yield _backend(run, workload, workload.revision.name, weight, (), everyone)
        return
    for revision in dict.fromkeys(share.revision for share in shares):
        mine = [share for share in shares if share.revision == revision]
        percent = sum(share.percent for share in mine)
        tags = tuple(share.tag for share in mine if share.tag)
        yield _backend(run, workload, revision, weight * percent // 100, tags, ready(run.key[0], revision))


def _backend(
    run: ServiceRun, workload: WorkloadSpec, revision: str, weight: int, tags: tuple[str, ...],
    replicas: Iterable[Replica],
) -> Backend:  # fmt: skip
    found = run.revisions.get(revision)
    spec = found.spec if found else workload.revision
    able = tuple(replicas)
    return Backend(
        revision, workload.name, weight, able, tags, spec.concurrency,
        hold_s=min(spec.timeout_s, spec.progress_deadline_s),
        unavailable="" if able or found is None else run.unavailable(found),
    )  # fmt: skip

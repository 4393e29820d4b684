"""The gateway's routes, made from what is specified, how traffic is split right now, and which replicas are ready."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.gateway.table import Access, Backend, Jwt, Rate, Replica, Route
from pilotlight.names import (
    ANNOTATION_JWT_AUDIENCE,
    ANNOTATION_JWT_ISSUER,
    ANNOTATION_JWT_KEYS,
    ANNOTATION_RATE,
    ANNOTATION_TOKENS,
)
from pilotlight.targets.local.model import ServiceSpec, WorkloadSpec
from pilotlight.targets.local.reconcile import Shares
from pilotlight.targets.local.service import ServiceRun

_RATE: Final = re.compile(r"(\d+)/(\d*)(s|m|h)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}

Ready = Callable[[str, str], Sequence[Replica]]  # namespace, revision → replicas that answer


def routes(run: ServiceRun, ready: Ready) -> Iterator[Route]:
    """The service's own route, and one for each workload that only other components ask."""
    spec = run.spec
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
            yield Route(spec.namespace, workload.name, inner, timeout_s=workload.revision.timeout_s, internal=True)


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


def access(annotations: Mapping[str, str]) -> Access | None:
    tokens = tuple(part.strip().lower() for part in annotations.get(ANNOTATION_TOKENS, "").split(",") if part.strip())
    keys = annotations.get(ANNOTATION_JWT_KEYS, "")
    issuer, audience = (annotations.get(name, "") for name in (ANNOTATION_JWT_ISSUER, ANNOTATION_JWT_AUDIENCE))
    jwt = Jwt(keys, issuer, audience) if keys else None
    return Access(tokens, jwt) if tokens or jwt else None


def rate(annotations: Mapping[str, str]) -> Rate | None:
    """`100/1m`: a hundred requests a minute for each client."""
    written = annotations.get(ANNOTATION_RATE, "")
    if not written:
        return None
    matched = _RATE.fullmatch(written)
    if matched is None or not int(matched[1]):
        raise PlatformError(f"annotation {ANNOTATION_RATE} = {written}, must be requests per time such as 100/1m")
    return Rate(int(matched[1]), float(int(matched[2] or 1) * _SECONDS[matched[3]]))


def check(spec: ServiceSpec) -> None:
    """Raises when the annotations that decide about access make no sense: before anything is stored."""
    access(spec.access)
    rate(spec.access)

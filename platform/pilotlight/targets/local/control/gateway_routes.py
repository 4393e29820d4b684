"""Gateway routes of a service, from its specification, traffic split and ready replicas; the services' own ports.

Every service has an HTTP port. Only a service whose manifests send requests to the predictor's gRPC port
(`protocolVersion: grpc-v2`) has a gRPC port: the first one makes the gateway import grpcio, which costs memory.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Final, Literal

from pilotlight.catalogue.engine_programs import engine_command
from pilotlight.contract import ENV_SETTINGS_PREFIX, GRPC_PORT
from pilotlight.gateway.routing_table import Backend, Replica, Route, RouteAdapter
from pilotlight.k8s.access_annotations import access, quota, rate
from pilotlight.k8s.names import ANNOTATION_AUDIT, ANNOTATION_LOG_SETTINGS
from pilotlight.targets.local.control.service_state import ServiceRun, Shares
from pilotlight.targets.local.gateway.gateway_link import GatewayLink
from pilotlight.targets.local.manifests.service_spec_types import ServiceSpec, WorkloadSpec
from pilotlight.targets.local.store.store import EventRecorder, Store
from pilotlight.wire.request_log.settings import LogSettings, decode

Ready = Callable[[str, str], Sequence[Replica]]  # namespace, revision → ready replicas
Key = Callable[[str, str], str]  # namespace, workload → key that other components must send
MAX_ATTEMPTS: Final = 50
PORT_RANGE: Final = 10_000
ENV_GRPC_PORT: Final = f"{ENV_SETTINGS_PREFIX}GRPC_PORT"
Kind = Literal["http", "grpc"]


def routes(run: ServiceRun, ready: Ready, key: Key, adapters: tuple[RouteAdapter, ...] = ()) -> Iterator[Route]:
    """Yield the service's own route, and one for each workload that only its components call."""
    spec = run.spec
    if run.unreadable:  # the reason may hold internals, so only the control API shows it
        reason = f"{spec.name} cannot run; see platformctl status {spec.name}"
        yield Route(spec.namespace, spec.name, (Backend("none", "none", 100, unavailable=reason),))
        return
    entries = dict(spec.entry)
    backends = tuple(
        backend
        for name, weight in spec.entry
        for backend in _backends(run, spec.workload(name), run.shares(name), weight, ready)
    )
    first = spec.workload(spec.entry[0][0]).revision
    if spec.exposed:
        yield Route(
            spec.namespace, spec.name, backends, hosts=spec.hosts, port=run.ports["http"], timeout_s=first.timeout_s,
            access=access(spec.access), rate=rate(spec.access), quota=quota(spec.access),
            grpc_port=run.ports["grpc"],
            key=key(spec.namespace, spec.name) if len(entries) < len(spec.workloads) else "", models=spec.models,
            request_log=_request_log(spec), audit=spec.logging.get(ANNOTATION_AUDIT) == "true",
            adapters=adapters, public=_public(run, entries), failed=run.never_started,
        )  # fmt: skip
    for workload in spec.workloads:
        if workload.name not in entries:
            inner = tuple(_backends(run, workload, run.shares(workload.name), 100, ready))
            yield Route(
                spec.namespace, workload.name, inner, timeout_s=workload.revision.timeout_s, internal=True,
                key=key(spec.namespace, workload.name), public=_public(run, (workload.name,)),
            )  # fmt: skip


def _public(run: ServiceRun, workloads: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that clients may call; empty: all. Engines that sleep have endpoints for the platform alone."""
    for container in [run.revisions[name].spec.container for work in workloads for name in run.revisions_of(work)]:
        named = engine_command(container.image, container.command, container.args) if container.parks else None
        if named is not None and named.sleeps is not None:
            return named.sleeps.public
    return ()


def _request_log(spec: ServiceSpec) -> LogSettings | None:
    """Return the settings of the request log; None if they cannot be read: one service must not stop the others."""
    with suppress(ValueError):
        return decode(spec.logging[ANNOTATION_LOG_SETTINGS]) if ANNOTATION_LOG_SETTINGS in spec.logging else None
    return None


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
        starts_at=state.next_start if state else 0.0,
        digest=spec.container.model_digest,
        pending="GPU memory" if state is not None and state.waits_for_gpu and not ready else "",
    )  # fmt: skip


class ServicePorts:
    """`first` is the lowest port; 0: services have none. `changed` is called after every port that is opened."""

    def __init__(
        self, store: Store, link: GatewayLink, first: int, events: EventRecorder, changed: Callable[[], None]
    ) -> None:
        self._store, self._link, self._first = store, link, first
        self._events, self._changed = events, changed
        self._tasks: set[asyncio.Task[None]] = set()

    def restore(self, run: ServiceRun) -> None:
        """Set the stored ports before the first table: the gateway closes ports that it does not name."""
        for kind in self._required(run):
            run.ports[kind] = self._next(run, kind)

    def open(self, run: ServiceRun) -> None:
        """Open the ports that a release needs; ports already open stay."""
        kinds = list(self._required(run))
        if "grpc" not in kinds:
            run.ports["grpc"] = 0
        if kinds:
            task = asyncio.get_running_loop().create_task(self._open(run, kinds))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def release(self, run: ServiceRun) -> None:
        """Close the ports of a deleted service: if no table has named them, none would close them."""
        self._link.unlisten([f"127.0.0.1:{port}/{kind}" for kind, port in run.ports.items() if port])

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _required(self, run: ServiceRun) -> Iterator[Kind]:
        if self._first and not run.deleting and run.spec.exposed:
            yield "http"
            if serves_grpc(run.spec):
                yield "grpc"

    async def _open(self, run: ServiceRun, kinds: list[Kind]) -> None:
        for kind in kinds:
            await self._open_one(run, kind)

    async def _open_one(self, run: ServiceRun, kind: Kind) -> None:
        for attempt in range(MAX_ATTEMPTS):
            if kind not in self._required(run):
                return
            port = self._next(run, kind, attempt)
            if not await self._link.listen([f"127.0.0.1:{port}/{kind}"]):
                run.ports[kind] = port
                self._changed()
                if run.deleting:
                    self.release(run)
                return
            self._store.release_port(run.key, kind)
        message = f"no port from {self._first} on is free"
        self._events.record(run.key, f"Service/{run.key[1]}", "NoPort", message, "Warning")

    def _next(self, run: ServiceRun, kind: Kind, attempt: int = 0) -> int:
        return self._store.port(run.key, kind, range(self._first + attempt, self._first + PORT_RANGE))


def serves_grpc(spec: ServiceSpec) -> bool:
    """Whether the manifests send requests to a gRPC port and grpcio is installed."""
    entries = [spec.workload(name).revision.container for name, _ in spec.entry]
    on_grpc_port = (str(each.port) == each.env.get(ENV_GRPC_PORT, str(GRPC_PORT)) for each in entries)
    return any(on_grpc_port) and find_spec("grpc") is not None

"""Ports of the services' own: the stored one, else the next free one.

Every service has an HTTP port. Only a service whose manifests send requests to the predictor's gRPC port
(`protocolVersion: grpc-v2`) has a gRPC port: the first one makes the gateway import grpcio, which costs memory.
"""

import asyncio
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Final, Literal

from pilotlight.contract import ENV_SETTINGS_PREFIX, GRPC_PORT
from pilotlight.targets.local.chronicle import EventRecorder
from pilotlight.targets.local.gateway_link import GatewayLink
from pilotlight.targets.local.model import ServiceSpec
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.store.store import Store

MAX_ATTEMPTS: Final = 50
PORT_RANGE: Final = 10_000
ENV_GRPC_PORT: Final = f"{ENV_SETTINGS_PREFIX}GRPC_PORT"

Kind = Literal["http", "grpc"]


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
            _set_port(run, kind, self._next(run, kind))

    def open(self, run: ServiceRun) -> None:
        """Open the ports that a release needs; ports already open stay."""
        kinds = list(self._required(run))
        if run.grpc_port and "grpc" not in kinds:
            run.grpc_port = 0
        if kinds:
            task = asyncio.get_running_loop().create_task(self._open(run, kinds))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def release(self, run: ServiceRun) -> None:
        """Close the ports of a deleted service: if no table has named them, none would close them."""
        held = {"http": run.port, "grpc": run.grpc_port}
        self._link.unlisten([f"127.0.0.1:{port}/{kind}" for kind, port in held.items() if port])

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _required(self, run: ServiceRun) -> Iterator[Kind]:
        if self._first and not run.deleting:
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
                _set_port(run, kind, port)
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


def _set_port(run: ServiceRun, kind: Kind, port: int) -> None:
    if kind == "http":
        run.port = port
    else:
        run.grpc_port = port

"""The ports that each service has of its own: the one that it had, else the next that is free.

Every service has one for HTTP. One for gRPC has only a service whose manifests send its requests to the predictor's
gRPC port (`protocolVersion: grpc-v2`): with the first such port the gateway imports grpcio, whose memory
nobody shall pay who does not use it.
"""

import asyncio
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Final, Literal

from pilotlight.contract import ENV_SETTINGS_PREFIX, GRPC_PORT
from pilotlight.targets.local.chronicle import Chronicle
from pilotlight.targets.local.gateway_link import GatewayLink
from pilotlight.targets.local.model import Container, ServiceSpec
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.store.store import Store

TRIED: Final = 50
SPAN: Final = 10_000
ENV_GRPC_PORT: Final = f"{ENV_SETTINGS_PREFIX}GRPC_PORT"

Kind = Literal["http", "grpc"]


class OwnPorts:
    """`first` is the lowest that may be taken; 0: services have none. `changed` hears of every port that is open."""

    def __init__(
        self, store: Store, link: GatewayLink, first: int, chronicle: Chronicle, changed: Callable[[], None]
    ) -> None:
        self._store, self._link, self._first = store, link, first
        self._chronicle, self._changed = chronicle, changed
        self._tasks: set[asyncio.Task[None]] = set()

    def remember(self, run: ServiceRun) -> None:
        """Before the first table: a port that it does not name the gateway would close."""
        for kind in self._wanted(run):
            _note(run, kind, self._next(run, kind))

    def open(self, run: ServiceRun) -> None:
        """Also when a release changes what a service needs: what it has already stays as it is."""
        wanted = list(self._wanted(run))
        if run.grpc_port and "grpc" not in wanted:
            run.grpc_port = 0
        if wanted:
            task = asyncio.get_running_loop().create_task(self._open(run, wanted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def give_up(self, run: ServiceRun) -> None:
        """Of a service that goes: no table may ever have named its ports, so none would close them."""
        held = {"http": run.port, "grpc": run.grpc_port}
        self._link.unlisten([f"127.0.0.1:{port}/{kind}" for kind, port in held.items() if port])

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _wanted(self, run: ServiceRun) -> Iterator[Kind]:
        if self._first and not run.deleting:
            yield "http"
            if serves_grpc(run.spec):
                yield "grpc"

    async def _open(self, run: ServiceRun, kinds: list[Kind]) -> None:
        for kind in kinds:
            await self._open_one(run, kind)

    async def _open_one(self, run: ServiceRun, kind: Kind) -> None:
        for attempt in range(TRIED):
            if kind not in self._wanted(run):
                return
            port = self._next(run, kind, attempt)
            if not await self._link.listen([f"127.0.0.1:{port}/{kind}"]):
                _note(run, kind, port)
                self._changed()
                if run.deleting:
                    self.give_up(run)
                return
            self._store.release_port(run.key, kind)
        message = f"no port from {self._first} on is free"
        self._chronicle.tell(run.key, f"Service/{run.key[1]}", "NoPort", message, "Warning")

    def _next(self, run: ServiceRun, kind: Kind, attempt: int = 0) -> int:
        return self._store.port(run.key, kind, range(self._first + attempt, self._first + SPAN))


def serves_grpc(spec: ServiceSpec) -> bool:
    """Whether its manifests send requests to a gRPC port, and whether anything here could pass them on."""
    entries = [spec.workload(name).revision.container for name, _ in spec.entry]
    return any(_on_grpc_port(container) for container in entries) and find_spec("grpc") is not None


def _on_grpc_port(container: Container) -> bool:
    return str(container.port) == container.env.get(ENV_GRPC_PORT, str(GRPC_PORT))


def _note(run: ServiceRun, kind: Kind, port: int) -> None:
    if kind == "http":
        run.port = port
    else:
        run.grpc_port = port

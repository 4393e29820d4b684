"""The gRPC port: started beside or after the first load, so that no cold start waits for it; drained at the end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from pilotlight_predictor.admission import Admission
from pilotlight_predictor.beside_requests import beside_requests
from pilotlight_predictor.logs import log
from pilotlight_predictor.rpc.port import HeldPort
from pilotlight_predictor.server import Server
from pilotlight_predictor.settings import Settings

if TYPE_CHECKING:
    from pilotlight_predictor.rpc.desk import Desk
    from pilotlight_predictor.rpc.service import Service
    from pilotlight_predictor.watch import CallWatch

    Spread = Callable[[tuple[Service, ...]], tuple[Service, ...]]
BACKLOG: Final = 4096
LOOK_S: Final = 0.01
MAX_MESSAGE: Final = (1 << 31) - 1
MIB: Final = 1 << 20


class RpcFront:
    def __init__(self, held: HeldPort, settings: Settings) -> None:
        self._held, self._settings = held, settings
        self._door: asyncio.Server | None = None
        self._desk: Desk | None = None

    async def start(
        self,
        server: Server,
        admission: Admission,
        watch: "Callable[[], CallWatch | None]",
        spread: "Spread | None" = None,
    ) -> None:
        """`spread` changes the rows of services where there are several workers."""
        services = await beside_requests(import_services)
        from pilotlight_predictor.rpc.connection import RpcConnection
        from pilotlight_predictor.rpc.descriptors import descriptors
        from pilotlight_predictor.rpc.desk import Desk

        desk = self._desk = Desk(server, admission, spread(services) if spread else services, watch)
        most = _max_message(self._settings)
        self._door = await asyncio.get_running_loop().create_server(
            lambda: RpcConnection(desk, most), sock=self._held.opened(), backlog=BACKLOG
        )
        log("grpc.listening", grpc_port=self._held.port, host=self._held.host)
        await beside_requests(descriptors)  # inferences need none of them; whatever else comes first reads them itself

    def in_flight(self) -> int:
        return 0 if self._desk is None else self._desk.in_flight

    async def drain(self, delay_s: float, timeout_s: float, hurry: asyncio.Event) -> bool:
        """As the HTTP front: takes calls for the delay, then finishes those in flight; False when time ended it."""
        if self._desk is None or self._door is None:
            return True
        await _wait(hurry, delay_s)
        self._door.close()
        self._desk.close()
        end = monotonic() + timeout_s
        while self._desk.connections and monotonic() < end and not hurry.is_set():
            await _wait(hurry, LOOK_S)
        finished = not self._desk.busy
        for connection in list(self._desk.connections):
            connection.close()
        return finished


def _max_message(settings: Settings) -> int:
    """A message beyond the budget of bytes in flight could never be served: it is refused by its length."""
    megabytes = settings.safeguards.max_request_size_mb
    largest = MAX_MESSAGE if megabytes is None else int(megabytes * MIB)
    return min(largest, settings.server.max_bytes_in_flight, MAX_MESSAGE)


def import_services() -> "tuple[Service, ...]":
    """In a thread: it takes two hundredths of a second."""
    from pilotlight_predictor.rpc import connection, desk, services  # noqa: F401

    return services()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)

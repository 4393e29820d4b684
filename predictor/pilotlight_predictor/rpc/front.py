"""The gRPC server: listens after or during the first load, so that a cold start does not wait for it, and drains."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from pilotlight_predictor.admission import Admission
from pilotlight_predictor.beside_requests import in_thread_under_load
from pilotlight_predictor.logs import log
from pilotlight_predictor.rpc.port import ReservedPort
from pilotlight_predictor.server import Server
from pilotlight_predictor.settings import Settings

if TYPE_CHECKING:
    from pilotlight_predictor.rpc.desk import GrpcDispatcher
    from pilotlight_predictor.rpc.service import Service
    from pilotlight_predictor.watch import RequestObserver

    Spread = Callable[[tuple[Service, ...]], tuple[Service, ...]]
BACKLOG: Final = 4096
POLL_S: Final = 0.01
MAX_MESSAGE: Final = (1 << 31) - 1
MIB: Final = 1 << 20


class GrpcServer:
    """Listener on the reserved gRPC port."""

    def __init__(self, held: ReservedPort, settings: Settings) -> None:
        self._port, self._settings = held, settings
        self._listener: asyncio.Server | None = None
        self._dispatcher: GrpcDispatcher | None = None

    async def start(
        self,
        server: Server,
        admission: Admission,
        watch: "Callable[[], RequestObserver | None]",
        spread: "Spread | None" = None,
    ) -> None:
        """Listen; `spread` replaces methods of the services where there are several workers."""
        services = await in_thread_under_load(import_services)
        from pilotlight_predictor.rpc.connection import GrpcConnection
        from pilotlight_predictor.rpc.descriptors import descriptors
        from pilotlight_predictor.rpc.desk import GrpcDispatcher

        desk = self._dispatcher = GrpcDispatcher(server, admission, spread(services) if spread else services, watch)
        most = _max_message(self._settings)
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: GrpcConnection(desk, most), sock=self._port.listening_socket(), backlog=BACKLOG
        )
        log("grpc.listening", grpc_port=self._port.port, host=self._port.host)
        await in_thread_under_load(descriptors)  # read ahead: needed by all methods but inference

    def in_flight(self) -> int:
        return 0 if self._dispatcher is None else self._dispatcher.in_flight

    async def drain(self, delay_s: float, timeout_s: float, abort: asyncio.Event) -> bool:
        """Accept calls for `delay_s`, then wait for those in flight; False if `timeout_s` or `abort` ended it."""
        if self._dispatcher is None or self._listener is None:
            return True
        await _wait(abort, delay_s)
        self._listener.close()
        self._dispatcher.close()
        end = monotonic() + timeout_s
        while self._dispatcher.connections and monotonic() < end and not abort.is_set():
            await _wait(abort, POLL_S)
        finished = not self._dispatcher.busy
        for connection in list(self._dispatcher.connections):
            connection.close()
        return finished


def _max_message(settings: Settings) -> int:
    """Return the size limit of a message: one beyond the budget of bytes in flight could never be served."""
    megabytes = settings.safeguards.max_request_size_mb
    largest = MAX_MESSAGE if megabytes is None else int(megabytes * MIB)
    return min(largest, settings.server.max_bytes_in_flight, MAX_MESSAGE)


def import_services() -> "tuple[Service, ...]":
    """Import the services; takes 20 ms, so it runs in a thread."""
    from pilotlight_predictor.rpc import connection, desk, services  # noqa: F401

    return services()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)

"""The gRPC port: started beside or after the first load, so that no cold start waits for grpcio; drained at the end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from pilotlight_predictor.admission import Admission
from pilotlight_predictor.logs import log
from pilotlight_predictor.rpc.port import HeldPort
from pilotlight_predictor.rpc.service import Service
from pilotlight_predictor.server import Server
from pilotlight_predictor.settings import Settings
from pilotlight_predictor.threads import in_thread
from pilotlight_predictor.watch import CallWatch

Spread = Callable[[tuple[Service, ...]], tuple[Service, ...]]
MAX_MESSAGE: Final = (1 << 31) - 1
MIB: Final = 1 << 20


class RpcFront:
    def __init__(self, held: HeldPort, settings: Settings) -> None:
        self._held, self._settings = held, settings
        self._server: Any = None
        self._desk: Any = None

    async def start(
        self, server: Server, admission: Admission, watch: Callable[[], CallWatch | None], spread: Spread | None = None
    ) -> None:
        """Does nothing where grpcio is not installed: who asked for the port was told so by the settings.

        `spread` changes the rows of services where there are several workers.
        """
        try:
            aio, desk, services = await in_thread(_import_all)
        except ImportError:
            self._held.holder.close()
            return
        self._desk = desk(server, admission, spread(services()) if spread else services(), watch)
        self._server = aio.server(handlers=(self._desk,), options=_options(self._settings))
        port = self._server.add_insecure_port(self._held.place)
        await self._server.start()
        self._held.holder.close()
        log("grpc.listening", grpc_port=port, host=self._held.host)

    def in_flight(self) -> int:
        return 0 if self._desk is None else int(self._desk.in_flight)

    async def drain(self, delay_s: float, timeout_s: float, hurry: asyncio.Event) -> bool:
        """As the HTTP front: takes calls for the delay, then finishes those in flight; False when time ended it."""
        if self._server is None:
            return True
        await _wait(hurry, delay_s)
        self._desk.closing.set()
        began = monotonic()
        stopping = asyncio.ensure_future(self._server.stop(timeout_s))
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not stopping.done():
            await self._server.stop(None)
            return False
        return monotonic() - began < timeout_s or timeout_s <= 0


def _options(settings: Settings) -> tuple[tuple[str, int], ...]:
    """A message beyond the budget of bytes in flight could never be served: grpcio refuses it by its length."""
    megabytes = settings.safeguards.max_request_size_mb
    largest = MAX_MESSAGE if megabytes is None else int(megabytes * MIB)
    return (
        ("grpc.max_receive_message_length", min(largest, settings.server.max_bytes_in_flight, MAX_MESSAGE)),
        ("grpc.max_send_message_length", MAX_MESSAGE),
        ("grpc.so_reuseport", 1),
    )


def _import_all() -> tuple[Any, Any, Any]:
    """In a thread: grpcio takes a tenth of a second."""
    import grpc.aio

    from pilotlight_predictor.rpc import services
    from pilotlight_predictor.rpc.descriptors import descriptors
    from pilotlight_predictor.rpc.desk import Desk

    descriptors()
    services()
    return grpc.aio, Desk, services


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)

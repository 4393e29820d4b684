"""The gateway process: data plane, listeners and reports, driven by messages of the control process.

Messages are processed in order, each answered before the next. `run` is the event loop of all long-lived processes.
"""

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import structs

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.control_link import (
    Applied,
    ControlMessage,
    ControlServer,
    Hello,
    Leaving,
    Lend,
    Listen,
    Publish,
    Report,
    SendReply,
    Sockets,
    Spent,
    Stop,
    build_id,
)
from pilotlight.gateway.listeners import Address, Listeners, Server
from pilotlight.gateway.metrics_and_reports import Metrics, Reporter, log
from pilotlight.gateway.proxy.data_plane import DataPlane, RouteKey
from pilotlight.gateway.request_logs import RequestLogs
from pilotlight.gateway.routing_table import Backend, Route
from pilotlight.wire.service_access import Refusal

if TYPE_CHECKING:
    from pilotlight.gateway.grpc_proxy import GrpcProxy
    from pilotlight.gateway.tls import GatewayTls

DRAIN_S: Final = 30.0  # after a signal
T = TypeVar("T")


class Gateway:
    """`folder` is the platform's home; `tls` is for listeners of kind https, and for gRPC."""

    def __init__(self, folder: Path, tls: "GatewayTls | None" = None) -> None:
        self._tls = tls
        self._messages: asyncio.Queue[tuple[ControlMessage, list[socket.socket], SendReply]] = asyncio.Queue()
        self._link = ControlServer(folder, self._hello, lambda *message: self._messages.put_nowait(message))
        self._logs = RequestLogs(folder / "audit", lambda problem: log("request.log", problem, level="WARNING"))
        self._metrics = Metrics(self._logs.families)
        self._admission = AccessAdmission(self._metrics.rejected)
        self._plane = DataPlane(self._link.send, self._link.send, self._admission)
        # Tokens first: logs have what the client gets.
        self._plane.observers += (self._metrics.tokens.observe, self._logs.observe)
        self._grpc: GrpcProxy | None = None
        self._listeners = Listeners(self._plane, self._start_grpc, tls.http.context if tls else None)
        self._metrics.tokens.reports = True
        self._metrics.tokens.on_spent = self._admission.spend
        self._reporter = Reporter(self._plane, self._metrics.add, self._send_report)
        self._plane.pages["metrics"] = self._metrics_page
        self._plane.loopback_pages = frozenset({"metrics"})  # it names every service
        self._stopping: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve until a signal or a Stop message."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate)
        await self._link.open()
        log("gateway.started", "waiting for the control process", pid=os.getpid(), version=build_id())
        processing = asyncio.create_task(self._process_messages())
        processing.add_done_callback(self._on_processing_failed)
        reloads = asyncio.create_task(self._tls.reload_forever()) if self._tls else None
        try:
            await self._drain(await self._stopping)
        finally:
            processing.cancel()
            if reloads is not None:
                reloads.cancel()
            self._link.release(disconnect=True)

    def _hello(self) -> Hello:
        return Hello(build_id(), os.getpid(), self._plane.generation, len(self._plane.routing.routes))

    def _send_report(self, report: Report) -> None:
        """Send a report; tokens are for the store, so they wait while no control process is connected."""
        if self._link.connected:
            tokens = self._metrics.tokens
            report = structs.replace(report, tokens=tokens.take_report(), token_queues=tokens.queues())
        self._link.send(report)

    async def _process_messages(self) -> None:
        while True:
            message, sockets, reply = await self._messages.get()
            match message:
                case Publish(table):
                    self._listeners.update(table)
                    self._logs.update(table)
                    self._plane.publish(table)
                    self._metrics.prune(table)
                    if self._grpc is not None:
                        self._grpc.update(table)
                    await self._listeners.start()
                    reply(Applied(table.generation, self._listeners.failed))
                case Listen():
                    await self._listeners.serve(message, sockets)
                    reply(Applied(self._plane.generation, self._listeners.failed))
                case Lend():
                    addresses, lent = self._listeners.lend()
                    reply(Sockets(addresses), lent)
                case Spent():
                    self._admission.restore(message)
                case Stop(drain_s):
                    self._stop(drain_s)

    def _on_processing_failed(self, task: "asyncio.Task[None]") -> None:
        """Exit on a defect, to be restarted, instead of ignoring further messages."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._stopping.done():
            self._stopping.set_exception(error)

    def _terminate(self) -> None:
        """Exit after a signal; until then a successor may start, and held requests still get new tables."""
        self._link.release(disconnect=False)
        self._link.send(Leaving())
        self._stop(DRAIN_S)

    def _stop(self, drain_s: float) -> None:
        if not self._stopping.done():
            self._stopping.set_result(drain_s)

    async def _drain(self, drain_s: float) -> None:
        """Finish requests in flight; connections not yet accepted wait for the successor."""
        self._listeners.close()
        self._link.release(disconnect=False)
        log("gateway.draining", f"finishing requests in flight, for {drain_s:g} s at most")
        await asyncio.gather(self._plane.drain(drain_s), *([self._grpc.drain(drain_s)] if self._grpc else []))
        self._reporter.report()
        self._reporter.close()
        await asyncio.to_thread(self._logs.close)
        log("gateway.ended", "no requests in flight")

    async def _start_grpc(self, address: Address, route: Callable[[], RouteKey]) -> Server:
        """Serve gRPC at an address; grpcio is imported for the first one."""
        from pilotlight.gateway.grpc_proxy import GrpcProxy

        if self._grpc is None:
            self._grpc = GrpcProxy(self._plane, self._admission, self._link.send, self._tls, self._audit_call)
        return await self._grpc.start(address, route)

    def _audit_call(
        self, route: Route, client: str | Refusal | None, headers: Mapping[str, str], method: str, status: int,
        backend: Backend | None = None,
    ) -> None:  # fmt: skip
        if route.audit:
            caller = client if isinstance(client, str) else ""
            identity = headers.get(HEADER_REQUEST_ID, "")
            self._logs.record(route, backend, caller, identity, f"gRPC {method}", status)

    def _metrics_page(self) -> tuple[int, str, bytes]:
        self._reporter.report()
        return self._metrics.page()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop if installed, with the hard limit of open files."""
    with suppress(ValueError, OSError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)

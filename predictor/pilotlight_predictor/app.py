"""The composition root: listens first, imports the rest, loads models, serves, drains.

Nothing heavy is imported at the top: the port answers "initializing" while numpy and the model's runtime load.
"""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pilotlight_predictor import microservice
from pilotlight_predictor.aot import early
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.front import BACKLOG, HttpFront
from pilotlight_predictor.lifecycle import Lifecycle, State
from pilotlight_predictor.logs import configure, log
from pilotlight_predictor.numpy_threads import one_thread
from pilotlight_predictor.settings import ServerSettings, Settings
from pilotlight_predictor.threads import in_thread, with_room

if TYPE_CHECKING:
    from pilotlight_predictor.assembly import Assembly
    from pilotlight_predictor.rpc.front import RpcFront
    from pilotlight_predictor.workers.seat import Seat


class Signals:
    """The first SIGTERM or SIGINT begins the drain; a second one ends it, for a person who will not wait."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


def run(settings: Settings, lifecycle: Lifecycle, seat: "Seat | None" = None) -> int:
    """Blocks until a signal has ended the server; the exit code. `seat`: this is one of several workers."""
    configure(settings.observability.log_level.upper(), settings.observability.log_format)  # type: ignore[arg-type]
    if seat is not None:
        seat.number_logs()
        return _runner()(_serve(settings, lifecycle, seat.http[0], seat.metrics, seat))
    for warning in settings.warnings:
        log("setting", warning, level="WARNING")
    server = settings.server
    try:
        listener = bind(server.host, server.http_port)
        metrics = bind(server.metrics_host or server.host, server.metrics_port) if server.metrics_port >= 0 else None
    except OSError as error:
        log("failed", f"cannot listen on {error}", level="ERROR")
        return 1
    return _runner()(_serve(settings, lifecycle, listener, metrics))


def _runner() -> Callable[[Coroutine[Any, Any, int]], int]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that listens: whoever connects from here on waits in its backlog instead of being refused.

    `shared`: one of several on the port, over which the kernel spreads connections.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = f"{error.strerror}; choose another with --http-port, --metrics-port or --http-address"
        raise OSError(f"{host}:{port}: {reason}") from None
    return listener


async def _serve(
    settings: Settings,
    lifecycle: Lifecycle,
    listener: socket.socket,
    metrics: socket.socket | None,
    seat: "Seat | None" = None,
) -> int:
    signals = Signals()
    front = HttpFront(lambda call: boot_reply(lifecycle, settings.server, call))
    await (front.listen(listener) if seat is None else seat.join(front, signals))
    lifecycle.finish_phase("listen", perf_counter())
    metrics_port = metrics.getsockname()[1] if metrics else -1
    log("listening", http_port=listener.getsockname()[1], metrics_port=metrics_port, host=settings.server.host)
    beside_torch = early.begin(settings.model)
    try:
        assembly = await _assemble(settings, lifecycle, signals.stop, seat, beside_torch)
    except PredictorError as error:  # a setting that shows to be wrong only now, such as a token file that is not there
        log("failed", str(error), level="ERROR")
        return 1
    work = None
    if assembly is not None:
        await assembly.open(front, metrics)
        work = asyncio.get_running_loop().create_task(assembly.work(signals.stop))
    await signals.stop.wait()
    failed = lifecycle.state is State.FAILED
    rpc = assembly.rpc if assembly is not None else None
    finished = await _drain(settings, lifecycle, (front,) if rpc is None else (front, rpc), signals.hurry)
    if work is not None:
        work.cancel()
    if assembly is not None and not signals.hurry.is_set():
        await assembly.close(free=finished)
    log("stopped", finished=finished, level="INFO" if finished else "WARNING")
    return 1 if failed or signals.hurry.is_set() else 0


async def _assemble(
    settings: Settings, lifecycle: Lifecycle, stop: asyncio.Event, seat: "Seat | None", beside_torch: bool
) -> "Assembly | None":
    """The imports take a tenth of a second, or more on a cold disk: in a thread, so that probes are answered and a
    signal is heard meanwhile. None when the server was told to stop first."""

    def heavy() -> type["Assembly"]:
        if beside_torch:
            early.libraries()
        with nullcontext() if beside_torch else one_thread():
            from pilotlight_predictor.assembly import Assembly

        return Assembly

    imported, stopped = in_thread(partial(with_room, heavy)), asyncio.ensure_future(stop.wait())
    both: set[asyncio.Future[Any]] = {imported, stopped}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not imported.done():
        return None
    assembly = imported.result()(settings, lifecycle, seat)
    lifecycle.finish_phase("import", perf_counter())
    return assembly


async def _drain(
    settings: Settings, lifecycle: Lifecycle, fronts: "Sequence[HttpFront | RpcFront]", hurry: asyncio.Event
) -> bool:
    """Unready at once, still taking requests for the drain delay; then finishes what is in flight, within a bound."""
    lifecycle.move(State.STOPPING, "the server is stopping")
    log("stopping", in_flight=sum(front.in_flight() for front in fronts), drain_delay_s=settings.server.drain_delay_s)
    server = settings.server
    drains = (front.drain(server.drain_delay_s, server.exit_timeout_s, hurry) for front in fronts)
    return all(await asyncio.gather(*drains))


def boot_reply(lifecycle: Lifecycle, server: ServerSettings, call: Call) -> Reply:
    """Before the routes are there: alive, not ready, come back in a second."""
    openai = microservice.boot_reply(lifecycle.state, lifecycle.reason, call.path, len(call.body), server.microservice)
    if openai is not None:
        return openai
    if call.path in {"/v2/health/live", "/api/health/live"}:
        return Reply(200, [b'{"live":true}'])
    why = {"reason": lifecycle.reason, "error": "initializing", "detail": "Model not loaded"}  # as dialects name it
    state = {"ready": False, "state": lifecycle.state.value, **why}
    status = 200 if call.path == "/status" else server.not_ready_status if call.path.endswith("/ready") else 503
    return Reply(status, [json.dumps(state).encode()], headers={"Retry-After": "1"})

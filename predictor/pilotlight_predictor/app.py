"""The composition root: listens first, imports the rest, loads models, serves, drains.

Nothing heavy is imported at the top: the port answers "initializing" while numpy and the model's runtime load.
"""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.front import HttpFront
from pilotlight_predictor.lifecycle import Lifecycle, State
from pilotlight_predictor.logs import configure, log
from pilotlight_predictor.settings import Settings
from pilotlight_predictor.threads import in_thread

if TYPE_CHECKING:
    from pilotlight_predictor.assembly import Assembly


def run(settings: Settings, lifecycle: Lifecycle) -> int:
    """Blocks until a signal has ended the server; the exit code."""
    configure(settings.observability.log_level.upper(), settings.observability.log_format)  # type: ignore[arg-type]
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


def bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, max(port, 0)))
    except OSError as error:
        listener.close()
        raise OSError(f"{host}:{port}: {error.strerror}; choose another with --http-port or --metrics-port") from None
    return listener


async def _serve(
    settings: Settings, lifecycle: Lifecycle, listener: socket.socket, metrics: socket.socket | None
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    front = HttpFront(lambda call: boot_reply(lifecycle, settings.server.not_ready_status, call))
    await front.listen(listener)
    lifecycle.finish_phase("listen")
    metrics_port = metrics.getsockname()[1] if metrics else -1
    log("listening", http_port=listener.getsockname()[1], metrics_port=metrics_port, host=settings.server.host)
    assembly = await _assemble(settings, lifecycle)
    await assembly.open(front, metrics)
    work = loop.create_task(assembly.work(stop))
    await stop.wait()
    return await _stop(settings, lifecycle, assembly, front, work)


async def _assemble(settings: Settings, lifecycle: Lifecycle) -> "Assembly":
    """The imports take a tenth of a second: in a thread, so that probes are answered meanwhile."""

    def heavy() -> type["Assembly"]:
        from pilotlight_predictor.assembly import Assembly

        return Assembly

    assembly = (await in_thread(heavy))(settings, lifecycle)
    lifecycle.finish_phase("import")
    return assembly


async def _stop(
    settings: Settings, lifecycle: Lifecycle, assembly: "Assembly", front: HttpFront, work: asyncio.Task[None]
) -> int:
    """Unready at once, still taking requests for the drain delay; then finishes what is in flight, within a bound."""
    failed = lifecycle.state is State.FAILED and settings.server.exit_on_error
    lifecycle.move(State.STOPPING, "the server is stopping")
    log("stopping", in_flight=front.in_flight(), drain_delay_s=settings.server.drain_delay_s)
    finished = await front.drain(settings.server.drain_delay_s, settings.server.exit_timeout_s)
    work.cancel()
    await assembly.close()
    log("stopped", finished=finished, level="INFO" if finished else "WARNING")
    return 1 if failed else 0


def boot_reply(lifecycle: Lifecycle, not_ready_status: int, call: Call) -> Reply:
    """Before the routes are there: alive, not ready, come back in a second."""
    if call.path == "/v2/health/live":
        return Reply(200, [b'{"live":true}'])
    state = {"ready": False, "state": lifecycle.state.value, "reason": lifecycle.reason, "error": "initializing"}
    status = 200 if call.path == "/status" else not_ready_status
    return Reply(status, [json.dumps(state).encode()], headers={"Retry-After": "1"})

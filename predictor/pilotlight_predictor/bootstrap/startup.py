"""Start of a predictor: listen first, then import the application, load models, serve, drain.

Nothing heavy is imported at module level: the port responds "initializing" while numpy and the runtime are imported.
"""

import asyncio
import gc
import json
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from time import CLOCK_BOOTTIME, clock_gettime, perf_counter
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.torch.aot import early_start
from pilotlight_predictor.config import ServerSettings, Settings, command_line
from pilotlight_predictor.core.threads import in_thread, single_blas_thread, with_deep_stack
from pilotlight_predictor.errors import LoadFailed, PredictorError
from pilotlight_predictor.frontends.http import startup_responses
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.server import HttpServer, bind, listening_message, port_number
from pilotlight_predictor.observability.logs import configure, log
from pilotlight_predictor.server.server_state import Lifecycle, ServerState

if TYPE_CHECKING:
    from pilotlight_predictor.bootstrap.application import Application
    from pilotlight_predictor.frontends.grpc.server import GrpcServer
    from pilotlight_predictor.frontends.tls import PortTls
    from pilotlight_predictor.workers.worker import WorkerProcess


ALL_ADDRESSES: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - to warn about them


class Signals:
    """Stop signals: the first SIGTERM or SIGINT starts the drain (`stop`), a second one aborts it (`abort`)."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.abort = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: (self.abort if self.stop.is_set() else self.stop).set())


def main(argv: list[str], entered: float) -> int:
    """Parse the command line and serve until a signal; return the exit code.

    `entered` is the perf_counter() at which Python code began to run: what came before is the interpreter's start.
    """
    lifecycle = Lifecycle(perf_counter() - seconds_since_exec(), entered)
    settings = command_line(argv, os.environ)
    try:
        _create_files_dir(settings)
        _enter_environment(settings)
    except PredictorError as error:
        log("failed", str(error), level="ERROR")
        return 1
    if settings.server.workers <= 1 and not settings.server.fronts:
        return run(settings, lifecycle)
    from pilotlight_predictor.workers.worker import from_environment

    gc.enable()
    worker = from_environment(os.environ)  # None in the process that supervises the workers
    if worker is not None:
        return run(settings, lifecycle, worker)
    from pilotlight_predictor.workers.supervisor import run as supervise

    if settings.server.fronts:
        from pilotlight_predictor.fronts.supervisor import FrontSupervisor

        return supervise(settings, argv, FrontSupervisor)
    return supervise(settings, argv)


def _create_files_dir(settings: Settings) -> None:
    logs = settings.observability
    try:
        os.makedirs(logs.files_dir or os.curdir, exist_ok=True)
    except OSError as error:
        configure(logs.log_level.upper(), logs.log_format, file=logs.log_file)  # type: ignore[arg-type]
        raise LoadFailed(f"files_dir = {logs.files_dir}, cannot be created: {error.strerror} (--files-dir)") from None


def _enter_environment(settings: Settings) -> None:
    """Execute this process in the environment of a local model; that of a fetched one is known later."""
    path = settings.model.path
    if settings.model.code and "://" not in path and (path.endswith(".py") or os.path.isdir(path)):
        from pilotlight_predictor.repository.environment import enter

        logs = settings.observability
        configure(logs.log_level.upper(), logs.log_format, file=logs.log_file)  # type: ignore[arg-type]
        enter(path, settings.model.cache_dir)


def seconds_since_exec() -> float:
    """Age of this process by the kernel's clock, which includes the interpreter's start; 0 if /proc is unreadable."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            start_ticks = int(stat.read().rpartition(b") ")[2].split()[19])
        return max(0.0, clock_gettime(CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0


def run(settings: Settings, lifecycle: Lifecycle, worker: "WorkerProcess | None" = None) -> int:
    """Serve until a signal; return the exit code. `worker`: this process is one of several workers."""
    logs = settings.observability
    configure(logs.log_level.upper(), logs.log_format, file=logs.log_file)  # type: ignore[arg-type]
    if worker is not None:
        worker.number_logs()
        return _runner()(_serve(settings, lifecycle, worker.http[0], worker.metrics, worker))
    server = settings.server
    for warning in (*settings.warnings, *exposure(server)):
        log("setting", warning, level="WARNING")
    try:
        listener = bind(server.host, server.http_port)
        metrics = bind(server.metrics_host or server.host, server.metrics_port) if server.metrics_port >= 0 else None
    except OSError as error:
        log("failed", f"cannot listen on {error}", level="ERROR")
        return 1
    return _runner()(_serve(settings, lifecycle, listener, metrics))


def exposure(server: ServerSettings) -> Iterator[str]:
    """Yield a warning if anyone who reaches the machine may use its models; in a pod, the platform decides that."""
    protected = server.api_token_file or server.access_file or server.tls_client_ca or server.behind_proxy
    if server.host in ALL_ADDRESSES and not protected:
        yield (
            f"server.host = {server.host}: everyone who reaches port {server.http_port} may use the models;"
            " set --host 127.0.0.1, or a token with --api-token-file"
        )


def _runner() -> Callable[[Coroutine[Any, Any, int]], int]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


async def _serve(
    settings: Settings,
    lifecycle: Lifecycle,
    listener: socket.socket,
    metrics: socket.socket | None,
    worker: "WorkerProcess | None" = None,
) -> int:
    signals = Signals()
    try:
        tls = open_tls(settings.server)
    except PredictorError as error:
        log("failed", str(error), level="ERROR")
        return 1
    http_server = HttpServer(
        lambda request: boot_response(lifecycle, settings.server, request), tls.http if tls else None
    )
    await (http_server.listen(listener) if worker is None else worker.join(http_server, signals))
    lifecycle.finish_phase("listen", perf_counter())
    role = "worker" if worker is None else worker.role
    if role != "models":
        _log_listening(settings.server, listener, metrics, tls)
    loads_torch = role != "front" and early_start.start(settings.model)
    try:
        application = await _assemble(settings, lifecycle, signals.stop, worker, loads_torch)
    except PredictorError as error:  # a setting that is checked only here, such as a missing token file
        log("failed", str(error), level="ERROR")
        return 1
    work = None
    if application is not None:
        await application.open(http_server, metrics, tls)
        work = asyncio.get_running_loop().create_task(application.work(signals.stop))
    await signals.stop.wait()
    failed = lifecycle.state is ServerState.FAILED
    rpc = application.rpc if application is not None else None
    # A worker knows only its own requests: if it dropped new connections while others drain, those to its sockets fail.
    idle = role == "models" or (worker is None and (application is None or application.is_idle()))
    servers = (http_server,) if rpc is None else (http_server, rpc)
    finished = await _drain(settings, lifecycle, servers, signals.abort, idle)
    if work is not None:
        work.cancel()
    if application is not None and not signals.abort.is_set():
        await application.close(free=finished)
    outcome = "all requests finished" if finished else "requests in flight were cut off"
    log("stopped", outcome, finished=finished, level="INFO" if finished else "WARNING")
    return 1 if failed or signals.abort.is_set() else 0


def _log_listening(
    server: ServerSettings, listener: socket.socket, metrics: socket.socket | None, tls: "PortTls | None"
) -> None:
    where = listening_message(listener, server.host, tls=tls is not None)
    metrics_port = port_number(metrics) if metrics else None
    log("listening", where, http_port=port_number(listener), metrics_port=metrics_port, host=server.host)


def open_tls(settings: ServerSettings) -> "PortTls | None":
    """Return the TLS of the ports, if it is configured: the module ssl takes 15 ms of a start."""
    if not (settings.tls_cert or settings.tls_key or settings.tls_client_ca):
        return None
    from pilotlight_predictor.frontends.tls import PortTls

    return PortTls(settings)


async def _assemble(
    settings: Settings, lifecycle: Lifecycle, stop: asyncio.Event, worker: "WorkerProcess | None", loads_torch: bool
) -> "Application | None":
    """Import and create the application. Return None if a signal came first.

    The imports take 0.1 s, or more from a cold disk: in a thread, so that probes and signals are handled.
    """

    def heavy() -> type["Application"]:
        if loads_torch:
            early_start.load_libraries()
        with nullcontext() if loads_torch else single_blas_thread():
            from pilotlight_predictor.bootstrap.application import Application

        return Application

    imported, stopped = in_thread(partial(with_deep_stack, heavy)), asyncio.ensure_future(stop.wait())
    both: set[asyncio.Future[Any]] = {imported, stopped}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not imported.done():
        return None
    application = imported.result()(settings, lifecycle, worker)
    lifecycle.finish_phase("import", perf_counter())
    return application


async def _drain(
    settings: Settings,
    lifecycle: Lifecycle,
    servers: "Sequence[HttpServer | GrpcServer]",
    abort: asyncio.Event,
    idle: bool,
) -> bool:
    """Become not ready, accept requests for the drain delay, then wait for those in flight, up to the exit timeout.

    An idle server has no drain delay: scaled to zero, it holds a GPU that the next replica may wait for.
    """
    lifecycle.move(ServerState.STOPPING, "the server is stopping")
    limits, in_flight = settings.server, sum(server.in_flight() for server in servers)
    delay_s = 0.0 if idle and not in_flight else limits.drain_delay_s
    log("stopping", f"{in_flight} requests in flight", in_flight=in_flight, drain_delay_s=delay_s)
    drains = (server.drain(delay_s, limits.exit_timeout_s, abort) for server in servers)
    return all(await asyncio.gather(*drains))


def boot_response(lifecycle: Lifecycle, server: ServerSettings, request: HttpRequest) -> HttpResponse:
    """Respond before the routes exist: alive, not ready, retry after a second."""
    openai = startup_responses.boot_response(
        lifecycle.state, lifecycle.reason, request.path, len(request.body), server.microservice
    )
    if openai is not None:
        return openai
    if request.path == "/" and "text/html" in request.header("accept") and not server.microservice:
        return HttpResponse(503, [startup_responses.BOOT_PAGE], "text/html; charset=utf-8", {"Retry-After": "1"})
    if request.path in {"/v2/health/live", "/api/health/live"}:
        return HttpResponse(200, [b'{"live":true}'])
    # Each protocol has its own key for the reason.
    reasons = {"reason": lifecycle.reason, "error": "initializing", "detail": "Model not loaded"}
    state = {"ready": False, "state": lifecycle.state.value, **reasons}
    status = 200 if request.path == "/status" else server.not_ready_status if request.path.endswith("/ready") else 503
    return HttpResponse(status, [json.dumps(state).encode()], headers={"Retry-After": "1"})

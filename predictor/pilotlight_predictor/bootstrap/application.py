"""Composition root: create the server's parts, load its models, and run background tasks."""

import asyncio
import faulthandler
import gc
import math
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final

from pilotlight.contract import ENV_SETTINGS_PREFIX
from pilotlight_predictor.backends.torch.aot import early_start
from pilotlight_predictor.config import Settings
from pilotlight_predictor.core.activity import Activity, is_idle, observe_activity, poll_interval_s
from pilotlight_predictor.core.threads import in_thread, in_thread_under_load
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.auth import Access
from pilotlight_predictor.frontends.grpc.server import GrpcServer, reserve_port
from pilotlight_predictor.frontends.http.router import Dispatcher, ServingProtocol
from pilotlight_predictor.frontends.http.server import HttpServer
from pilotlight_predictor.metrics import Metrics, identity_labels
from pilotlight_predictor.models.sources import ModelFetcher, ModelSources
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.protocols import serving_protocols, startup_protocols
from pilotlight_predictor.protocols.example_request import decode_example
from pilotlight_predictor.server.handler_context import Server
from pilotlight_predictor.server.server_state import Lifecycle, ServerState

if TYPE_CHECKING:
    from pilotlight.wire.request_log.sender import RequestLog
    from pilotlight.wire.request_log.settings import LogSettings
    from pilotlight_predictor.frontends.tls import PortTls
    from pilotlight_predictor.metrics.gpu_readings import GpuSampler
    from pilotlight_predictor.observability.tracing import Tracer
    from pilotlight_predictor.storage.progress_line import ProgressLine
    from pilotlight_predictor.storage.store_interface import Progress
    from pilotlight_predictor.workers.worker import WorkerProcess

FREE_S: Final = 5.0
FLUSH_S: Final = 5.0  # of the request log
RECOVERY_INTERVAL_S: Final = 0.5
WATCH_INTERVAL_S: Final = 1.0
GIL_MARGIN_S: Final = 10.0  # beyond the limit of other executions
GRPC_DELAY_S: Final = 3.0  # wait for the load to end before the import of gRPC's modules competes for the CPU
# Imports for later requests are delayed after the first load: the first request needs the CPU, for this server and for
# proxies that start at the same time.
FIRST_REQUEST_S: Final = 1.0
TRACES: Final = "OTEL_EXPORTER_"
NOT_OF: Final = {"front": ("GPU metrics", "watchdog", "polling", "parking"), "models": ("aiohttp", "activity")}
PREDICTOR_VARIABLE: Final = f"{ENV_SETTINGS_PREFIX}PREDICTOR_HOST"


class Application:
    """The server of one process. `worker`: this process is one of several workers."""

    def __init__(self, settings: Settings, lifecycle: Lifecycle, worker: "WorkerProcess | None" = None) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._worker = worker
        self._activity: Activity | None = None
        self._progress_line: ProgressLine | None = None
        if settings.model.predictor_host:  # user code reads the variable, wherever the setting comes from
            os.environ[PREDICTOR_VARIABLE] = settings.model.predictor_host
        metrics = Metrics(identity_labels(settings.observability))
        self._fetcher = ModelFetcher(settings.model.cache_dir, self._progress, settings.model.pins)
        sources = ModelSources(settings, self._fetcher.model, self._fetcher.repository)
        self.server = Server(settings, lifecycle, sources, metrics, decode_example)
        buckets = worker.buckets if worker is not None else None
        budget = settings.server.max_bytes_in_flight // (settings.server.fronts + 1)
        self._admission = Admission(Access(settings.server), self.server.limits, budget, buckets)
        self.server.hold, self.server.registry.budget = self._admission.hold, self._admission
        self.server.may_read = lambda caller: self._admission.may_read(caller.headers, caller.peer)
        self._dispatcher = self._create_dispatcher(self._apply_limits(startup_protocols()), self._all_protocols)
        self._http_servers: list[HttpServer] = []
        self._tls: PortTls | None = None
        self._role = role = worker.role if worker is not None else "worker"
        inherited = worker.grpc if worker is not None else None
        port = reserve_port(settings.server, inherited) if role != "models" else None
        self.rpc = GrpcServer(port, settings) if port is not None else None
        self._tracer: Tracer | None = None
        self._request_log: RequestLog | None = None
        self._gpus: GpuSampler | None = None

    def _create_dispatcher(
        self, table: tuple[ServingProtocol, ...], all_protocols: Callable[[], tuple[ServingProtocol, ...]] | None = None
    ) -> Dispatcher:
        """With several workers, requests that concern all of them are fanned out."""
        if self._worker is None:
            return Dispatcher(self.server, table, self._admission, all_protocols)
        fan_out = self._worker.fan_out
        return Dispatcher(
            self.server, fan_out(table), self._admission, all_protocols and (lambda: fan_out(all_protocols()))
        )

    def _all_protocols(self) -> tuple[ServingProtocol, ...]:
        return self._apply_limits(serving_protocols())

    def _apply_limits(self, table: tuple[ServingProtocol, ...]) -> tuple[ServingProtocol, ...]:
        for protocol in table:
            if protocol.limits is not None:
                self._admission.set_limits(protocol.name, protocol.limits(self._settings))
        return table

    async def _join_models(self) -> None:
        """Connect with the models in the other process, or open the models of this one to the fronts."""
        worker = self._worker
        assert worker is not None
        if self._role == "front":
            from pilotlight_predictor.fronts.front import follow_models

            await follow_models(worker, self.server, self._admission.limit)
        else:
            from pilotlight_predictor.fronts.model_endpoint import serve_models

            serve_models(worker, self.server)

    async def open(self, http_server: HttpServer, metrics: socket.socket | None, tls: "PortTls | None" = None) -> None:
        """Open all routes; a second port serves only the metrics."""
        self._tls = tls
        if tls is not None and self.rpc is not None:
            self.rpc.tls = tls.grpc
        http_server.open(self._dispatcher)
        self._http_servers.append(http_server)
        if metrics is not None:
            from pilotlight_predictor.protocols import status_and_metrics

            metrics_server = HttpServer(lambda call: status_and_metrics.metrics(self.server, call))
            metrics_server.open(self._create_dispatcher((status_and_metrics.PROTOCOL,)))
            await metrics_server.listen(metrics)
            self._http_servers.append(metrics_server)
        if self._role == "models":
            await self._join_models()
        if self._worker is not None:
            plain = Dispatcher(self.server, startup_protocols(), self._admission, self._all_protocols)
            self._worker.open(self.server, plain, self._http_servers[1:])

    async def work(self, stop: asyncio.Event) -> None:
        """Load the required models, then run the background tasks. A failed start may end the process."""
        settings = self._settings.observability
        # observability/tracing.py reads these variables.
        traced = settings.otel_endpoint or any(name.startswith(TRACES) for name in os.environ)
        observe = [_log_and_continue("traces", self._observe_requests)] if settings.access_log or traced else []
        if settings.request_log is not None:
            self._log_requests(settings.request_log)
        observed = asyncio.gather(*observe)
        loading = asyncio.ensure_future(self._load(observed))
        loading.add_done_callback(lambda _: gc.enable())
        await asyncio.gather(loading, observed, _log_and_continue("gRPC", lambda: self._serve_rpc(loading)))
        if self._lifecycle.state is ServerState.FAILED and self._settings.server.exit_on_error:
            stop.set()
            return
        tasks = {
            "aiohttp": self._import_aiohttp,
            "GPU metrics": self._sample_gpus,
            "healing": self._recover,
            "watchdog": lambda: self._watch_instances(stop),
            "polling": self.server.control.poll_forever,
            "parking": self.server.registry.parking.park_idle_models,
            "activity": self._watch_activity,
        }
        for name in NOT_OF.get(self._role, ()):
            del tasks[name]
        if self._tls is not None:
            tasks["certificates"] = self._tls.reload_forever
        await asyncio.gather(*(_log_and_continue(name, task) for name, task in tasks.items()))

    async def _load(self, observed: Awaitable[object]) -> None:
        """Load the models; not ready before `observed`, so that every request is in the access log and traced."""
        lifecycle, server = self._lifecycle, self.server
        lifecycle.move(ServerState.LOADING)
        gc.freeze()
        try:
            await (self._join_models() if self._role == "front" else server.control.start())
        except Exception as error:
            self._fail(str(error))
            return
        await observed
        early_start.discard_unused()
        loads = server.metrics.loads.values()
        if self.rpc is not None and self._worker is None:
            self.rpc.accept_into_backlog()
        lifecycle.record_loads(server.control.fetch_s, self._fetcher.import_s, loads, perf_counter())
        lifecycle.move(ServerState.READY)
        self._freeze_garbage_collector()
        readiness = server.readiness()
        if not readiness.ready:
            self._fail(readiness.reason)
            return
        phases = {name: round(seconds, 4) for name, seconds in lifecycle.phases.items()}
        models = [name for name in server.registry.names() if server.registry.is_ready(name)]
        served = f"model {models[0]}" if len(models) == 1 else f"{len(models)} models"
        log("ready", f"{served} in {phases['total']:.3f} s", phases=phases, models=models[:20])

    def _fail(self, reason: str) -> None:
        """Fail the start; the process stays up by default, so that /status can report the reason."""
        self._lifecycle.move(ServerState.FAILED, reason)
        advice = "" if self._settings.server.exit_on_error else "; /status has it too (--exit-on-error exits)"
        log("failed", reason + advice, level="ERROR")

    def _freeze_garbage_collector(self) -> None:
        """Exclude loaded objects from garbage collection, and make that rarer.

        Objects of the loads are collected once, since user code may leave much garbage. The server's own modules are
        frozen before: collecting them would take 20 ms, a tenth of a fast start.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)

    async def _serve_rpc(self, loading: "asyncio.Future[None]") -> None:
        """Start gRPC after the models, or after a delay, so that a long load is reported over gRPC too."""
        if self.rpc is not None:
            await asyncio.wait({loading}, timeout=GRPC_DELAY_S)
            reached = self._settings.server.reached_port
            if reached and reached == self._settings.server.http_port:
                await asyncio.sleep(FIRST_REQUEST_S)  # clients reach only the HTTP port: gRPC is not urgent
            fan_out = None
            if self._worker is not None:
                await self._worker.sockets_assigned.wait()
                fan_out = self._worker.fan_out_services
            await self._load_all_protocols()
            await self.rpc.start(self.server, self._admission, lambda: self._dispatcher.observer, fan_out)

    async def _import_aiohttp(self) -> None:
        await asyncio.sleep(FIRST_REQUEST_S)
        await self._load_all_protocols()
        await self._http_servers[0].import_aiohttp()
        gc.freeze()  # without a collection, which would delay requests to free half a megabyte

    async def _load_all_protocols(self) -> None:
        await in_thread_under_load(serving_protocols)
        self._dispatcher.load_all_protocols()

    async def _sample_gpus(self) -> None:
        if not self._settings.observability.gpu_metrics:
            return
        await asyncio.sleep(FIRST_REQUEST_S)
        from pilotlight_predictor.metrics.gpu_readings import GpuSampler

        self._gpus = GpuSampler(self._settings.observability.metrics_interval_ms / 1000)
        self._gpus.start()
        self.server.metrics.gpus = self._gpus.latest

    async def _observe_requests(self) -> None:
        """Enable access log and spans; OpenTelemetry's SDK is imported only if a collector is configured."""
        from pilotlight_predictor.frontends.http.access_log import RequestObserver
        from pilotlight_predictor.observability.tracing import open_tracer

        settings = self._settings.observability
        service = settings.service or "pilotlight"
        self._tracer = await in_thread(lambda: open_tracer(os.environ, service, settings.otel_endpoint))
        observer = RequestObserver(settings.access_log, self._tracer)
        self._dispatcher.observer = observer if observer.enabled else None

    def _log_requests(self, settings: "LogSettings") -> None:
        from pilotlight.wire.request_log.sender import RequestLog
        from pilotlight_predictor.frontends.http.request_log import RequestLogger

        self._request_log = RequestLog(settings, lambda problem: log("request.log", problem, level="WARNING"))
        self.server.metrics.log_counts = self._request_log.counts
        self._dispatcher.request_logger = RequestLogger(self._request_log, self._settings.observability.revision)

    async def _recover(self) -> None:
        """Become ready after a failed start once a poll or an operator has loaded the missing models."""
        while True:
            await asyncio.sleep(RECOVERY_INTERVAL_S)
            if self.server.recover():
                log("ready", "models that failed at startup are loaded")

    async def _watch_activity(self) -> None:
        while after_s := self._settings.server.drain_delay_s:
            self.is_idle()
            await asyncio.sleep(poll_interval_s(after_s))

    def is_idle(self) -> bool:
        """Return whether no inference came for as long as the drain delay: none is about to come."""
        metrics, now = self.server.metrics, monotonic()
        counted = sum(sum(histogram.counts) for histogram in metrics.requests.values())
        self._activity = observe_activity(self._activity, counted, metrics.in_flight > 0, now)
        return is_idle(self._activity, self._settings.server.drain_delay_s, now)

    async def _watch_instances(self, stop: asyncio.Event) -> None:
        """End the process once an execution hangs: only a new one is rid of it. Requests of other instances finish."""
        limit_s, registry, given_up = self._settings.performance.hung_after_s, self.server.registry, ""
        if not limit_s:
            return
        try:
            while not given_up:
                # A model that holds the GIL stops this loop too; then a thread in C writes all stacks and ends the
                # process.
                if registry.loading:  # unpickling and imports may hold the GIL for long
                    faulthandler.cancel_dump_traceback_later()
                else:
                    faulthandler.dump_traceback_later(limit_s + GIL_MARGIN_S, exit=True)
                await asyncio.sleep(WATCH_INTERVAL_S)
                given_up = registry.give_up_hung(math.ceil(limit_s / WATCH_INTERVAL_S))
        finally:
            faulthandler.cancel_dump_traceback_later()  # a drain may take longer than the limit
        self._lifecycle.move(ServerState.FAILED, given_up)
        log("failed", f"{given_up}; the server exits so that it is restarted", level="ERROR")
        stop.set()

    def _progress(self, progress: "Progress") -> None:
        self.server.progress = {"done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes}
        if sys.stderr.isatty() and self._worker is None:
            from pilotlight_predictor.storage import progress_line

            self._progress_line = self._progress_line or progress_line.ProgressLine(True, monotonic())
            self._progress_line(progress)

    async def close(self, *, free: bool = True) -> None:
        """Release resources. `free`: also free the models, within a time limit."""
        self.server.control.close()
        if self._tracer is not None:
            await in_thread(self._tracer.close)
        if (request_log := self._request_log) is not None:
            await in_thread(lambda: request_log.close(FLUSH_S))
        if self._gpus is not None:
            await in_thread(self._gpus.stop)
        for http_server in self._http_servers[1:]:
            await http_server.drain(0, 1)
        if not free:
            return
        try:
            await asyncio.wait_for(self.server.registry.close(), FREE_S)
        except TimeoutError:
            log("abandoned", f"a model was not freed within {FREE_S:g} s", level="WARNING")


async def _log_and_continue(name: str, start: Callable[[], Awaitable[None]]) -> None:
    """Run a background task; its failure is logged and affects nothing else.

    `start` is called here, so that a server that stops now leaves no coroutine that was never awaited.
    """
    try:
        await start()
    except Exception as error:
        log("failed", f"{name} failed and stops: {error}", level="ERROR", error=error)

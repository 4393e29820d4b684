"""Puts the server together once heavy modules may be imported, loads its models and keeps it running."""

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

from pilotlight.contract import ENV_SETTINGS_PREFIX
from pilotlight_predictor.access import Access
from pilotlight_predictor.admission import Admission
from pilotlight_predictor.aot import early
from pilotlight_predictor.beside_requests import beside_requests
from pilotlight_predictor.bringing import Bringing
from pilotlight_predictor.dispatch import Dialect, Dispatcher
from pilotlight_predictor.front import HttpFront
from pilotlight_predictor.lifecycle import Lifecycle, State
from pilotlight_predictor.logs import log
from pilotlight_predictor.metrics import Metrics, identity_labels
from pilotlight_predictor.routes import dialects, first_dialects
from pilotlight_predictor.rpc.front import RpcFront
from pilotlight_predictor.rpc.port import hold
from pilotlight_predictor.server import Server
from pilotlight_predictor.settings import Settings
from pilotlight_predictor.sources import Sources
from pilotlight_predictor.threads import in_thread

if TYPE_CHECKING:
    from pilotlight_predictor.gpu import GpuSampler
    from pilotlight_predictor.storage import Progress
    from pilotlight_predictor.tracing import Tracer
    from pilotlight_predictor.workers.seat import Seat

FREE_S: Final = 5.0
HEAL_S: Final = 0.5
RPC_PATIENCE_S: Final = 3.0  # for a load to end, before gRPC's modules take a share of its processor
# After the first load the processor is the first request's, which waits for this server and for the proxies that start
# beside it. What is imported for later requests waits so long, unless one of those comes.
FIRST_REQUEST_S: Final = 1.0
TRACES: Final = "OTEL_EXPORTER_"
PREDICTOR_VARIABLE: Final = f"{ENV_SETTINGS_PREFIX}PREDICTOR_HOST"


class Assembly:
    def __init__(self, settings: Settings, lifecycle: Lifecycle, seat: "Seat | None" = None) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._seat = seat
        if settings.model.predictor_host:  # by whichever way it was told, user code finds it in one place
            os.environ[PREDICTOR_VARIABLE] = settings.model.predictor_host
        metrics = Metrics(identity_labels(settings.observability))
        self._bringing = Bringing(settings.model.cache_dir, self._progress)
        sources = Sources(settings, self._bringing.model, self._bringing.repository)
        self.server = Server(settings, lifecycle, sources, metrics)
        budget = settings.server.max_bytes_in_flight
        self._admission = Admission(Access(settings.server), self.server.limits, budget)
        self._dispatcher = self._routes(self._held_to_limits(first_dialects()), self._all_dialects)
        self._fronts: list[HttpFront] = []
        held = hold(settings.server)
        self.rpc = RpcFront(held, settings) if held is not None else None
        self._tracer: Tracer | None = None
        self._gpus: GpuSampler | None = None

    def _routes(self, table: tuple[Dialect, ...], whole: Callable[[], tuple[Dialect, ...]] | None = None) -> Dispatcher:
        """With several workers, calls that concern all of them ask all of them."""
        if self._seat is None:
            return Dispatcher(self.server, table, self._admission, whole)
        spread = self._seat.spread
        return Dispatcher(self.server, spread(table), self._admission, whole and (lambda: spread(whole())))

    def _all_dialects(self) -> tuple[Dialect, ...]:
        return self._held_to_limits(dialects())

    def _held_to_limits(self, table: tuple[Dialect, ...]) -> tuple[Dialect, ...]:
        for dialect in table:
            if dialect.limits is not None:
                self._admission.hold(dialect.name, dialect.limits(self._settings))
        return table

    async def open(self, front: HttpFront, metrics: socket.socket | None) -> None:
        """From here on every route answers; a second port serves the metrics alone."""
        front.open(self._dispatcher)
        self._fronts.append(front)
        if metrics is not None:
            from pilotlight_predictor.routes import status

            alone = HttpFront(lambda call: status.metrics(self.server, call))
            alone.open(self._routes((status.DIALECT,)))
            await alone.listen(metrics)
            self._fronts.append(alone)
        if self._seat is not None:
            plain = Dispatcher(self.server, first_dialects(), self._admission, self._all_dialects)
            self._seat.open(self.server, plain, self._fronts[1:])

    async def work(self, stop: asyncio.Event) -> None:
        """Loads what is required, then follows the repository; a start that fails may end the process."""
        told = self._settings.observability
        traced = told.otel_endpoint or any(name.startswith(TRACES) for name in os.environ)  # tracing.py reads them
        watching = [self._watch_calls] if told.access_log or traced else []
        watched = asyncio.gather(*(_survived("traces", duty) for duty in watching))
        loading = asyncio.ensure_future(self._load(watched))
        loading.add_done_callback(lambda _: gc.enable())
        await asyncio.gather(loading, watched, _survived("gRPC", lambda: self._serve_rpc(loading)))
        if self._lifecycle.state is State.FAILED and self._settings.server.exit_on_error:
            stop.set()
            return
        duties = {
            "aiohttp": self._prepare_full,
            "GPU metrics": self._watch_gpus,
            "healing": self._watch_health,
            "polling": self.server.control.follow,
            "parking": self.server.registry.parking.follow,
        }
        await asyncio.gather(*(_survived(name, duty) for name, duty in duties.items()))

    async def _load(self, watched: Awaitable[object]) -> None:
        """Who asks when it is ready is `watched`: in the access log, and traced."""
        lifecycle, server = self._lifecycle, self.server
        lifecycle.move(State.LOADING)
        gc.freeze()
        try:
            await server.control.start()
        except Exception as error:
            self._fail(str(error))
            return
        await watched
        early.forget()
        loads = server.metrics.loads.values()
        lifecycle.note_loads(server.control.fetch_s, self._bringing.import_s, loads, perf_counter())
        lifecycle.move(State.READY)
        self._settle_memory()
        verdict = server.readiness()
        if verdict.ready:
            self._tell_ready()
        else:
            self._fail(verdict.reason)

    def _fail(self, reason: str) -> None:
        """Stays up unless told otherwise: a process that is gone tells nobody why."""
        self._lifecycle.move(State.FAILED, reason)
        ending = self._settings.server.exit_on_error
        log(
            "failed",
            reason if ending else f"{reason}; /status tells it too (--exit-on-error ends instead)",
            level="ERROR",
        )

    def _tell_ready(self) -> None:
        phases = {name: round(seconds, 4) for name, seconds in self._lifecycle.phases.items()}
        models = [name for name in self.server.registry.names() if self.server.registry.is_ready(name)]
        log("ready", f"ready {phases['total']:.3f} s after exec", phases=phases, models=models[:20])

    def _settle_memory(self) -> None:
        """What is loaded now stays: the collector need not walk it, nor run as often.

        It walks once what the loads made, since user code may leave much behind. The server's own modules, which were
        there before, would take it 20 ms, a tenth of a quick start.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)

    async def _serve_rpc(self, loading: "asyncio.Future[None]") -> None:
        """Not before the models: a quick load has the machine for itself, a long one is told of over gRPC too."""
        if self.rpc is not None:
            await asyncio.wait({loading}, timeout=RPC_PATIENCE_S)
            reached = self._settings.server.reached_port
            if reached and reached == self._settings.server.http_port:
                await asyncio.sleep(FIRST_REQUEST_S)  # nobody can ask over gRPC yet
            spread = None
            if self._seat is not None:
                await self._seat.taken.wait()
                spread = self._seat.spread_services
            await self._speak_all()
            await self.rpc.start(self.server, self._admission, lambda: self._dispatcher.watch, spread)

    async def _prepare_full(self) -> None:
        await asyncio.sleep(FIRST_REQUEST_S)
        await self._speak_all()
        await self._fronts[0].prepare_full()
        gc.freeze()  # without a walk: no request waits for the half megabyte that it would free

    async def _speak_all(self) -> None:
        await beside_requests(dialects)
        self._dispatcher.complete()

    async def _watch_gpus(self) -> None:
        if not self._settings.observability.gpu_metrics:
            return
        await asyncio.sleep(FIRST_REQUEST_S)
        from pilotlight_predictor.gpu import GpuSampler

        self._gpus = GpuSampler(self._settings.observability.metrics_interval_ms / 1000)
        self._gpus.start()
        self.server.metrics.gpus = self._gpus.latest

    async def _watch_calls(self) -> None:
        """Access log and spans; OpenTelemetry's SDK is imported only when a collector is named."""
        from pilotlight_predictor.tracing import open_tracer
        from pilotlight_predictor.watch import CallWatch

        told = self._settings.observability
        service = told.service or "pilotlight"
        self._tracer = await in_thread(lambda: open_tracer(os.environ, service, told.otel_endpoint))
        watch = CallWatch(told.access_log, self._tracer)
        self._dispatcher.watch = watch if watch.wanted else None

    async def _watch_health(self) -> None:
        """A start that failed may heal: a poll or an operator's load brings the missing model."""
        while True:
            await asyncio.sleep(HEAL_S)
            if self.server.heal():
                log("ready", "ready: what was missing at start has come")

    def _progress(self, progress: "Progress") -> None:
        self.server.progress = {"done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes}

    async def close(self, *, free: bool = True) -> None:
        """`free` waits a bounded while for models to be freed and for user code to finalise."""
        self.server.control.close()
        if self._tracer is not None:
            await in_thread(self._tracer.close)
        if self._gpus is not None:
            await in_thread(self._gpus.stop)
        for front in self._fronts[1:]:
            await front.drain(0, 1)
        if not free:
            return
        try:
            await asyncio.wait_for(self.server.registry.close(), FREE_S)
        except TimeoutError:
            log("abandoned", f"a model was not done and freed within {FREE_S:g} s", level="WARNING")


async def _survived(name: str, duty: Callable[[], Awaitable[None]]) -> None:
    """One duty that fails is told and given up; the others and the requests go on.

    It is called here, so that a server that ends at this moment leaves none that was begun and never awaited.
    """
    try:
        await duty()
    except Exception as error:
        log("failed", f"{name} is given up: {error}", level="ERROR", error=error)

"""Worker side of `--workers`: the worker's number, inherited sockets, and the channel to the supervisor.

The worker accepts only from the sockets that the supervisor assigns, and reports when it becomes ready, unready, or
stops, so that its sockets are assigned to others.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Hashable, MutableMapping, Sequence
from contextlib import suppress
from mmap import mmap
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol
from zlib import crc32

from pilotlight.wire.token_bucket import TokenBuckets
from pilotlight_predictor.frontends.tasks_and_timeouts import spawn
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.workers.parent_channel import Frame, ParentChannel

if TYPE_CHECKING:
    from pilotlight_predictor.frontends.grpc.dispatcher import Service
    from pilotlight_predictor.frontends.http.router import Dispatcher, ServingProtocol
    from pilotlight_predictor.frontends.http.server import HttpServer
    from pilotlight_predictor.repository.model_config import ModelConfig
    from pilotlight_predictor.server.handler_context import Server

VARIABLE: Final = "PILOTLIGHT_WORKER"  # role,number,descriptors…: -1 for none
SOON_S: Final = 0.02  # readiness poll interval while not ready
LATER_S: Final = 0.25  # and while ready
RETRY_S: Final = 1.0  # before another attempt to listen


_BUCKET: Final = Struct("dd")  # tokens left, and when
BUCKETS_BYTES: Final = _BUCKET.size << 20  # sparse: only the pages of clients take memory


class SharedTokenBuckets(TokenBuckets):
    """Rate limit buckets of all workers, without a lock; clients with the same CRC-32 modulo 2^20 share one."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._memory = mmap(descriptor, BUCKETS_BYTES)

    def acquire(self, client: Hashable, capacity: float, per_second: float, now: float) -> float:
        offset = crc32(str(client).encode()) * _BUCKET.size % BUCKETS_BYTES
        left, then = _BUCKET.unpack_from(self._memory, offset)
        self._buckets[client] = (left, then) if then else (capacity, now)
        wait_s = super().acquire(client, capacity, per_second, now)
        _BUCKET.pack_into(self._memory, offset, *self._buckets.pop(client))
        return wait_s


class StopSignals(Protocol):
    stop: asyncio.Event
    abort: asyncio.Event


class WorkerProcess:
    """This process as one of several workers."""

    def __init__(
        self,
        number: int,
        channel_socket: socket.socket,
        metrics: socket.socket | None,
        http: list[socket.socket],
        grpc: socket.socket | None = None,
        buckets: TokenBuckets | None = None,
        hello: socket.socket | None = None,
        role: str = "worker",
    ):
        self.number = number
        self.role = role  # worker, front or models: the process that the fronts pass requests to
        self.buckets = buckets
        self.metrics = metrics
        self.grpc = grpc  # of a `unix:` host, else each worker binds its own
        self.http = http
        self.hello = hello  # of a front, and of the model process: where fronts give it their memory
        self._socket = channel_socket
        self._channel: ParentChannel | None = None
        self._http_servers: list[HttpServer] = []
        self._signals: StopSignals | None = None
        self.sockets_assigned = asyncio.Event()  # it is ready, or no worker is
        self._orders: asyncio.Queue[Frame] = asyncio.Queue()
        self._newest: Frame | None = None
        self.models = b""  # of a front: the last catalogue of the model process
        self.on_models: Callable[[bytes], None] = lambda catalogue: None

    def number_logs(self) -> None:
        """Add the worker's number to every log record of this process."""
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._add_number)

    def _add_number(self, record: logging.LogRecord) -> bool:
        record.fields = {**getattr(record, "fields", {}), self.role: self.number}
        return True

    async def join(self, http_server: "HttpServer", signals: StopSignals) -> None:
        """Connect to the supervisor, before anything heavy is imported: the first worker responds "initializing"."""
        self._signals = signals
        self._add(http_server)
        orders = {"listen": self._listen, "stop": self._stop, "hurry": self._hurry, "models": self._models_changed}
        self._channel = ParentChannel(orders, lost=self._supervisor_lost)
        await self._channel.connect(self._socket)
        spawn(self._apply_orders(http_server))
        spawn(self._report_stop(signals))

    def _add(self, http_server: "HttpServer") -> None:
        http_server.others_accept = True
        self._http_servers.append(http_server)

    def fan_out(self, protocols: "tuple[ServingProtocol, ...]") -> "tuple[ServingProtocol, ...]":
        from pilotlight_predictor.workers.fanout import fan_out

        assert self._channel is not None
        return fan_out(protocols, self._channel, fronts=self.role != "worker")

    def fan_out_services(self, services: "tuple[Service, ...]") -> "tuple[Service, ...]":
        from pilotlight_predictor.workers.fanout import fan_out_services

        assert self._channel is not None
        return fan_out_services(services, self._channel, fronts=self.role != "worker")

    def open(self, server: "Server", dispatcher: "Dispatcher", http_servers: "Sequence[HttpServer]") -> None:
        """Serve the supervisor's requests; `http_servers` has that of the metrics, whose socket all workers share."""
        assert self._channel is not None
        for http_server in http_servers:
            self._add(http_server)
        self._channel.serve(dispatcher)
        spawn(self._report_readiness(server))

    async def _report_readiness(self, server: "Server") -> None:
        """Report each change of readiness to the supervisor."""
        ready = False
        while True:
            if server.readiness().ready != ready:
                ready = not ready
                self._send("ready", ready=ready)
                if ready and self.number == 0 and self.role == "worker":
                    warn_about_gpu_copies(server)
            await asyncio.sleep(LATER_S if ready else SOON_S)

    def _send(self, kind: str, **fields: Any) -> None:
        assert self._channel is not None
        self._channel.send_message(kind, **fields)

    def _models_changed(self, frame: Frame) -> None:
        self.models = frame.body
        self.on_models(frame.body)

    def publish_models(self, publish: Callable[[], None]) -> None:
        """Call `publish` before each answer to a call of the supervisor: the fronts know what it did."""
        assert self._channel is not None
        self._channel.before_answer = publish

    def send_models(self, catalogue: bytes, ready: bool) -> None:
        assert self._channel is not None
        self._channel.send(Frame({"kind": "models", "ready": ready}, catalogue))

    async def wait_for_fronts(self) -> None:
        """Return once every front has the models that were sent."""
        from pilotlight_predictor.workers.fanout import forward

        assert self._channel is not None
        await forward(self._channel, "sync", "POST", "/v2/repository/index")

    def _listen(self, frame: Frame) -> None:
        self._orders.put_nowait(frame)
        self._newest = frame
        if frame.head["sockets"]:
            self.sockets_assigned.set()

    async def _apply_orders(self, http_server: "HttpServer") -> None:
        """Apply listen orders one at a time, since listening is asynchronous; of queued orders, only the newest."""
        while True:
            orders = [await self._orders.get()]
            while not self._orders.empty():
                orders.append(self._orders.get_nowait())
            try:
                for number, listener in enumerate(self.http):
                    if number in orders[-1].head["sockets"]:
                        await http_server.listen(listener)
                    else:
                        http_server.stop_accepting(listener)
                self._send("listens", order=orders[-1].head["order"])
            except OSError as error:  # such as EMFILE
                log("worker.listen", f"cannot listen: {error.strerror}", level="ERROR")
                spawn(self._retry(orders[-1]))
            for _ in orders:
                self._orders.task_done()

    async def _retry(self, order: Frame) -> None:
        await asyncio.sleep(RETRY_S)
        if self._newest is order:
            self._orders.put_nowait(order)

    async def _report_stop(self, signals: StopSignals) -> None:
        """Report that this worker alone was stopped by a signal: its sockets are assigned to others."""
        await signals.stop.wait()
        self._send("leaving")

    def _stop(self, _: Frame) -> None:
        """Stop together with all workers: each must accept the connections in the backlog of its sockets."""
        for http_server in self._http_servers:
            http_server.others_accept = False
        spawn(self._stop_listening())

    async def _stop_listening(self) -> None:
        """Start draining after the listen orders that came before."""
        assert self._signals is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._orders.join(), RETRY_S)
        self._signals.stop.set()

    def _hurry(self, _: Frame) -> None:
        assert self._signals is not None
        self._signals.abort.set()

    def _supervisor_lost(self) -> None:
        assert self._signals is not None
        if not self._signals.stop.is_set():
            log("orphaned", "the parent of the workers exited: this worker drains and exits", level="ERROR")
            self._stop(Frame({"kind": "stop"}))


def from_environment(environ: MutableMapping[str, str]) -> WorkerProcess | None:
    """Return the worker described by the environment, if any; the variable is removed, for child processes."""
    value = environ.pop(VARIABLE, "")
    if not value:
        return None
    role, *numbers = value.split(",")
    number, buckets, *descriptors = map(int, numbers)
    for descriptor in (buckets, *descriptors):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    link, metrics, grpc, hello, *http = (socket.socket(fileno=one) if one >= 0 else None for one in descriptors)
    assert link is not None
    shared = SharedTokenBuckets(buckets)
    return WorkerProcess(number, link, metrics, [one for one in http if one is not None], grpc, shared, hello, role)


def warn_about_gpu_copies(server: "Server") -> None:
    on_gpu = sorted({served.name for served in server.registry.serving() if _on_gpu(server, served.config)})
    if on_gpu:
        message = "every worker holds its own copy of these models on the GPU; use --workers 1 for one copy"
        log("workers.gpu", message, level="WARNING", models=on_gpu[:20], workers=server.settings.server.workers)


def _on_gpu(server: "Server", config: "ModelConfig") -> bool:
    from pilotlight_predictor.backends.device_placement import gpu_count, instance_devices

    if config.ensemble or not (gpus := gpu_count()):
        return False
    return any(
        device.kind == "cuda" for device in instance_devices(config.instance_groups, server.settings.model.device, gpus)
    )

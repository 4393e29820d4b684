"""What a worker is given by its parent: its number, the sockets it may accept from, and the link.

The worker takes connections only from the sockets that it is told to; it tells when it is ready, is so no more, or
leaves, and the parent gives its sockets to others. `app` and `assembly` know a `Seat` where there is one.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, MutableMapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from pilotlight_predictor.logs import log
from pilotlight_predictor.workers.frames import Frame

if TYPE_CHECKING:
    from pilotlight_predictor.dispatch import Dialect, Dispatcher
    from pilotlight_predictor.front import HttpFront
    from pilotlight_predictor.repository.model_config import ModelConfig
    from pilotlight_predictor.rpc.service import Service
    from pilotlight_predictor.server import Server
    from pilotlight_predictor.workers.link import Link

VARIABLE: Final = "PILOTLIGHT_WORKER"  # number,link,metrics,http,http…: descriptors, -1 for none
SOON_S: Final = 0.02  # how often a worker that is not ready looks whether it is
LATER_S: Final = 0.25
AGAIN_S: Final = 1.0  # before it tries again to listen where it could not


class Ending(Protocol):
    stop: asyncio.Event
    hurry: asyncio.Event


class Seat:
    def __init__(self, number: int, end: socket.socket, metrics: socket.socket | None, http: list[socket.socket]):
        self.number = number
        self.metrics = metrics
        self.http = http
        self._end = end
        self._link: Link | None = None
        self._fronts: list[HttpFront] = []
        self._ending: Ending | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.taken = asyncio.Event()  # it was given a socket: it is ready, or there is nobody else
        self._wanted: asyncio.Queue[Frame] = asyncio.Queue()
        self._newest: Frame | None = None

    def number_logs(self) -> None:
        """Every line of this process, whoever logs it, says which worker it is of."""
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._number)

    def _number(self, record: logging.LogRecord) -> bool:
        record.fields = {**getattr(record, "fields", {}), "worker": self.number}
        return True

    async def join(self, front: "HttpFront", ending: Ending) -> None:
        """Before anything heavy is imported: the first worker answers "initializing" when it is told to listen."""
        from pilotlight_predictor.workers.link import Link

        self._ending = ending
        self._add(front)
        orders = {"listen": self._listen, "stop": self._stop, "hurry": self._hurry}
        self._link = Link(orders, lost=self._orphaned)
        await self._link.connect(self._end)
        self._spawn(self._follow(front))
        self._spawn(self._leave(ending))

    def _add(self, front: "HttpFront") -> None:
        front.others_accept = True
        self._fronts.append(front)

    def spread(self, dialects: "tuple[Dialect, ...]") -> "tuple[Dialect, ...]":
        from pilotlight_predictor.workers.spread import spread

        assert self._link is not None
        return spread(dialects, self._link)

    def spread_services(self, services: "tuple[Service, ...]") -> "tuple[Service, ...]":
        from pilotlight_predictor.workers.spread_rpc import spread_services

        assert self._link is not None
        return spread_services(services, self._link)

    def open(self, server: "Server", plain: "Dispatcher", also: "Sequence[HttpFront]") -> None:
        """`plain` answers the parent; `also` is the front of the metrics port, whose socket all workers share."""
        assert self._link is not None
        for front in also:
            self._add(front)
        self._link.serve(plain)
        self._spawn(self._watch(server))

    async def _watch(self, server: "Server") -> None:
        """Tells the parent whenever this worker becomes ready or is so no more."""
        ready = False
        while True:
            if server.readiness().ready != ready:
                ready = not ready
                self._tell("ready", ready=ready)
                if ready and self.number == 0:
                    warn_of_gpus(server)
            await asyncio.sleep(LATER_S if ready else SOON_S)

    def _tell(self, kind: str, **told: Any) -> None:
        assert self._link is not None
        self._link.tell(kind, **told)

    def _listen(self, frame: Frame) -> None:
        self._wanted.put_nowait(frame)
        self._newest = frame
        if frame.head["sockets"]:
            self.taken.set()

    async def _follow(self, front: "HttpFront") -> None:
        """One order after the other, for listening takes turns of the loop; only the newest of those that wait."""
        while True:
            orders = [await self._wanted.get()]
            while not self._wanted.empty():
                orders.append(self._wanted.get_nowait())
            try:
                await self._obey(front, orders[-1])
            except OSError as error:  # no descriptor is left, perhaps: others may have what this one lacks
                log("worker.listen", f"cannot listen: {error.strerror}", level="ERROR")
                self._spawn(self._again(orders[-1]))
            for _ in orders:
                self._wanted.task_done()

    async def _obey(self, front: "HttpFront", order: Frame) -> None:
        for number, listener in enumerate(self.http):
            if number in order.head["sockets"]:
                await front.listen(listener)
            else:
                front.leave(listener)
        self._tell("listens", order=order.head["order"])

    async def _again(self, order: Frame) -> None:
        await asyncio.sleep(AGAIN_S)
        if self._newest is order:
            self._wanted.put_nowait(order)

    async def _leave(self, ending: Ending) -> None:
        """Told to stop alone, by a signal: the others get the sockets, and nobody notices."""
        await ending.stop.wait()
        self._tell("leaving")

    def _stop(self, _: Frame) -> None:
        """All stop together, so that each must see to those who wait in its sockets."""
        for front in self._fronts:
            front.others_accept = False
        self._spawn(self._stop_listening())

    async def _stop_listening(self) -> None:
        """After the orders that came before: who drains takes no socket any more."""
        assert self._ending is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.join(), AGAIN_S)
        self._ending.stop.set()

    def _hurry(self, _: Frame) -> None:
        assert self._ending is not None
        self._ending.hurry.set()

    def _orphaned(self) -> None:
        assert self._ending is not None
        if not self._ending.stop.is_set():
            log("orphaned", "the parent of the workers has gone: this one finishes and ends", level="ERROR")
            self._stop(Frame({"kind": "stop"}))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def inherited(environ: MutableMapping[str, str]) -> Seat | None:
    """The seat that the parent left in the environment; it is taken out, for it is no child process's."""
    given = environ.pop(VARIABLE, "")
    if not given:
        return None
    number, end, metrics, *http = map(int, given.split(","))
    for descriptor in (end, metrics, *http):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    sockets = [socket.socket(fileno=descriptor) for descriptor in http]
    return Seat(number, socket.socket(fileno=end), socket.socket(fileno=metrics) if metrics >= 0 else None, sockets)


def warn_of_gpus(server: "Server") -> None:
    on_gpu = sorted({served.name for served in server.registry.serving() if _on_gpu(server, served.config)})
    if on_gpu:
        message = "every worker holds its own copy of these models on the GPU; --workers 1 holds one"
        log("workers.gpu", message, level="WARNING", models=on_gpu[:20], workers=server.settings.server.workers)


def _on_gpu(server: "Server", config: "ModelConfig") -> bool:
    from pilotlight_predictor.devices import gpu_count, place

    if config.ensemble or not (gpus := gpu_count()):
        return False
    return any(device.kind == "cuda" for device in place(config.instance_groups, server.settings.model.device, gpus))

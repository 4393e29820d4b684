"""The model process's side: accepts fronts, submits their requests to the models' executors, and sends the answers."""

import asyncio
import os
import socket
from functools import partial
from typing import Final

from pilotlight_predictor.core.requests import Outputs, OutputsWithParameters
from pilotlight_predictor.core.threads import limit_switch_interval
from pilotlight_predictor.frontends.tasks_and_timeouts import spawn
from pilotlight_predictor.fronts import messages
from pilotlight_predictor.fronts.catalogue import Publisher
from pilotlight_predictor.fronts.link import Link, accept
from pilotlight_predictor.fronts.messages import Answer, Cancel, Message, Pause, Place, Release, Submit, Welcome
from pilotlight_predictor.models.registry import ModelRegistry
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.scheduling.executor_interface import Executor
from pilotlight_predictor.scheduling.queue import QueuedRequest
from pilotlight_predictor.server.handler_context import Server
from pilotlight_predictor.workers.worker import WorkerProcess

PUBLISH_S: Final = 0.05  # between two looks for changes that no call has made, such as an idle model that parked
Running = dict[int, tuple[Executor, QueuedRequest]]


class ModelEndpoint:
    """Endpoint of all fronts. On the event loop."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self._running: dict[Link, Running] = {}

    def listen(self, hello: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(hello, lambda: spawn(self._accept(hello)))

    async def _accept(self, hello: socket.socket) -> None:
        link = await accept(hello, self._receive, self._lost)
        if link is not None:
            self._running[link] = {}
            link.send(Welcome(os.getpid()))

    def _lost(self, link: Link) -> None:
        """Cancel the requests of a front that exited."""
        running = self._running.pop(link, {})
        link.unsent.clear()
        for executor, item in list(running.values()):
            executor.cancel(item)
        if running:
            log("front.lost", f"{len(running)} of its requests are cancelled", level="WARNING", requests=len(running))

    def _receive(self, link: Link, message: Message) -> None:
        if isinstance(message, Submit):
            try:
                self._submit(link, message)
            except Exception as error:
                link.send(messages.failure_of(message.number, True, error))
        elif isinstance(message, Release):
            link.release(message.offset)
        elif isinstance(message, Cancel | Pause) and (running := self._running[link].get(message.number)) is not None:
            executor, item = running
            if isinstance(message, Cancel):
                executor.cancel(item)
            else:
                executor.pause(item, message.paused)

    def _submit(self, link: Link, message: Submit) -> None:
        served = self._registry.find(message.model, message.version)
        tensors = messages.tensors_of(message.inputs or (), link.other)
        request = messages.request_of(message, tensors)
        rows, signature = message.rows, message.signature
        if message.loaded != served.loaded and request.document is None:
            rows, signature = served.check(request)  # the front validated it for the load before
        number = message.number
        item = QueuedRequest(request, partial(self._answer, link, number, final=True), rows, signature)
        if message.streams and served.decoupled:
            item.part = partial(self._answer, link, number)
        running = self._running[link]
        running[number] = (served.executor, item)
        try:
            served.executor.submit(item)
        except Exception:
            del running[number]
            raise

    def _answer(self, link: Link, number: int, answer: Outputs | Exception, final: bool) -> None:
        running = self._running.get(link)
        if running is None:
            return
        if final:
            running.pop(number, None)
        if isinstance(answer, Exception):
            link.send_tensors(number, lambda _, __: messages.failure_of(number, final, answer), None)
            return
        extra = (answer.parameters, answer.layout) if isinstance(answer, OutputsWithParameters) else (None, None)

        def build(places: list[Place], block: int) -> Answer:
            return Answer(number, final, places, extra[0], block, extra[1])

        try:
            link.send_tensors(number, build, answer)
        except Exception as error:  # such as a parameter that has no encoding
            log("answer.lost", f"answer {number} cannot be sent", level="ERROR", error=error)
            if final:
                link.send(messages.failure_of(number, True, error))


def serve_models(worker: WorkerProcess, server: Server) -> None:
    """Accept fronts, and keep them informed of the models."""
    assert worker.hello is not None
    limit_switch_interval()
    ModelEndpoint(server.registry).listen(worker.hello)
    publisher = Publisher(server, worker.send_models)
    worker.publish_models(publisher.publish)

    async def announce() -> None:
        publisher.publish()
        await worker.wait_for_fronts()

    async def publish_forever() -> None:
        while True:
            publisher.publish()
            await asyncio.sleep(PUBLISH_S)

    server.registry.bls.announce = announce
    spawn(publish_forever())

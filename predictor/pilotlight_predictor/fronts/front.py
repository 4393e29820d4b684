"""A front's side of `--fronts`: its registry follows the models of the model process, and passes requests to it."""

import asyncio

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.fronts.catalogue import STARTING, Mirror
from pilotlight_predictor.fronts.remote_executor import ModelLink
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.server.handler_context import Server
from pilotlight_predictor.workers.worker import WorkerProcess


async def follow_models(worker: WorkerProcess, server: Server, memory: int) -> None:
    """Connect with the model process and wait until it has loaded its models. Raise LoadFailed if it could not start.

    From then on this front's models are those of the model process, whenever they change.
    """
    assert worker.hello is not None
    metrics, limit = server.metrics, server.settings.performance.max_queue_size
    metrics.model_states = tuple  # the model process reports them
    link = ModelLink(worker.hello, memory, limit)
    mirror, loaded = Mirror(server, link), asyncio.get_running_loop().create_future()

    def apply(catalogue: bytes) -> None:
        try:
            if mirror.apply(catalogue) not in STARTING and not loaded.done():
                loaded.set_result(None)
        except LoadFailed as error:
            if loaded.done():
                log("models.failed", f"the model process serves nothing: {error}", level="ERROR")
            else:
                loaded.set_exception(error)

    await link.connect()
    worker.on_models = apply
    if worker.models:
        apply(worker.models)
    await loaded
    await link.ready.wait()

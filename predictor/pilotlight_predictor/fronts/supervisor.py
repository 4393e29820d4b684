"""Supervisor of `--fronts`: that of workers, with fronts that take the connections and one process with the models.

Calls that load, unload, park or change models go to the model process alone; before their response, every front has
got the new catalogue. Fronts stop first, so that the model process answers what they still have.
"""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from pilotlight_predictor.config import Settings
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.workers.aggregation import NO_WORKER
from pilotlight_predictor.workers.model_control import INDEX
from pilotlight_predictor.workers.parent_channel import Frame, WorkerResponse
from pilotlight_predictor.workers.supervisor import WorkerSupervisor
from pilotlight_predictor.workers.worker_handle import WorkerHandle, request_all, start

OF_MODELS: Final = frozenset({"load", "unload", "park", "wake", "adapters", "models"})
SYNCED: Final = WorkerResponse(200, b"{}")
SYNC: Final = Frame({"method": "POST", "path": INDEX, "query": "", "headers": {}})


class FrontSupervisor(WorkerSupervisor):
    """Parent process of the fronts, numbered from 0, and of the model process, which has the last number."""

    def __init__(
        self, settings: Settings, argv: Sequence[str], http: list[socket.socket], metrics: socket.socket | None,
        rpc: socket.socket | None,
    ) -> None:  # fmt: skip
        super().__init__(settings, argv, http, metrics, rpc)
        self._models_number = len(http)
        self._catalogue: Frame | None = None  # the last that the fronts got
        self._held: Frame | None = None
        self._behind = False  # a new model process has yet to repeat the calls of operators
        self._adapters: dict[str, Frame] = {}  # name → the call that loaded it
        # Datagrams wait here while there is no model process, as the supervisor has both ends.
        self._hello = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    @property
    def processes(self) -> int:
        return self._models_number + 1

    @property
    def _model_process(self) -> WorkerHandle | None:
        return self._workers.get(self._models_number)

    def accepting(self, workers: Mapping[int, WorkerHandle]) -> Mapping[int, WorkerHandle]:
        return {number: worker for number, worker in workers.items() if number != self._models_number}

    async def start(self, number: int) -> tuple[WorkerHandle, asyncio.StreamReader]:
        fronts, models = self._hello
        if number == self._models_number:
            self._behind, self._held = self._restarts[number] > 0, None
            return await start(number, self._argv, self._buckets, None, None, self._http, models, "models")
        front = (self._buckets, self._metrics, self._rpc, self._http, fronts, "front")
        worker, reader = await start(number, self._argv, *front)
        if self._catalogue is not None:
            worker.send(self._catalogue)
        return worker, reader

    async def stop(self, runs: "Sequence[asyncio.Task[None]]") -> None:
        for worker in self.accepting(self._workers).values():
            worker.send_message("stop")
        ended = asyncio.ensure_future(self._stop_models(runs))
        await self._wait_for_exit(runs)
        ended.cancel()

    async def _stop_models(self, runs: "Sequence[asyncio.Task[None]]") -> None:
        await asyncio.wait(runs[: self._models_number])
        if self._model_process is not None:
            self._model_process.send_message("stop")

    def _handle_frame(self, worker: WorkerHandle, frame: Frame) -> None:
        if frame.kind != "models":
            super()._handle_frame(worker, frame)
            return
        if self._behind and frame.head["ready"]:  # with the models of the start alone
            self._held = frame
        else:
            self._publish(frame)

    def _publish(self, catalogue: Frame) -> None:
        self._catalogue = catalogue
        for front in self.accepting(self._workers).values():
            front.send(catalogue)

    async def _admit(self, worker: WorkerHandle) -> None:
        if worker.number == self._models_number and self._behind:
            if not await self._catch_up(worker):
                worker.kill()
                return
            self._behind = False
            if self._held is not None:
                self._publish(self._held)
        if worker.well:
            self._accept(worker)

    async def _catch_up(self, worker: WorkerHandle) -> bool:
        """Repeat the calls of operators in a new model process; return False if a model cannot be loaded.

        An adapter that cannot be loaded is missing, as its own error says; the models serve without it.
        """
        if self._settings.model.control_mode == "explicit" and not await self._admin.catch_up(worker, ()):
            return False
        for name, call in self._adapters.items():
            response = await worker.request(call) or NO_WORKER
            if response.status != 200:
                message = f"adapter '{name}' is missing: {response.body.decode(errors='replace')[:500]}"
                log("adapters.behind", message, level="ERROR", adapter=name)
        return True

    async def _fan_out(self, origin: WorkerHandle, request: Frame) -> None:
        how = request.head["how"]
        if how not in OF_MODELS and how != "sync":
            await super()._fan_out(origin, request)
            return
        response = SYNCED if how == "sync" else await self._change_models(request)
        await request_all([front for front in self.accepting(self._workers).values() if front.joined], SYNC)
        origin.send(response.frame("answered", request.head["id"]))

    async def _change_models(self, request: Frame) -> WorkerResponse:
        process = self._model_process
        if process is None or not process.joined:
            return NO_WORKER
        how = request.head["how"]
        if how == "load":
            return await self._admin.load([process], request)
        if how == "unload":
            return await self._admin.unload([process], request)
        response = await process.request(request) or NO_WORKER
        if how == "adapters" and response.status == 200:
            name = json.loads(request.body)["lora_name"]
            if request.head["path"].endswith("/unload_lora_adapter"):
                self._adapters.pop(name, None)
            else:
                self._adapters[name] = request
        return response

    def _merge(self, how: str, workers: Sequence[WorkerHandle], responses: dict[int, WorkerResponse]) -> WorkerResponse:
        of_models = responses.get(self._models_number)
        if of_models is None or of_models.status != 200 or how not in ("index", "status"):
            return super()._merge(how, workers, responses)
        if how == "index":
            return of_models
        merged = super()._merge(how, workers, responses)
        document, own = json.loads(merged.body), json.loads(of_models.body)
        # Responses are counted by the fronts; states and all before the first of them are the model process's.
        failures = {(row["name"], row.get("version")): row.get("unverified_failures") for row in document["models"]}
        for row in own["models"]:
            if "verified" in row:
                row["unverified_failures"] = failures.get((row["name"], row["version"])) or 0
        total = document["phases"].get("total")
        phases = own["phases"] | ({} if total is None else {"total": total})
        document |= {"models": own["models"], "progress": own["progress"], "phases": phases}
        return merged._replace(body=json.dumps(document, separators=(",", ":")).encode())

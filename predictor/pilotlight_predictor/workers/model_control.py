"""Load, unload, park and wake in all workers: loads succeed in all of them or are rolled back.

A load is tried in one worker first, so that a model that cannot be loaded does not disturb the others. A new worker
loads what the others serve before it takes connections; this and loads are serialized.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.workers.aggregation import NO_WORKER, first_failure
from pilotlight_predictor.workers.parent_channel import Frame, WorkerResponse
from pilotlight_predictor.workers.supervisor_policy import missing_models
from pilotlight_predictor.workers.worker_handle import ANSWER_S, WorkerHandle

DIED: Final = WorkerResponse(503, b'{"error":"a worker died over the call"}', headers={"Retry-After": "1"})
INDEX: Final = "/v2/repository/index"


class WorkerAdmin:
    """Coordinator of administrative requests; remembers loads, to repeat them in new workers."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loads: dict[str, bytes | None] = {}  # model → the body of its last load, None once unloaded

    async def unload(self, workers: Sequence[WorkerHandle], request: Frame) -> WorkerResponse:
        async with self._lock:
            response = first_failure(await _request_each(workers, request))
            if response.status == 200:
                self._loads[request.head["model"]] = None
            return response

    async def park_or_wake(self, workers: Sequence[WorkerHandle], request: Frame) -> WorkerResponse:
        """Park or wake a model in all workers; return the first failure. A wake does not wait for loads."""
        return first_failure(await _request_each(workers, request))

    async def load(self, workers: Sequence[WorkerHandle], request: Frame) -> WorkerResponse:
        """Load a model in all workers, or in none and return the error."""
        async with self._lock:
            if not workers:
                return NO_WORKER
            first, *rest = workers
            model = request.head["model"]
            served = model in (await _serving(first) or ())
            response = first_failure(await _request_each([first], request))
            if response.status != 200:
                return response
            responses = await _request_each(rest, request)
            failed = first_failure(responses) if rest else response
            if failed.status == 200:
                self._loads[model] = request.body
                return response
            loaded = [first, *(worker for worker, one in zip(rest, responses, strict=True) if one.status == 200)]
            log("workers.rollback", f"'{model}' did not load in every worker", level="ERROR", model=model)
            last_load = _model_request(model, "load", self._loads.get(model) or b"")
            await _request_each(loaded, last_load if served else _model_request(model, "unload"))
            document: dict[str, Any] = json.loads(failed.body)
            number = rest[[one.status == 200 for one in responses].index(False)].number
            document["error"] = f"{document['error']} (in worker {number}; the other workers were rolled back)"
            return failed._replace(body=json.dumps(document).encode())

    async def catch_up(self, new_worker: WorkerHandle, others: Sequence[WorkerHandle]) -> bool:
        """Make a new worker serve what the others do; return whether it does."""
        async with self._lock:
            own = await _serving(new_worker)
            if own is None:
                return False
            theirs: set[str] | None = None
            for other in others:
                with suppress(TimeoutError):
                    theirs = await asyncio.wait_for(_serving(other), ANSWER_S)
                if theirs is not None:
                    break
            difference = missing_models(own, theirs, self._loads)
            requests = [_model_request(model, "load", self._loads.get(model) or b"") for model in difference.load]
            requests += [_model_request(model, "unload") for model in difference.unload]
            for request in requests:
                response = first_failure(await _request_each([new_worker], request))
                if response.status != 200:
                    message = response.body.decode(errors="replace")[:500]
                    number = new_worker.number
                    log("workers.behind", f"worker {number} is out of sync with the others: {message}", level="ERROR")
                    return False
            return True


async def _request_each(workers: Sequence[WorkerHandle], request: Frame) -> list[WorkerResponse]:
    responses = await asyncio.gather(*(worker.request(request) for worker in workers))
    return [response or DIED for response in responses]


async def _serving(worker: WorkerHandle) -> set[str] | None:
    """Return the ready models of a worker; None if it has exited."""
    response = await worker.request(_frame(INDEX, b'{"ready":true}'))
    if response is None or response.status != 200:
        return None
    return {row["name"] for row in json.loads(response.body)}


def _model_request(model: str, verb: str, body: bytes = b"") -> Frame:
    return _frame(f"/v2/repository/models/{quote(model, safe='')}/{verb}", body)


def _frame(path: str, body: bytes) -> Frame:
    return Frame({"method": "POST", "path": path, "query": "", "headers": {}}, body)

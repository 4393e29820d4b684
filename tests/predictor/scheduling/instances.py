"""Small instances that tests steer, and items to send them."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.eventually import eventually_async

from pilotlight_predictor.backends.base import Answer, TensorInstance
from pilotlight_predictor.core.requests import InferRequest, Inputs, Outputs
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.repository.model_config import DynamicBatching
from pilotlight_predictor.scheduling.batching import BatchPolicy
from pilotlight_predictor.scheduling.queue import QueuedRequest, RequestQueue
from pilotlight_predictor.scheduling.scheduler import Scheduler

PATIENCE_S = 60.0


class Echo(TensorInstance):
    """y = x. Notes the rows of every execution and refuses negative numbers; `gate` holds it until it is set."""

    def __init__(self, gate: threading.Event | None = None, quick: bool = False) -> None:
        self.quick = quick
        self._gate = gate
        self.executed: list[int] = []
        self.entered = threading.Event()
        self.closed_in: str = ""

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        self.executed.append(sum(len(request.inputs["x"].array) for request in batch))
        self.entered.set()
        if self._gate is not None:
            assert self._gate.wait(PATIENCE_S)
        return super().execute(batch)

    def run(self, inputs: Inputs) -> Outputs:
        array = inputs["x"].array
        if (array < 0).any():
            raise ValueError("negative")
        return {"y": Tensor("FP32", array)}

    def close(self) -> None:
        self.closed_in = threading.current_thread().name


class Exiting(Echo):
    """Dies of its first execution."""

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        super().execute(batch)
        raise SystemExit(3)


class Asked:
    """Sends items to a scheduler and keeps what came back, in the order in which it came."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.order: list[str] = []
        self.answers: dict[str, Any] = {}
        self.items: dict[str, QueuedRequest] = {}

    def __call__(self, name: str, *values: float, **fields: Any) -> QueuedRequest:
        array = np.array(values or (1.0,), dtype="f4").reshape(-1, 1)
        request = InferRequest("m", {"x": Tensor("FP32", array)}, id=name, **fields)
        item = self.items[name] = QueuedRequest(request, lambda answer: self._came(name, answer), rows=len(array))
        self.scheduler.submit(item)
        return item

    def _came(self, name: str, answer: Any) -> None:
        assert name not in self.answers, "answered twice"
        self.order.append(name)
        self.answers[name] = answer

    def values(self, name: str) -> list[float]:
        return list(self.answers[name]["y"].array.ravel())

    async def all(self) -> None:
        await eventually_async(lambda: len(self.answers) == len(self.items))


def scheduler(
    *instances: TensorInstance,
    max_rows: int = 0,
    batching: DynamicBatching | None = None,
    bound: int = 1024,
    delay_us: int = 0,
    preferred: Sequence[int] = (),
    **fields: Any,
) -> Scheduler:
    policy = BatchPolicy(max_rows, frozenset(preferred), delay_us * 1000)
    return Scheduler(instances, policy, RequestQueue(batching, bound), ModelStats("m", 1), **fields)

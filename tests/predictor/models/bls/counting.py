"""A decoupled instance that tests steer, and a served version around it."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pilotlight_predictor.backends.base import DecoupledRequest
from pilotlight_predictor.core.requests import InferRequest, InferResponse
from pilotlight_predictor.core.tensors import Tensor, TensorSpec
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.repository.autocomplete import metadata_specs
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig
from pilotlight_predictor.scheduling.batching import BatchPolicy
from pilotlight_predictor.scheduling.queue import RequestQueue
from pilotlight_predictor.scheduling.scheduler import Scheduler

CONFIG = ModelConfig(
    "counts", inputs=(TensorConfig("n", "INT32", (1,)),), outputs=(TensorConfig("i", "INT32", (1,)),), decoupled=True
)


def number(value: int) -> Tensor:
    return Tensor("INT32", np.array([value], "i4"))


class Counts:
    """Sends 0 … n−1 to a request of n, in a thread of its own; `step` may do something before each."""

    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    quick = False
    decoupled = True

    def __init__(self, step: Callable[[DecoupledRequest, int], None] = lambda asked, i: None) -> None:
        self.step = step
        self.sent: list[int] = []
        self.closed = False

    def begin(self, batch: Sequence[DecoupledRequest]) -> None:
        for asked in batch:
            threading.Thread(target=self._count, args=[asked]).start()

    def _count(self, asked: DecoupledRequest) -> None:
        try:
            for i in range(int(asked.request.inputs["n"].array[0])):
                if asked.cancelled:
                    break
                self.step(asked, i)
                asked.send({"i": number(i)})
                self.sent.append(i)
        except Exception as error:
            asked.send(error)
        finally:
            asked.complete()

    def clone(self) -> "Counts":
        return self

    def close(self) -> None:
        self.closed = True


def served(instance: Any) -> ModelVersion:
    stats = ModelStats("counts", 1)
    scheduler = Scheduler([instance], BatchPolicy(), RequestQueue(None, 8), stats)
    return ModelVersion(CONFIG, 1, scheduler, stats, metadata_specs(CONFIG), {})


def request(n: int, **fields: Any) -> InferRequest:
    return InferRequest("counts", {"n": number(n)}, **fields)


class Heard:
    """A `part` that keeps what it is told."""

    def __init__(self) -> None:
        self.parts: list[tuple[InferResponse | Exception, bool]] = []

    def __call__(self, result: InferResponse | Exception, final: bool) -> None:
        assert not self.ended, "told after the end"
        self.parts.append((result, final))

    @property
    def ended(self) -> bool:
        return bool(self.parts) and self.parts[-1][1]

    @property
    def numbers(self) -> list[int]:
        return [number_in(result) for result, _ in self.parts if isinstance(result, InferResponse) and result.outputs]


def number_in(result: InferResponse | Exception) -> int:
    assert isinstance(result, InferResponse), result
    return int(result.outputs["i"].array[0])

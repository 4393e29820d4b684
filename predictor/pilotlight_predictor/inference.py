"""The one request and the one response that every dialect is a codec for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pilotlight_predictor.tensors import Tensor

Inputs = dict[str, Tensor]
Outputs = dict[str, Tensor]
Parameters = dict[str, Any]
NEWEST: Final = -1  # a version directory may be called 0


@dataclass(slots=True)
class RequestedOutput:
    """An output that the client named. `binary` None means: as the request's default says."""

    name: str
    binary: bool | None = None
    classification: int = 0


@dataclass(slots=True)
class InferRequest:
    """One inference. `version` NEWEST means the newest that is ready; `timeout_us` 0 means the model's policy."""

    model: str
    inputs: Inputs
    version: int = NEWEST
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()
    parameters: Parameters = field(default_factory=dict)
    binary_output: bool = False
    priority: int = 0
    timeout_us: int = 0
    batch_first: bool = False  # a raw request: the codec could not know the batch dimension, so one is added


@dataclass(slots=True)
class InferResponse:
    """The answer to one request, outputs in the order in which they were asked for."""

    model: str
    version: int
    outputs: Outputs
    id: str = ""
    parameters: Parameters = field(default_factory=dict)


Done = Callable[[InferResponse | Exception], None]

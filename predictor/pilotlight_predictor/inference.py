"""The one request and the one response that every dialect is a codec for.

Structs rather than dataclasses: one of each is made per request, and a struct is made in a fifth of the time.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from pilotlight_predictor.tensors import Tensor

Inputs = dict[str, Tensor]
Outputs = dict[str, Tensor]
Parameters = dict[str, Any]
NEWEST: Final = -1  # a version directory may be called 0


class RequestedOutput(msgspec.Struct):
    """An output that the client named. `binary` None means: as the request's default says."""

    name: str
    binary: bool | None = None
    classification: int = 0


class InferRequest(msgspec.Struct):
    """One inference. `version` NEWEST means the newest that is ready; `timeout_us` 0 means the model's policy."""

    model: str
    inputs: Inputs
    version: int = NEWEST
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()
    parameters: Parameters = {}
    binary_output: bool = False
    priority: int = 0
    timeout_us: int = 0
    request_id: str = ""  # for the log: the header's, else `id`
    batch_first: bool = False  # a raw request: the codec could not know the batch dimension, so one is added
    document: Any = None  # V1's JSON, for a model that takes it as it came: then there are no inputs
    verb: str = "predict"  # what is asked of such a model; "explain" is the other


class InferResponse(msgspec.Struct):
    """The answer to one request, outputs in the order in which they were asked for."""

    model: str
    version: int
    outputs: Outputs
    id: str = ""
    parameters: Parameters = {}


Done = Callable[[InferResponse | Exception], None]

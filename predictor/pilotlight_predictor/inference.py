"""The one request and the one response that every dialect is a codec for.

Structs rather than dataclasses: one of each is made per request, and a struct is made in a fifth of the time.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from pilotlight_predictor.tensors import Tensor, tensor_of

Inputs = dict[str, Tensor]
Outputs = dict[str, Tensor]
Parameters = dict[str, Any]
NEWEST: Final = -1  # a version directory may be called 0


class OutputsWithParameters(Outputs):
    """What a model gave that has something to say beside its tensors."""

    def __init__(self, tensors: Outputs, parameters: Parameters) -> None:
        super().__init__(tensors)
        self.parameters = parameters

    def copy(self) -> "OutputsWithParameters":
        return OutputsWithParameters(self, self.parameters)


def like(outputs: Outputs, tensors: Outputs) -> Outputs:
    """These tensors in place of those, with whatever was said beside them."""
    return OutputsWithParameters(tensors, outputs.parameters) if isinstance(outputs, OutputsWithParameters) else tensors


class SharedPlace(NamedTuple):
    """A piece of a registered region of shared memory, in which a tensor lies."""

    region: str
    offset: int
    byte_size: int


class RequestedOutput(msgspec.Struct):
    """An output that the client named. `binary` None means: as the request's default says.

    Where it has a `place`, it is written into `target`, which are the bytes of that, and not sent.
    """

    name: str
    binary: bool | None = None
    classification: int = 0
    place: SharedPlace | None = None
    target: memoryview | None = None


class SequencePoint(msgspec.Struct):
    """Where in a sequence a request stands. The scheduler of sequences says the slot, and what the model `kept`."""

    id: int | str
    start: bool = False
    end: bool = False
    slot: int = 0
    kept: Outputs | None = None


class InferRequest(msgspec.Struct):
    """One inference. `version` NEWEST means the newest that is ready; `timeout_us` 0 means the model's policy.

    `tensors` is None where the one input lies in the `block` of the request's form: then nobody has asked for it yet.
    """

    model: str
    tensors: Inputs | None
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
    trace: Any = None  # request_traces.Trace of one that is traced
    sequence: SequencePoint | None = None  # from the parameters sequence_id, sequence_start and sequence_end
    form: Any = None  # v2_forms.Form of one that was asked in a known form
    block: Any = None  # the array of the requests that came one after another in this form
    at: int = 0  # which of them it is
    cancelled: bool = False  # the client has gone: set on the event loop, for a model that would rather stop early

    @property
    def inputs(self) -> Inputs:
        if self.tensors is None:
            self.tensors = {self.form.name: tensor_of((self.form.datatype, self.block[self.at]))}
        return self.tensors

    @inputs.setter
    def inputs(self, tensors: Inputs) -> None:
        self.tensors = tensors


class InferResponse(msgspec.Struct):
    """The answer to one request, outputs in the order in which they were asked for."""

    model: str
    version: int
    outputs: Outputs
    id: str = ""
    parameters: Parameters = {}
    placed: dict[str, SharedPlace] = {}  # outputs that lie in shared memory already


Done = Callable[[InferResponse | Exception], None]
Part = Callable[[InferResponse | Exception, bool], None]  # (answer, final); one without outputs may only be final

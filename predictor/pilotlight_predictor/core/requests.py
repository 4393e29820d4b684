"""InferRequest and InferResponse: the data model that every protocol encodes and decodes.

msgspec Structs rather than dataclasses: creating one per request takes a fifth of the time.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from pilotlight_predictor.core.tensors import Tensor, tensor_of

Inputs = dict[str, Tensor]
Outputs = dict[str, Tensor]
Parameters = dict[str, Any]
LayoutKind = Literal["values", "records", "matrix", "columns"]
UNNAMED: Final = ""  # input of a Python function with one argument, for requests that do not name it
NEWEST: Final = -1  # not 0: a version directory may be called 0


def size_of(tensors: Inputs | Outputs | None) -> int:
    """Return the bytes of the arrays; strings count as pointers."""
    return sum(tensor.array.nbytes for tensor in tensors.values()) if tensors else 0


class Layout(NamedTuple):
    """What a model of tables returned: V1 and /invocations write the same JSON as the server of its framework.

    `kind`: `values` of one array, `records` of a DataFrame, whose columns have `names`, or of a `matrix`, whose columns
    have numbers, or `columns` of a dict.
    `flat`: outputs that had one dimension, and have the shape [n, 1] by the model's signature.
    """

    kind: LayoutKind
    names: tuple[str, ...] = ()
    flat: frozenset[str] = frozenset()


class OutputsWithParameters(Outputs):
    """Outputs of a model with response parameters, and their layout in JSON without types."""

    def __init__(self, tensors: Outputs, parameters: Parameters, layout: Layout | None = None) -> None:
        super().__init__(tensors)
        self.parameters, self.layout = parameters, layout

    def copy(self) -> "OutputsWithParameters":
        return OutputsWithParameters(self, self.parameters, self.layout)


def with_tensors(outputs: Outputs, tensors: Outputs) -> Outputs:
    """Return other tensors with the same response parameters and layout."""
    if not isinstance(outputs, OutputsWithParameters):
        return tensors
    return OutputsWithParameters(tensors, outputs.parameters, outputs.layout)


class SharedMemorySlice(NamedTuple):
    """Part of a registered shared-memory region that holds a tensor."""

    region: str
    offset: int
    byte_size: int


class RequestedOutput(msgspec.Struct):
    """An output requested by name. `binary` None: the request's default.

    With `shared_memory` it is written into `target`, the bytes of that slice, and not sent.
    """

    name: str
    binary: bool | None = None
    classification: int = 0
    shared_memory: SharedMemorySlice | None = None
    target: memoryview | None = None


class SequencePoint(msgspec.Struct):
    """Position of a request in its sequence. The sequence scheduler sets the slot and the model's implicit `state`."""

    id: int | str
    start: bool = False
    end: bool = False
    slot: int = 0
    state: Outputs | None = None


class InferRequest(msgspec.Struct):
    """One inference request. `version` NEWEST: the newest that is ready; `timeout_us` 0: the model's policy.

    `tensors` is None while the one input lies in a `block` of its template and `inputs` was not read.
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
    request_id: str = ""  # for logs: from the header, else `id`
    batch_first: bool = False  # raw request: the codec cannot know the batch dimension, so validation adds one
    document: Any = None  # V1 JSON, for a model that takes it undecoded; then there are no inputs
    verb: str = "predict"  # of such a request: predict or explain
    trace: Any = None  # RequestTrace of a sampled request
    sequence: SequencePoint | None = None  # from the parameters sequence_id, sequence_start and sequence_end
    template: Any = None  # V2 request template that matched the body
    block: Any = None  # array with the inputs of consecutive requests of this template
    row: int = 0  # of this request in the block
    cancelled: bool = False  # set on the event loop when the client disconnects; the model may stop early

    @property
    def inputs(self) -> Inputs:
        if self.tensors is None:
            self.tensors = {self.template.name: tensor_of((self.template.datatype, self.block[self.row]))}
        return self.tensors

    @inputs.setter
    def inputs(self, tensors: Inputs) -> None:
        self.tensors = tensors


class InferResponse(msgspec.Struct):
    """Response to one request, outputs in the requested order."""

    model: str
    version: int
    outputs: Outputs
    id: str = ""
    parameters: Parameters = {}
    shared_outputs: dict[str, SharedMemorySlice] = {}  # outputs already written to shared memory
    layout: Layout | None = None

    @property
    def size(self) -> int:
        """Bytes of the outputs; strings count as pointers."""
        return size_of(self.outputs)


Done = Callable[[InferResponse | Exception], None]
Part = Callable[[InferResponse | Exception, bool], None]  # (response, final); only the final one may have no outputs

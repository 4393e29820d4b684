"""Requests and response senders of `triton_python_backend_utils`.

InferenceRequest   created by a model to call another model of the server (exec, async_exec)
ServedRequest      passed to `execute`; has a response sender
ResponseSender     sends responses at any time, through a DecoupledRequest
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pilotlight_predictor.backends.base import Answer, DecoupledRequest
from pilotlight_predictor.backends.python.functions import WrongReturn, attempt
from pilotlight_predictor.backends.python.triton.bls import BlsCaller, BlsResponses
from pilotlight_predictor.backends.python.triton.types import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceResponse,
    InferenceTrace,
    PreferredMemory,
    Tensor,
    TritonModelException,
)
from pilotlight_predictor.core.request_parameters import sequence_point
from pilotlight_predictor.core.requests import InferRequest, Parameters, RequestedOutput
from pilotlight_predictor.core.tensors import tensor

_FINAL: Final = TRITONSERVER_RESPONSE_COMPLETE_FINAL


class InferenceRequest:
    """A call of another model. `bls` is the calling model, set in its own copy of pb_utils."""

    bls: BlsCaller | None = None

    def __init__(
        self,
        model_name: str = "",
        requested_output_names: Sequence[str] = (),
        inputs: Sequence[Tensor] = (),
        request_id: str = "",
        correlation_id: int | str = 0,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Parameters | str | None = None,
        priority: int = 0,
    ) -> None:
        self._model, self._version, self._id = model_name, model_version, request_id
        self._output_names, self._inputs = list(requested_output_names), list(inputs)
        self._correlation, self._flags, self._timeout, self._priority = correlation_id, flags, timeout, priority
        self._memory = preferred_memory or PreferredMemory(TRITONSERVER_MEMORY_CPU)
        self._trace = trace or InferenceTrace()
        values = json.loads(parameters) if isinstance(parameters, str) and parameters else parameters
        self._parameters: Parameters = dict(values or {})

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._output_names

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> int | str:
        return self._correlation

    def model_name(self) -> str:
        return self._model

    def model_version(self) -> int:
        return self._version

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def priority(self) -> int:
        return self._priority

    def timeout(self) -> int:
        return self._timeout

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def preferred_memory(self) -> PreferredMemory:
        return self._memory

    def trace(self) -> InferenceTrace:
        return self._trace

    def is_cancelled(self) -> bool:
        return False

    def get_response_sender(self) -> "ResponseSender":
        raise TritonModelException("only a request passed to execute has a response sender")

    def exec(self, decoupled: bool = False) -> Any:
        """Return the response, or an iterator of responses if `decoupled`. Failures are responses too."""
        responses = BlsResponses(type(self).bls, self.to_infer_request(), decoupled, None)
        return responses if decoupled else next(responses)

    async def async_exec(self, decoupled: bool = False) -> Any:
        """As `exec`, without blocking the event loop."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        on_response = partial(loop.call_soon_threadsafe, arrived.set)
        responses = BlsResponses(type(self).bls, self.to_infer_request(), decoupled, on_response)
        responses.arrived = arrived
        return responses if decoupled else await anext(responses)

    def to_infer_request(self) -> InferRequest:
        parameters = dict(self._parameters)
        if self._correlation:
            parameters["sequence_id"] = self._correlation
            parameters["sequence_start"] = bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
            parameters["sequence_end"] = bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        inputs = {each.name(): tensor(each.as_numpy()) for each in self._inputs}
        outputs = tuple(RequestedOutput(name) for name in self._output_names)
        return InferRequest(
            self._model, inputs, self._version, self._id, outputs, parameters, priority=self._priority,
            timeout_us=self._timeout, request_id=self._id, sequence=sequence_point(parameters),
        )  # fmt: skip


class ResponseSender:
    """Sender of the responses of one request. Dropping it before the final response fails the request."""

    def __init__(self, request: DecoupledRequest, convert: Callable[[InferenceResponse], Answer]) -> None:
        self._request, self._convert = request, convert
        self._closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if flags not in (0, _FINAL):
            raise TritonModelException(f"flags = {flags}, must be 0 or pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL")
        if response is None and flags != _FINAL:
            raise TritonModelException("send needs an InferenceResponse, or the flag that there are no more")
        if self._closed:
            raise TritonModelException("the response sender is closed: its final response was sent")
        self._closed = flags == _FINAL
        if response is None:
            self._request.complete()
        else:
            self._request.send(attempt(self._convert, response), self._closed)

    def is_cancelled(self) -> bool:
        return self._request.cancelled

    def __del__(self) -> None:
        if not self._closed:
            self._request.send(WrongReturn("the model dropped a request without a final response"))


class ServedRequest(InferenceRequest):
    """One request passed to `execute`."""

    def __init__(
        self, request: InferRequest, inputs: Sequence[Tensor], output_names: Sequence[str], sender: ResponseSender
    ) -> None:
        parameters = dict(request.parameters)
        start, end = (bool(parameters.get(f"sequence_{edge}")) for edge in ("start", "end"))
        super().__init__(
            request.model, output_names, inputs, request.id, parameters.get("sequence_id", 0), request.version,
            start * TRITONSERVER_REQUEST_FLAG_SEQUENCE_START | end * TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
            request.timeout_us, parameters=parameters, priority=request.priority,
        )  # fmt: skip
        self._request, self._sender = request, sender
        self.sender_taken = False  # get_response_sender was called

    def is_cancelled(self) -> bool:
        return self._request.cancelled

    def get_response_sender(self) -> ResponseSender:
        self.sender_taken = True
        return self._sender

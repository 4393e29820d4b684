"""Requests and response senders of `triton_python_backend_utils`: what a model is asked, asks others, and answers with.

InferenceRequest   made by a model to call another model of the server (exec, async_exec)
ServedRequest      given to `execute`; the same, and the way to its sender
ResponseSender     answers when the model likes, through the `Asked` of streaming.py
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pilotlight_predictor.backends.base import Answer, Asked
from pilotlight_predictor.backends.python_values import WrongReturn
from pilotlight_predictor.backends.triton_calls import Calling, Responses
from pilotlight_predictor.backends.triton_types import (
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
from pilotlight_predictor.inference import InferRequest, Parameters, RequestedOutput
from pilotlight_predictor.protocol.sequence_parameters import sequence_point
from pilotlight_predictor.tensors import tensor

_FINAL: Final = TRITONSERVER_RESPONSE_COMPLETE_FINAL


class InferenceRequest:
    """A call of another model. `calling` belongs to the model whose own module has this class."""

    calling: Calling | None = None

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
        given = json.loads(parameters) if isinstance(parameters, str) and parameters else parameters
        self._parameters: Parameters = dict(given or {})

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
        raise TritonModelException("only a request that was given to execute has a response sender")

    def exec(self, decoupled: bool = False) -> Any:
        """The response, once it is there; an iterator of responses if `decoupled`. Failures are responses too."""
        answers = Responses(type(self).calling, self.asked(), decoupled, None)
        return answers if decoupled else next(answers)

    async def async_exec(self, decoupled: bool = False) -> Any:
        """As `exec`, without keeping the thread from other coroutines."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        told = partial(loop.call_soon_threadsafe, arrived.set)
        answers = Responses(type(self).calling, self.asked(), decoupled, told)
        answers.arrived = arrived
        return answers if decoupled else await anext(answers)

    def asked(self) -> InferRequest:
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
    """Answers one request. A model that lets go of it before the end has ended it: nobody could any more."""

    def __init__(self, asked: Asked, convert: Callable[[InferenceResponse], Answer]) -> None:
        self._asked, self._convert = asked, convert
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
            self._asked.complete()
            return
        self._asked.send(self._answer(response), self._closed)

    def _answer(self, response: InferenceResponse) -> Answer:
        try:
            return self._convert(response)
        except Exception as error:
            return error

    def is_cancelled(self) -> bool:
        return self._asked.cancelled

    def __del__(self) -> None:
        if not self._closed:
            self._asked.send(WrongReturn("the model let go of a request without a final response"))


class ServedRequest(InferenceRequest):
    """One request as a model sees it."""

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
        self.answers_later = False  # the model has asked for the sender

    def is_cancelled(self) -> bool:
        return self._request.cancelled

    def get_response_sender(self) -> ResponseSender:
        self.answers_later = True
        return self._sender

"""How a Triton model's calls of other models go out through model_calls.py, and come back as Triton's responses.

`Calling` stands for the model that calls, `Responses` for one call; triton_requests.py makes them.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.python_values import array_of
from pilotlight_predictor.backends.triton_types import InferenceResponse, Tensor, TritonError, TritonModelException
from pilotlight_predictor.call_circles import Version
from pilotlight_predictor.errors import BadRequest, Cancelled, NotFound, PredictorError, Unavailable, Unsupported
from pilotlight_predictor.inference import InferRequest, InferResponse

# Triton's codes as our errors. Read backwards too, where the last one of an error's kind is its code.
ERRORS: Final[dict[int, type[PredictorError]]] = {
    TritonError.UNKNOWN: BadRequest,
    TritonError.ALREADY_EXISTS: BadRequest,
    TritonError.INTERNAL: PredictorError,
    TritonError.NOT_FOUND: NotFound,
    TritonError.INVALID_ARG: BadRequest,
    TritonError.UNAVAILABLE: Unavailable,
    TritonError.UNSUPPORTED: Unsupported,
    TritonError.CANCELLED: Cancelled,
}


class Calling:
    """The model that calls, for all of its instances: how it reaches others, and which of its threads wait."""

    def __init__(self, spec: LoadSpec) -> None:
        self.calls = spec.calls
        self.caller = Version(spec.config.name, spec.version)
        self.decoupled = spec.config.decoupled
        self._executing: set[int] = set()

    def leave(self) -> None:
        """The model is no more."""
        if self.calls is not None:
            self.calls.forget_metrics(self)

    @contextmanager
    def executing(self) -> Iterator[None]:
        self._executing.add(get_ident())
        try:
            yield
        finally:
            self._executing.discard(get_ident())

    @property
    def blocks(self) -> bool:
        """Whether a call from this thread keeps an instance. A model that answers once waits for all of its threads."""
        return not self.decoupled or get_ident() in self._executing


class Responses:
    """The responses of one call as they come, by `for` or by `async for`. One without tensors may be the last."""

    def __init__(
        self, calling: Calling | None, request: InferRequest, decoupled: bool, told: Callable[[], Any] | None
    ) -> None:
        if calling is None or calling.calls is None:
            raise TritonModelException("models can be called only by a model.py that a server has loaded")
        self._answers = calling.calls.call(
            calling.caller, request, decoupled=decoupled, blocks=calling.blocks, told=told
        )
        self.arrived: asyncio.Event | None = None

    def __iter__(self) -> "Responses":
        return self

    def __next__(self) -> InferenceResponse:
        if self._answers.ended:
            raise StopIteration
        return _response(self._answers.next()[0])

    def __aiter__(self) -> "Responses":
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._answers.ended:
            raise StopAsyncIteration
        while self.arrived is not None and not self._answers.waiting:
            self.arrived.clear()
            if not self._answers.waiting:
                await self.arrived.wait()
        return _response(self._answers.next()[0])

    def cancel(self) -> None:
        self._answers.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_answers"):
            self._answers.cancel()


def _response(result: InferResponse | Exception) -> InferenceResponse:
    if isinstance(result, Exception):
        kinds = {kind: code for code, kind in ERRORS.items()}
        code = next((kinds[kind] for kind in type(result).__mro__ if kind in kinds), TritonError.INTERNAL)
        return InferenceResponse(error=TritonError(str(result), code))
    tensors = [Tensor(name, array_of(each)) for name, each in result.outputs.items()]
    return InferenceResponse(tensors, parameters=result.parameters)

"""Business logic scripting (BLS): calls of a Triton model to other models, through model_calls.py.

`BlsCaller` is the calling model, `BlsResponses` one call; triton_requests.py creates them.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final

from pilotlight_predictor.backends.base import LoadSpec, VersionId
from pilotlight_predictor.backends.python_values import array_of
from pilotlight_predictor.backends.triton_types import InferenceResponse, Tensor, TritonError, TritonModelException
from pilotlight_predictor.errors import BadRequest, Cancelled, NotFound, PredictorError, Unavailable, Unsupported
from pilotlight_predictor.inference import InferRequest, InferResponse

# Triton's codes → our errors. Also inverted, error → code, where the last entry of an error class wins.
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


class BlsCaller:
    """The calling model, shared by its instances: its BLS client, and which of its threads are in `execute`."""

    def __init__(self, spec: LoadSpec) -> None:
        self.calls = spec.calls
        self.caller = VersionId(spec.config.name, spec.version)
        self.decoupled = spec.config.decoupled
        self._executing: set[int] = set()

    def close(self) -> None:
        """Remove the metrics of the unloaded model."""
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
        """Whether a call from this thread blocks an instance; for a decoupled model only inside `execute`."""
        return not self.decoupled or get_ident() in self._executing


class BlsResponses:
    """Responses of one call, iterable by `for` or `async for`. The last may have no tensors."""

    def __init__(
        self, caller: BlsCaller | None, request: InferRequest, decoupled: bool, on_response: Callable[[], Any] | None
    ) -> None:
        if caller is None or caller.calls is None:
            raise TritonModelException("models can be called only by a model.py that a server has loaded")
        self._answers = caller.calls.call(
            caller.caller, request, decoupled=decoupled, blocks=caller.blocks, on_response=on_response
        )
        self.arrived: asyncio.Event | None = None

    def __iter__(self) -> "BlsResponses":
        return self

    def __next__(self) -> InferenceResponse:
        if self._answers.ended:
            raise StopIteration
        return _response(self._answers.next()[0])

    def __aiter__(self) -> "BlsResponses":
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

"""Triton's `class TritonPythonModel` unchanged: `execute(requests)` gets and returns Triton's own objects.

One of the forms that python.py chooses from, or two: a decoupled model answers through response senders, when it likes.
`initialize` gets the dict that Triton gives (`triton_args`).
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from threading import Thread
from typing import Any

from msgspec.structs import replace

from pilotlight_predictor.backends.base import Answer, Asked, LoadSpec
from pilotlight_predictor.backends.python_forms import Loop, attempt
from pilotlight_predictor.backends.python_values import Declared, WrongReturn, array_of, outputs_of
from pilotlight_predictor.backends.triton_calls import ERRORS, Calling
from pilotlight_predictor.backends.triton_config import ModelConfig as Completed
from pilotlight_predictor.backends.triton_requests import ResponseSender, ServedRequest
from pilotlight_predictor.backends.triton_types import InferenceResponse, Tensor, TritonError, TritonModelException
from pilotlight_predictor.collected import Collected
from pilotlight_predictor.errors import LoadFailed, PredictorError
from pilotlight_predictor.inference import InferRequest, OutputsWithParameters
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig


def triton_args(spec: LoadSpec) -> dict[str, str]:
    config = spec.config
    return {
        "model_config": json.dumps(_document(config)),
        "model_instance_kind": "CPU" if spec.device.kind == "cpu" else "GPU",
        "model_instance_name": f"{config.name}_0",
        "model_instance_device_id": str(spec.device.index),
        "model_repository": str(spec.model_dir),
        "model_version": str(spec.version),
        "model_name": config.name,
    }


def completed(cls: type, spec: LoadSpec) -> ModelConfig | None:
    """The configuration as the model itself completes it; None when it has no word in it."""
    complete = getattr(cls, "auto_complete_config", None)
    if complete is None:
        return None
    from pilotlight_predictor.repository.read_config import config_from_json

    config = spec.config
    written = {name: value for name, value in config.raw.items() if name in config.given or name == "name"}
    given = Completed(json.dumps({"name": config.name, "max_batch_size": 0, "input": [], "output": [], **written}))
    returned = complete(given)
    if not isinstance(returned, Completed):
        kind = type(returned).__name__
        raise LoadFailed(f"auto_complete_config of model.py returned {kind}, must be the ModelConfig that it was given")
    found = config_from_json(returned.as_dict(), f"auto_complete_config of model '{config.name}'")
    return replace(found, name=config.name, raw={**found.raw, "name": config.name})


def _document(config: ModelConfig) -> dict[str, Any]:
    return dict(config.raw) or {
        "name": config.name,
        "backend": config.backend,
        "max_batch_size": config.max_batch_size,
        "input": [_tensor(tensor) for tensor in config.inputs],
        "output": [_tensor(tensor) for tensor in config.outputs],
        "parameters": {name: {"string_value": value} for name, value in config.parameters.items()},
    }


def _tensor(tensor: TensorConfig) -> dict[str, Any]:
    datatype = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return {"name": tensor.name, "data_type": f"TYPE_{datatype}", "dims": list(tensor.dims)}


class TritonForm:
    def __init__(self, cls: type, args: Mapping[str, str], declared: Declared, calling: Calling) -> None:
        self._cls, self._args, self._declared, self._calling = cls, args, declared, calling
        self.loop = Loop()
        self.model = cls()
        if not hasattr(self.model, "execute"):
            raise LoadFailed("class TritonPythonModel of model.py has no execute(requests)")
        if hasattr(self.model, "initialize"):
            self.loop.settle(self.model.initialize(dict(args)))

    def answer(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        asked = [Collected(request) for request in batch]
        return [
            _the_one(each) if response is None else attempt(self._answer, response)
            for each, response in zip(asked, self._executed(asked), strict=True)
        ]

    def _executed(self, asked: Sequence[Asked]) -> Sequence[Any]:
        """Keeps no request: a sender that nobody holds any more ends its own."""
        requests = [self._request(each) for each in asked]
        with self._calling.executing():
            returned = _told(lambda: self.loop.settle(self.model.execute(requests)))
        return _responses(returned, [request.answers_later for request in requests])

    def clone(self, instance_name: str) -> "TritonForm":
        args = {**self._args, "model_instance_name": instance_name}
        return type(self)(self._cls, args, self._declared, self._calling)

    def close(self) -> None:
        if hasattr(self.model, "finalize"):
            self.loop.settle(self.model.finalize())
        self.loop.close()

    def _request(self, asked: Asked) -> ServedRequest:
        request = asked.request
        inputs = [Tensor(name, array_of(tensor)) for name, tensor in request.inputs.items()]
        outputs = [output.name for output in request.outputs] or list(self._declared)
        return ServedRequest(request, inputs, outputs, ResponseSender(asked, self._answer))

    def _answer(self, response: Any) -> Answer:
        if not isinstance(response, InferenceResponse):
            raise WrongReturn(f"execute returned {type(response).__name__} in its list, must be InferenceResponse")
        error = response.error()
        if error is not None:
            code = error.code() if isinstance(error, TritonError) else TritonError.INTERNAL
            return ERRORS.get(code, PredictorError)(str(error))
        named = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        if self._declared:  # as in Triton, a model may leave out what nobody asked for; what nobody knows is dropped
            named = {name: array for name, array in named.items() if name in self._declared}
        outputs = outputs_of(named, {name: self._declared[name] for name in named if name in self._declared})
        return OutputsWithParameters(outputs, response.told) if response.told else outputs


class DecoupledTritonForm(TritonForm):
    """`execute` returns nothing: any number of responses come through each request's sender."""

    def __init__(self, cls: type, args: Mapping[str, str], declared: Declared, calling: Calling) -> None:
        super().__init__(cls, args, declared, calling)
        self._background: _Background | None = None

    def begin(self, batch: Sequence[Asked]) -> None:
        requests = [self._request(each) for each in batch]
        with self._calling.executing():
            returned = _told(lambda: self.model.execute(requests))
        if inspect.isawaitable(returned):
            self._background = self._background or _Background()
            self._background.run(_until_returned(returned, list(batch)))
        elif returned is not None:
            raise WrongReturn(f"execute of a decoupled model returned {type(returned).__name__}, must be None")

    def close(self) -> None:
        if self._background is not None:
            self._background.stop()
        super().close()


class _Background:
    """The event loop of a decoupled model that is async: batches run beside each other, in a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="pilotlight-model-loop", daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[None]) -> None:
        asyncio.run_coroutine_threadsafe(_as_coroutine(work), self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


async def _until_returned(returned: Awaitable[Any], batch: Sequence[Asked]) -> None:
    try:
        await returned
    except TritonModelException as error:
        _fail(batch, PredictorError(str(error)))
    except Exception as error:
        _fail(batch, error)


def _fail(batch: Sequence[Asked], error: Exception) -> None:
    for asked in batch:
        asked.send(error)


def _told(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except TritonModelException as error:
        raise PredictorError(str(error)) from error


def _responses(returned: Any, later: Sequence[bool]) -> Sequence[Any]:
    """One per request; None for those that are answered through their sender."""
    if returned is None and all(later):
        return [None] * len(later)
    if inspect.isgenerator(returned) or not isinstance(returned, (list, tuple)) or len(returned) != len(later):
        what = f"{len(returned)} responses" if isinstance(returned, (list, tuple)) else type(returned).__name__
        raise WrongReturn(f"execute returned {what}, must be a list of {len(later)} InferenceResponse, one per request")
    for response, answers_later in zip(returned, later, strict=True):
        if response is not None and answers_later:
            raise WrongReturn("execute returned a response to a request whose response sender it took, must be None")
        if response is None and not answers_later:
            raise WrongReturn("execute returned NoneType in its list, must be InferenceResponse")
    return returned


def _the_one(asked: Collected) -> Answer:
    """A model that answers once may do so later, from another thread, through the sender."""
    asked.ended.wait()
    if len(asked.answers) != 1:
        told = f"sent {len(asked.answers)} responses to a request, must be one unless it is decoupled"
        return WrongReturn(f"the model {told} (model_transaction_policy)")
    return asked.answers[0]

"""Triton's `class TritonPythonModel`, unchanged: `execute(requests)` takes and returns pb_utils objects.

Selected by python/backend.py. A decoupled model responds through response senders.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from threading import Thread
from typing import Any

from msgspec.structs import replace

from pilotlight_predictor.backends.base import Answer, DecoupledRequest, LoadSpec
from pilotlight_predictor.backends.python.functions import (
    Declared,
    ModelEventLoop,
    WrongReturn,
    array_of,
    attempt,
    outputs_of,
)
from pilotlight_predictor.backends.python.triton.bls import ERRORS, BlsCaller
from pilotlight_predictor.backends.python.triton.bls import ModelConfig as Completed
from pilotlight_predictor.backends.python.triton.requests import ResponseSender, ServedRequest
from pilotlight_predictor.backends.python.triton.types import (
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
)
from pilotlight_predictor.backends.response_collector import ResponseCollector
from pilotlight_predictor.core.requests import InferRequest, OutputsWithParameters
from pilotlight_predictor.errors import LoadFailed, PredictorError
from pilotlight_predictor.repository.autocomplete import with_raw
from pilotlight_predictor.repository.model_config import ModelConfig, raw_config


def triton_args(spec: LoadSpec) -> dict[str, str]:
    """Return the argument of `initialize`, as in Triton."""
    config = spec.config
    if not config.raw:  # there is no configuration file
        config = with_raw(replace(config, raw=raw_config({"name": config.name, "backend": config.backend})))
    return {
        "model_config": json.dumps(config.raw),
        "model_instance_kind": "CPU" if spec.device.kind == "cpu" else "GPU",
        "model_instance_name": f"{config.name}_0",
        "model_instance_device_id": str(spec.device.index),
        "model_repository": str(spec.model_dir),
        "model_version": str(spec.version),
        "model_name": config.name,
    }


def auto_completed_config(cls: type, spec: LoadSpec) -> ModelConfig | None:
    """Configuration completed by the model's `auto_complete_config`; None if it has none."""
    complete = getattr(cls, "auto_complete_config", None)
    if complete is None:
        return None
    from pilotlight_predictor.repository.config_reader import config_from_json

    config = spec.config
    written = {name: value for name, value in config.raw.items() if name in config.explicit_fields or name == "name"}
    document = {"name": config.name, "max_batch_size": 0, "input": [], "output": [], **written}
    returned = complete(Completed(json.dumps(document)))
    if not isinstance(returned, Completed):
        kind = type(returned).__name__
        raise LoadFailed(f"auto_complete_config of model.py returned {kind}, must be the ModelConfig that it received")
    whole = config_from_json(returned.as_dict(), f"auto_complete_config of model '{config.name}'")
    return replace(whole, name=config.name, raw={**whole.raw, "name": config.name})


class TritonModel:
    def __init__(self, cls: type, args: Mapping[str, str], declared: Declared, caller: BlsCaller) -> None:
        self._cls, self._args, self._declared, self._caller = cls, args, declared, caller
        self.loop = ModelEventLoop()
        self.model = cls()
        if not hasattr(self.model, "execute"):
            raise LoadFailed("class TritonPythonModel of model.py has no execute(requests)")
        if hasattr(self.model, "initialize"):
            self.loop.resolve(self.model.initialize(dict(args)))

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        collectors = [ResponseCollector(request) for request in batch]
        return [
            _wait_for_one(collector) if response is None else attempt(self._answer, response)
            for collector, response in zip(collectors, self._execute(collectors), strict=True)
        ]

    def _execute(self, batch: Sequence[DecoupledRequest]) -> Sequence[Any]:
        """Call `execute`. References to requests end here: an unreferenced response sender ends its request."""
        requests = [self._request(each) for each in batch]
        with self._caller.executing():
            returned = _call_user_code(lambda: self.loop.resolve(self.model.execute(requests)))
        return _responses(returned, [request.sender_taken for request in requests])

    def clone(self, instance_name: str) -> "TritonModel":
        args = {**self._args, "model_instance_name": instance_name}
        return type(self)(self._cls, args, self._declared, self._caller)

    def close(self) -> None:
        if hasattr(self.model, "finalize"):
            self.loop.resolve(self.model.finalize())
        self.loop.close()

    def _request(self, decoupled: DecoupledRequest) -> ServedRequest:
        request = decoupled.request
        inputs = [Tensor(name, array_of(tensor)) for name, tensor in request.inputs.items()]
        outputs = [output.name for output in request.outputs] or list(self._declared)
        return ServedRequest(request, inputs, outputs, ResponseSender(decoupled, self._answer))

    def _answer(self, response: Any) -> Answer:
        if not isinstance(response, InferenceResponse):
            raise WrongReturn(f"execute returned {type(response).__name__} in its list, must be InferenceResponse")
        error = response.error()
        if error is not None:
            code = error.code() if isinstance(error, TritonError) else TritonError.INTERNAL
            return ERRORS.get(code, PredictorError)(str(error))
        named = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        if self._declared:  # as in Triton, outputs may be left out and undeclared ones are dropped
            named = {name: array for name, array in named.items() if name in self._declared}
        outputs = outputs_of(named, {name: self._declared[name] for name in named if name in self._declared})
        return OutputsWithParameters(outputs, response.parameter_map) if response.parameter_map else outputs


class DecoupledTritonModel(TritonModel):
    """Decoupled model: `execute` returns None; any number of responses are sent through each request's sender."""

    def __init__(self, cls: type, args: Mapping[str, str], declared: Declared, caller: BlsCaller) -> None:
        super().__init__(cls, args, declared, caller)
        self._background: _Background | None = None

    def begin(self, batch: Sequence[DecoupledRequest]) -> None:
        requests = [self._request(each) for each in batch]
        with self._caller.executing():
            returned = _call_user_code(lambda: self.model.execute(requests))
        if inspect.isawaitable(returned):
            self._background = self._background or _Background()
            self._background.run(_await_batch(returned, list(batch)))
        elif returned is not None:
            raise WrongReturn(f"execute of a decoupled model returned {type(returned).__name__}, must be None")

    def close(self) -> None:
        if self._background is not None:
            self._background.stop()
        super().close()


class _Background:
    """Event loop thread of an async decoupled model, on which batches run concurrently."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="pilotlight-model-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _await_batch(returned: Awaitable[Any], batch: Sequence[DecoupledRequest]) -> None:
    try:
        await returned
    except Exception as error:
        failed = PredictorError(str(error)) if isinstance(error, TritonModelException) else error
        for request in batch:
            request.send(failed)


def _call_user_code(call: Callable[[], Any]) -> Any:
    """Raise a TritonModelException as a PredictorError, whose message the client sees."""
    try:
        return call()
    except TritonModelException as error:
        raise PredictorError(str(error)) from error


def _responses(returned: Any, senders_taken: Sequence[bool]) -> Sequence[Any]:
    """Validate what `execute` returned: one response per request, None for those whose sender was taken."""
    if returned is None and all(senders_taken):
        return [None] * len(senders_taken)
    if inspect.isgenerator(returned) or not isinstance(returned, (list, tuple)) or len(returned) != len(senders_taken):
        what = f"{len(returned)} responses" if isinstance(returned, (list, tuple)) else type(returned).__name__
        wanted = f"a list of {len(senders_taken)} InferenceResponse, one per request"
        raise WrongReturn(f"execute returned {what}, must be {wanted}")
    for response, sender_taken in zip(returned, senders_taken, strict=True):
        if response is not None and sender_taken:
            raise WrongReturn("execute returned a response to a request whose response sender it took, must be None")
        if response is None and not sender_taken:
            raise WrongReturn("execute returned NoneType in its list, must be InferenceResponse")
    return returned


def _wait_for_one(collector: ResponseCollector) -> Answer:
    """Wait for the single response that the model sends through the sender, maybe from another thread."""
    collector.ended.wait()
    if len(collector.answers) != 1:
        problem = f"sent {len(collector.answers)} responses to a request, must be one unless it is decoupled"
        return WrongReturn(f"the model {problem} (model_transaction_policy)")
    return collector.answers[0]

"""Triton's `class TritonPythonModel` unchanged: `execute(requests)` gets and returns Triton's own objects.

One of the forms that python.py chooses from. `initialize` gets the dict that Triton gives (`triton_args`).
"""

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight_predictor.backends import triton_python_backend_utils as pb_utils
from pilotlight_predictor.backends.base import Answer, LoadSpec
from pilotlight_predictor.backends.python_forms import Loop, attempt
from pilotlight_predictor.backends.python_values import Declared, WrongReturn, array_of, outputs_of
from pilotlight_predictor.errors import (
    BadRequest,
    Cancelled,
    LoadFailed,
    NotFound,
    PredictorError,
    Unavailable,
    Unsupported,
)
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig

_MODULE: Final = "triton_python_backend_utils"
_ERRORS: Final[dict[int, type[PredictorError]]] = {
    pb_utils.TritonError.UNKNOWN: BadRequest,
    pb_utils.TritonError.INTERNAL: PredictorError,
    pb_utils.TritonError.NOT_FOUND: NotFound,
    pb_utils.TritonError.INVALID_ARG: BadRequest,
    pb_utils.TritonError.UNAVAILABLE: Unavailable,
    pb_utils.TritonError.UNSUPPORTED: Unsupported,
    pb_utils.TritonError.ALREADY_EXISTS: BadRequest,
    pb_utils.TritonError.CANCELLED: Cancelled,
}


def offer_utils() -> None:
    """Before any model.py is imported: Triton's server puts this module there, no package does."""
    sys.modules.setdefault(_MODULE, pb_utils)


def triton_args(spec: LoadSpec) -> dict[str, str]:
    config = spec.config
    return {
        "model_config": json.dumps(dict(config.raw) or _document(config)),
        "model_instance_kind": "CPU" if spec.device.kind == "cpu" else "GPU",
        "model_instance_name": f"{config.name}_0",
        "model_instance_device_id": str(spec.device.index),
        "model_repository": str(spec.model_dir),
        "model_version": str(spec.version),
        "model_name": config.name,
    }


def _document(config: ModelConfig) -> dict[str, Any]:
    return {
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
    def __init__(self, cls: type, args: Mapping[str, str], declared: Declared) -> None:
        self._cls, self._args, self._declared = cls, args, declared
        self._loop = Loop()
        self._model = cls()
        if not hasattr(self._model, "execute"):
            raise LoadFailed("class TritonPythonModel of model.py has no execute(requests)")
        if hasattr(self._model, "initialize"):
            self._loop.settle(self._model.initialize(dict(args)))

    def answer(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        try:
            returned = self._loop.settle(self._model.execute([self._request(request) for request in batch]))
        except pb_utils.TritonModelException as error:
            raise PredictorError(str(error)) from error
        if inspect.isgenerator(returned) or not isinstance(returned, (list, tuple)) or len(returned) != len(batch):
            what = f"{len(returned)} responses" if isinstance(returned, (list, tuple)) else type(returned).__name__
            raise WrongReturn(
                f"execute returned {what}, must be a list of {len(batch)} InferenceResponse, one per request"
            )
        return [attempt(self._answer, response) for response in returned]

    def clone(self, instance_name: str) -> "TritonForm":
        return TritonForm(self._cls, {**self._args, "model_instance_name": instance_name}, self._declared)

    def close(self) -> None:
        if hasattr(self._model, "finalize"):
            self._loop.settle(self._model.finalize())
        self._loop.close()

    def _request(self, request: InferRequest) -> pb_utils.ServedRequest:
        inputs = [pb_utils.Tensor(name, array_of(tensor)) for name, tensor in request.inputs.items()]
        asked = [output.name for output in request.outputs] or list(self._declared)
        return pb_utils.ServedRequest(request, inputs, asked)

    def _answer(self, response: Any) -> Answer:
        if not isinstance(response, pb_utils.InferenceResponse):
            raise WrongReturn(f"execute returned {type(response).__name__} in its list, must be InferenceResponse")
        error = response.error()
        if error is not None:
            code = error.code() if isinstance(error, pb_utils.TritonError) else pb_utils.TritonError.INTERNAL
            return _ERRORS.get(code, PredictorError)(str(error))
        named = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        if (
            self._declared
        ):  # as in Triton, a model may leave out what nobody asked for, and what nobody knows is dropped
            named = {name: array for name, array in named.items() if name in self._declared}
        return outputs_of(named, {name: self._declared[name] for name in named if name in self._declared})

"""Unchanged subclasses of `kserve.Model`: preprocess, predict and postprocess run as in KServe's own server.

backend.py selects this kind if model.py defines exactly one such class. kserve is imported by model.py only.
"""

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from pilotlight.contract import ENV_SETTINGS_PREFIX, HEADER_REQUEST_ID
from pilotlight_predictor.backends.base import Answer, LoadSpec
from pilotlight_predictor.backends.python.functions import (
    Declared,
    ModelEventLoop,
    WrongReturn,
    array_of,
    attempt,
    outputs_of,
)
from pilotlight_predictor.backends.python.source import own_classes
from pilotlight_predictor.core.requests import InferRequest, Outputs
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed


def is_model_class(cls: type) -> bool:
    """Whether a class is a subclass of kserve.Model; it must have imported kserve then."""
    kserve = sys.modules.get("kserve")
    return kserve is not None and issubclass(cls, kserve.Model)


def find_model_class(module: ModuleType) -> type | None:
    """The one subclass of kserve.Model defined in the module; None if there is none."""
    models = [cls for cls in own_classes(module) if is_model_class(cls)]
    if len(models) > 1:
        names = ", ".join(cls.__name__ for cls in models)
        raise LoadFailed(f"model.py defines {len(models)} subclasses of kserve.Model ({names}), must be one")
    return models[0] if models else None


class KserveModel:
    def __init__(self, cls: type, spec: LoadSpec, declared: Declared) -> None:
        self._cls, self._spec, self._declared = cls, spec, declared
        self.loop = ModelEventLoop()
        _set_predictor_config()
        self.model: Any = cls(**_constructor_arguments(cls, spec))
        if not self.model.ready:
            self.loop.resolve(self.model.load())
        if not self.model.ready:
            raise LoadFailed(f"{cls.__name__}.load() returned without setting self.ready = True")
        # V1 verbs, which take the JSON document itself, as in KServe's server.
        explains = cls.explain is not sys.modules["kserve"].Model.explain  # type: ignore[attr-defined]
        self.verbs = frozenset({"predict", "explain"} if explains else {"predict"})

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        _set_predictor_config()
        started = [attempt(self._start, request) for request in batch]
        settled = self.loop.resolve_all(started)
        return [self._to_answer(request, value) for request, value in zip(batch, settled, strict=True)]

    def clone(self, instance_name: str) -> "KserveModel":
        return KserveModel(self._cls, self._spec, self._declared)

    def close(self) -> None:
        self.model.stop()
        self.loop.close()

    def _start(self, request: InferRequest) -> Any:
        headers = {HEADER_REQUEST_ID: request.id} if request.id else {}
        if request.document is not None:
            from kserve.model import InferenceVerb

            verb = InferenceVerb.EXPLAIN if request.verb == "explain" else InferenceVerb.PREDICT
            return self.model(dict(request.document), headers, verb=verb)
        return self.model(_kserve_request(request), headers)

    def _to_answer(self, request: InferRequest, value: Any) -> Answer:
        from kserve.errors import InvalidInput

        if isinstance(value, InvalidInput):
            return BadRequest(str(value.reason))
        if isinstance(value, Exception):
            return value
        response = value[0] if isinstance(value, tuple) else value  # (response, headers)
        answer: Answer = attempt(self._outputs if request.document is None else _document, response)
        return answer

    def _outputs(self, response: Any) -> Outputs:
        from kserve import InferResponse

        if isinstance(response, InferResponse):
            return outputs_of({output.name: output.as_numpy() for output in response.outputs}, self._declared)
        if isinstance(response, Mapping):
            if set(response) == {"predictions"} and len(self._declared) == 1:  # as V1 names the only output
                response = {next(iter(self._declared)): response["predictions"]}
            return outputs_of({name: np.asarray(value) for name, value in response.items()}, self._declared)
        raise WrongReturn(f"the model returned {type(response).__name__}, must be kserve.InferResponse or a dict")


def _document(response: Any) -> Outputs:
    """JSON of a V1 response, as the output `document`."""
    import orjson
    from kserve import InferResponse

    if isinstance(response, InferResponse):
        columns = {output.name: output.as_numpy().tolist() for output in response.outputs}
        response = {"predictions": next(iter(columns.values())) if len(columns) == 1 else columns}
    if not isinstance(response, Mapping):
        raise WrongReturn(f"the model returned {type(response).__name__}, must be a dict or kserve.InferResponse")
    try:
        text = orjson.dumps(response, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise WrongReturn(f"the model returned a value that is not JSON: {error}") from None
    return {"document": Tensor("BYTES", np.array([text], dtype=object))}


def _set_predictor_config() -> None:
    """Set the predictor that a transformer's `predict` calls; KServe stores it in a context variable per thread."""
    host = os.environ.get(f"{ENV_SETTINGS_PREFIX}PREDICTOR_HOST")
    if host:
        from kserve import context
        from kserve.predictor_config import PredictorConfig

        if context.get_predictor_config() is None:
            context.set_predictor_config(PredictorConfig(host, "v2"))


def _constructor_arguments(cls: type, spec: LoadSpec) -> dict[str, str]:
    """`name`, and the version's directory under the names that KServe's examples use."""
    known = {"name": spec.config.name, "model_name": spec.config.name}
    known |= dict.fromkeys(("model_dir", "model_path", "path"), str(spec.path.parent))
    parameters = list(inspect.signature(cls).parameters.values())
    taken = [p for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
    unknown = [p.name for p in taken if p.default is p.empty and p.name not in known]
    if unknown:
        raise LoadFailed(
            f"{cls.__name__}.__init__ needs {', '.join(unknown)}: only name and model_dir are passed, so set a default"
        )
    return {p.name: known[p.name] for p in taken if p.name in known}


def _kserve_request(request: InferRequest) -> Any:
    import kserve

    inputs = []
    for name, tensor in request.inputs.items():
        datatype = "FP32" if tensor.datatype == "BF16" else tensor.datatype  # kserve has no BF16; array_of converts it
        inputs.append(kserve.InferInput(name, list(tensor.array.shape), datatype, data=array_of(tensor)))
    return kserve.InferRequest(
        model_name=request.model,
        infer_inputs=inputs,
        request_id=request.id or None,
        parameters=dict(request.parameters),
    )

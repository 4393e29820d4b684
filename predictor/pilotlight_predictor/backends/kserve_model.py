"""Subclasses of `kserve.Model` unchanged: preprocess, predict and postprocess run as under KServe's own server.

One of the forms that python.py chooses from, when model.py defines exactly one such class. kserve is imported only by
such a model.py itself.
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from pilotlight.contract import ENV_SETTINGS_PREFIX, HEADER_REQUEST_ID
from pilotlight_predictor.backends.base import Answer, LoadSpec
from pilotlight_predictor.backends.python_forms import Loop, attempt
from pilotlight_predictor.backends.python_values import Declared, WrongReturn, array_of, outputs_of
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.inference import InferRequest, Outputs
from pilotlight_predictor.tensors import Tensor


def find(module: ModuleType) -> type | None:
    """The one subclass of kserve.Model that the module itself defines."""
    import sys

    kserve = sys.modules.get("kserve")
    if kserve is None:
        return None
    classes = [
        value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    found = [cls for cls in classes if issubclass(cls, kserve.Model)]
    if len(found) > 1:
        names = ", ".join(cls.__name__ for cls in found)
        raise LoadFailed(f"model.py defines {len(found)} subclasses of kserve.Model ({names}), must be one")
    return found[0] if found else None


class KserveForm:
    def __init__(self, cls: type, spec: LoadSpec, declared: Declared) -> None:
        self._cls, self._spec, self._declared = cls, spec, declared
        self.loop = Loop()
        _tell_predictor()
        self.model: Any = cls(**_constructor_arguments(cls, spec))
        if not self.model.ready:
            self.loop.settle(self.model.load())
        if not self.model.ready:
            raise LoadFailed(f"{cls.__name__}.load() returned without setting self.ready = True")
        self.verbs = _verbs(cls)

    def answer(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        _tell_predictor()
        started = [attempt(self._start, request) for request in batch]
        settled = self.loop.settle_all(started)
        return [self._settled(request, value) for request, value in zip(batch, settled, strict=True)]

    def clone(self, instance_name: str) -> "KserveForm":
        return KserveForm(self._cls, self._spec, self._declared)

    def close(self) -> None:
        self.model.stop()
        self.loop.close()

    def _start(self, request: InferRequest) -> Any:
        headers = {HEADER_REQUEST_ID: request.id} if request.id else {}
        if request.document is not None:
            return self.model(dict(request.document), headers, verb=_verb(request.verb))
        return self.model(_kserve_request(request), headers)

    def _settled(self, request: InferRequest, value: Any) -> Answer:
        from kserve.errors import InvalidInput

        if isinstance(value, InvalidInput):
            return BadRequest(str(value.reason))
        if isinstance(value, Exception):
            return value
        found: Answer = attempt(self._outputs if request.document is None else _document, value)
        return found

    def _outputs(self, returned: Any) -> Outputs:
        from kserve import InferResponse

        response = returned[0] if isinstance(returned, tuple) else returned  # (response, headers)
        if isinstance(response, InferResponse):
            return outputs_of({output.name: output.as_numpy() for output in response.outputs}, self._declared)
        if isinstance(response, Mapping):
            return outputs_of(self._from_v1(response), self._declared)
        raise WrongReturn(f"the model returned {type(response).__name__}, must be kserve.InferResponse or a dict")

    def _from_v1(self, response: Mapping[str, Any]) -> dict[str, Any]:
        """{"predictions": [...]} becomes the one output that is declared, or one of that name."""
        if set(response) == {"predictions"} and len(self._declared) == 1:
            response = {next(iter(self._declared)): response["predictions"]}
        return {name: np.asarray(value) for name, value in response.items()}


def _verbs(cls: Any) -> frozenset[str]:
    """What the class does of V1: it takes the JSON itself, as it does under KServe's server."""
    import kserve

    return frozenset({"predict"} | ({"explain"} if cls.explain is not kserve.Model.explain else set()))


def _verb(name: str) -> Any:
    from kserve.model import InferenceVerb

    return InferenceVerb.EXPLAIN if name == "explain" else InferenceVerb.PREDICT


def _document(returned: Any) -> Outputs:
    """The JSON of an answer to V1, as the one output `document`."""
    import orjson
    from kserve import InferResponse

    response = returned[0] if isinstance(returned, tuple) else returned  # (response, headers)
    if isinstance(response, InferResponse):
        columns = {output.name: output.as_numpy().tolist() for output in response.outputs}
        response = {"predictions": next(iter(columns.values())) if len(columns) == 1 else columns}
    if not isinstance(response, Mapping):
        raise WrongReturn(f"the model returned {type(response).__name__}, must be a dict or kserve.InferResponse")
    try:
        text = orjson.dumps(response, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise WrongReturn(f"the model returned what JSON cannot carry: {error}") from None
    return {"document": Tensor("BYTES", np.array([text], dtype=object))}


def _tell_predictor() -> None:
    """A transformer's `predict` asks its predictor, which KServe remembers per context: that of each thread."""
    host = os.environ.get(f"{ENV_SETTINGS_PREFIX}PREDICTOR_HOST")
    if host:
        from kserve import context
        from kserve.predictor_config import PredictorConfig

        if context.get_predictor_config() is None:
            context.set_predictor_config(PredictorConfig(host, "v2"))


def _constructor_arguments(cls: type, spec: LoadSpec) -> dict[str, str]:
    """`name`, and the directory of the version under the names that KServe's examples use for it."""
    known = {"name": spec.config.name, "model_name": spec.config.name}
    known |= dict.fromkeys(("model_dir", "model_path", "path"), str(spec.path.parent))
    parameters = list(inspect.signature(cls).parameters.values())
    taken = [p for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
    unknown = [p.name for p in taken if p.default is p.empty and p.name not in known]
    if unknown:
        raise LoadFailed(
            f"{cls.__name__}.__init__ needs {', '.join(unknown)}: only name and model_dir can be given, set a default"
        )
    return {p.name: known[p.name] for p in taken if p.name in known}


def _kserve_request(request: InferRequest) -> Any:
    import kserve

    inputs = [
        kserve.InferInput(name, list(tensor.array.shape), _datatype(tensor.datatype), data=array_of(tensor))
        for name, tensor in request.inputs.items()
    ]
    return kserve.InferRequest(
        model_name=request.model,
        infer_inputs=inputs,
        request_id=request.id or None,
        parameters=dict(request.parameters),
    )


def _datatype(datatype: str) -> str:
    return "FP32" if datatype == "BF16" else datatype  # kserve knows no BF16; array_of made it float32

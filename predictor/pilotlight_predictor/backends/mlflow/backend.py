"""MLflow models: folders with a file MLmodel.

Models of scikit-learn, XGBoost, LightGBM, ONNX and PyTorch are run by the backends of their files, without the import
of mlflow, which takes seconds; all others by mlflow's python_function. Pickles must be pinned (trusted_pickles.py).
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from pilotlight_predictor.backends.base import Answer, LoadSpec, TensorInstance, first_line
from pilotlight_predictor.backends.mlflow.signature import Field, Signature, read_signature
from pilotlight_predictor.backends.trusted_pickles import open_trusted
from pilotlight_predictor.core.requests import InferRequest, Inputs, Outputs, RequestedOutput
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Array, Tensor, TensorSpec, tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.observability.logs import log

MLMODEL: Final = "MLmodel"
_PICKLES: Final = frozenset({".pkl", ".pickle", ".joblib", ".pth", ".pt", ".ckpt"})
_CODE_INSTEAD: Final = "save it from code (python_model='FILE.py')"
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^;\s]+)")
# What MLflow lets skops load for LightGBM by default; a longer list in MLmodel is the word of the model's author.
_SKOPS_TYPES: Final = frozenset(
    {"lightgbm.sklearn.LGBMClassifier", "lightgbm.sklearn.LGBMRegressor", "lightgbm.basic.Booster",
     "collections.OrderedDict"}
)  # fmt: skip
# Flavour → the key of its file, and the backend that runs it.
_NATIVE: Final = {
    "onnx": ("data", "onnxruntime"), "sklearn": ("pickled_model", "sklearn"), "xgboost": ("data", "xgboost"),
    "lightgbm": ("data", "lightgbm"), "pytorch": ("model_data", "torch.backend"),
}  # fmt: skip
Flavours = Mapping[str, Mapping[str, Any]]
Predict = Callable[[Inputs, Mapping[str, Any]], Any]  # inputs, parameters → DataFrame, array, dict …


class MlflowInstance(TensorInstance):
    """One model; clones share it. Requests with parameters of their own run one by one."""

    open_inputs = True  # names are checked here, and any number type that can be cast is taken

    def __init__(self, predict: Predict, signature: Signature) -> None:
        self._predict, self._signature = predict, signature
        self.inputs = [field.spec for field in signature.inputs]
        self.outputs = [field.spec for field in signature.outputs]

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        if not self._signature.params:
            return super().execute(batch)
        return [self._answer(request) for request in batch]

    def run(self, inputs: Inputs) -> Outputs:
        return self._call(inputs, {})

    def clone(self) -> "MlflowInstance":
        return MlflowInstance(self._predict, self._signature)

    def _answer(self, request: InferRequest) -> Answer:
        given = {key: value for key, value in request.parameters.items() if key in self._signature.params}
        try:
            return self._call(request.inputs, given)
        except Exception as error:
            return error

    def _call(self, inputs: Inputs, params: Mapping[str, Any]) -> Outputs:
        try:
            result = self._predict(by_field(inputs, self._signature.inputs), params)
        except Exception as error:
            raise _client_error(error) or error from None
        return to_outputs(result, self._signature.outputs)


class NativeInstance(MlflowInstance):
    """A model of another backend behind its MLflow signature: columns by name, or as one matrix if it has one input.

    `method`: the output to ask for, such as predict_proba; empty for all.
    """

    def __init__(self, native: TensorInstance, method: str, signature: Signature) -> None:
        super().__init__(self._run_native, signature)
        self._native, self._method = native, method
        self._specs = {spec.name: spec for spec in native.inputs}
        self.inputs, self.quick = self.inputs or list(native.inputs), native.quick

    def clone(self) -> "NativeInstance":
        return NativeInstance(self._native.clone(), self._method, self._signature)

    def close(self) -> None:
        self._native.close()

    def _run_native(self, inputs: Inputs, _: Mapping[str, Any]) -> Any:
        if len(self._specs) == 1 and all(value.datatype != "BYTES" for value in inputs.values()):
            matrix = np.column_stack([value.array.reshape(len(value.array), -1) for value in inputs.values()])
            inputs = {next(iter(self._specs)): Tensor("FP64", matrix)}
        tensors = {name: self._typed(name, value) for name, value in inputs.items()}
        wanted = (RequestedOutput(self._method),) if self._method else ()
        (answer,) = self._native.execute([InferRequest("", tensors, outputs=wanted)])
        if isinstance(answer, Exception):
            raise answer
        return {name: value.array for name, value in answer.items()}

    def _typed(self, name: str, value: Tensor) -> Tensor:
        if value.datatype == "BYTES" or name not in self._specs:
            return value
        datatype = self._specs[name].datatype
        return Tensor(datatype, value.array.astype(NUMPY_TYPES[datatype], copy=False))


def by_field(inputs: Inputs, fields: Sequence[Field]) -> Inputs:
    """Return the inputs of the signature; one matrix of another name is taken for all columns. Raises BadRequest."""
    if not fields:
        return inputs
    known = {field.spec.name for field in fields}
    if len(inputs) == 1 and not known & inputs.keys():
        ((_, (datatype, array)),) = inputs.items()
        if fields[0].kind == "tensor" and len(fields) == 1:
            return {fields[0].spec.name: Tensor(datatype, array)}
        if fields[0].kind != "tensor" and array.ndim == 2 and array.shape[1] == len(fields):
            return {field.spec.name: Tensor(datatype, array[:, index]) for index, field in enumerate(fields)}
    takes = f"the model takes {', '.join(field.spec.name for field in fields)}"
    if unknown := [name for name in inputs if name not in known]:
        raise BadRequest(f"unexpected inference input '{unknown[0]}'; {takes}")
    if missing := [f.spec.name for f in fields if f.spec.name not in inputs and not f.spec.optional]:
        raise BadRequest(f"inputs must also hold {', '.join(missing)}; {takes}")
    return {field.spec.name: inputs[field.spec.name] for field in fields if field.spec.name in inputs}


def to_data(inputs: Inputs, fields: Sequence[Field]) -> Any:
    """Return what a python_function takes: a DataFrame of columns, an array for one tensor without a name, or a dict.

    Without a signature one input is an array, and several are columns.
    """
    if len(inputs) > 1 and not fields:
        fields = [Field(TensorSpec(n, t.datatype, ()), "string", n) for n, t in inputs.items()]
    if not fields or (len(fields) == 1 and fields[0].kind == "tensor" and fields[0].name is None):
        return _plain(next(iter(inputs.values())), fields[0].spec.datatype if fields else "")
    given = [(index, field) for index, field in enumerate(fields) if field.spec.name in inputs]
    if fields[0].kind == "tensor":
        return {field.name: _plain(inputs[field.spec.name], field.spec.datatype) for _, field in given}
    import pandas as pd

    columns = {
        field.name if field.name is not None else index: field.to_column(inputs[field.spec.name].array)
        for index, field in given
    }
    return pd.DataFrame(columns)


def to_outputs(result: Any, fields: Sequence[Field]) -> Outputs:
    """Return the outputs of a DataFrame, Series, dict, array or list by the names of the signature."""
    if hasattr(result, "toarray"):  # a sparse matrix
        result = result.toarray()
    if isinstance(result, list) and result and isinstance(result[0], Mapping):
        result = {name: [row.get(name) for row in result] for name in result[0]}
    if isinstance(result, Mapping) or hasattr(result, "columns"):
        named = {str(name): result[name] for name in result}
    elif len(fields) > 1 and np.ndim(result) == 2 and np.shape(result)[1] == len(fields):
        named = {field.spec.name: np.asarray(result)[:, index] for index, field in enumerate(fields)}
    else:
        named = {fields[0].spec.name if fields else "output-0": [result] if np.ndim(result) == 0 else result}
    if len(fields) == 1 and len(named) == 1:
        named = {fields[0].spec.name: next(iter(named.values()))}
    declared = {field.spec.name: field for field in fields}
    return {
        name: tensor(declared[name].to_array(values) if name in declared else np.asarray(values))
        for name, values in named.items()
    }


def load(spec: LoadSpec) -> TensorInstance:
    import yaml

    folder = spec.path if spec.path.is_dir() else spec.path.parent
    try:
        document = yaml.safe_load((folder / MLMODEL).read_bytes())
        flavours: Flavours = dict(document["flavors"])
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        raise LoadFailed(f"{folder / MLMODEL} cannot be read: {first_line(error)}") from None
    signature = read_signature(document)
    _warn_about_versions(spec.config.name, folder / "requirements.txt")
    method = str(flavours.get("python_function", {}).get("predict_fn", "predict"))
    native = _native_instance(spec, folder, flavours)
    if native is None:
        return MlflowInstance(_python_function(spec, folder, flavours, signature), signature)
    if signature.by_columns or method != "predict":
        return NativeInstance(native, method if "sklearn" in flavours else "", signature)
    return native


def _native_instance(spec: LoadSpec, folder: Path, flavours: Flavours) -> TensorInstance | None:
    """Return the instance of a model file that a backend of ours runs; None if it has code of its own, or none does."""
    name = next((name for name in _NATIVE if name in flavours and not flavours[name].get("code")), "")
    if not name or (name == "lightgbm" and not str(flavours[name].get("model_class", "Booster")).endswith("Booster")):
        return None
    key, backend = _NATIVE[name]
    path = _inside(folder, flavours[name].get(key, "data"))
    if name == "pytorch":
        path = next((path / each for each in ("model.pt2", "model.pth") if (path / each).is_file()), path)
    instance: TensorInstance = import_module(f"pilotlight_predictor.backends.{backend}").load(replace(spec, path=path))
    return instance


def _python_function(spec: LoadSpec, folder: Path, flavours: Flavours, signature: Signature) -> Predict:
    """Load by mlflow, once every pickle in the folder is pinned; mlflow itself opens them by name."""
    if "python_function" not in flavours:
        raise LoadFailed(f"{MLMODEL} has the flavours {', '.join(flavours)}: save it with python_function as well")
    for path in _pickles(folder, flavours):
        open_trusted(path, spec.trusted_pickles, "a pickle", _CODE_INSTEAD).close()
    for flavour in flavours.values():
        if flavour.get("serialization_format") == "skops":
            _check_skops(spec, _inside(folder, flavour.get("pickled_model") or flavour.get("data")), flavour)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        import mlflow.pyfunc
    except ImportError as error:
        raise LoadFailed(f"MLflow models need the mlflow extra: pip install 'pilotlight[mlflow]' ({error})") from None
    try:
        model = mlflow.pyfunc.load_model(str(folder), suppress_warnings=True)
    except Exception as error:
        raise LoadFailed(f"mlflow cannot load {folder.name}: {type(error).__name__}: {first_line(error)}") from error
    return lambda inputs, params: model.predict(to_data(inputs, signature.inputs), params=dict(params) or None)


def _pickles(folder: Path, flavours: Flavours) -> list[Path]:
    """Return files that are pickles by their names, and those that MLmodel says are read as such."""
    stated = {_inside(folder, each["python_model"]) for each in flavours.values() if each.get("python_model")}
    for each in flavours.values():
        if each.get("pickled_model") and each.get("serialization_format") != "skops":
            stated.add(_inside(folder, each["pickled_model"]))
    return sorted(path for path in folder.rglob("*") if path.is_file() and (path.suffix in _PICKLES or path in stated))


def _check_skops(spec: LoadSpec, path: Path, flavour: Mapping[str, Any]) -> None:
    """Require a pin where MLmodel itself names types to trust: skops is safe without such a list only."""
    if set(flavour.get("skops_trusted_types") or ()) - _SKOPS_TYPES and path.suffix == ".skops":
        open_trusted(path, spec.trusted_pickles, "types that MLmodel trusts", "save it without them").close()


def _inside(folder: Path, name: Any) -> Path:
    path = folder / str(name)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise LoadFailed(f"{MLMODEL} names {name}, which is outside of the model's folder")
    return path


def _warn_about_versions(model: str, requirements: Path) -> None:
    """Warn once about packages whose installed version is not the one that the model was saved with."""
    from importlib.metadata import PackageNotFoundError, version

    differ = []
    for name, wanted in _PINNED.findall(requirements.read_text("utf-8") if requirements.is_file() else ""):
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = "missing"
        if installed != wanted and name not in {"mlflow", "mlflow-skinny"}:
            differ.append(f"{name} {wanted} (here {installed})")
    if differ:
        message = f"model '{model}' was saved with other versions: {', '.join(differ)}; install its requirements.txt"
        log("mlflow.versions", message, level="WARNING", model=model)


def _plain(value: Tensor, datatype: str) -> Array:
    """Return the array in the declared datatype, if there is one; text as str."""
    if value.datatype != "BYTES":
        return value.array.astype(NUMPY_TYPES[datatype], copy=False) if datatype else value.array
    return np.array([item.decode() for item in value.array.ravel()], dtype=object).reshape(value.array.shape)


def _client_error(error: Exception) -> BadRequest | None:
    """Return a BadRequest if the request does not fit the signature; None for other failures."""
    if getattr(error, "error_code", "") in {"BAD_REQUEST", "INVALID_PARAMETER_VALUE"}:
        return BadRequest(f"the model refuses the input: {first_line(error)}")
    return None

"""MLflow models: folders with a file MLmodel.

Models of scikit-learn, XGBoost, LightGBM, ONNX and PyTorch, and text classifiers of transformers are run by the
backends of their files, without the import of mlflow, which takes seconds; estimators with code of their own are called
with DataFrames, and all others by mlflow's python_function.
Pickles must be pinned (trusted_pickles.py).
"""

import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from msgspec.structs import replace

from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.model_formats import PICKLE_SUFFIXES
from pilotlight_predictor.backends.base import Answer, LoadSpec, TensorInstance, first_line
from pilotlight_predictor.backends.mlflow.signature import Signature, by_field, read_signature, to_data, to_outputs
from pilotlight_predictor.backends.python.source import UserModule
from pilotlight_predictor.backends.sklearn import read_estimator
from pilotlight_predictor.backends.trusted_pickles import finding, open_trusted
from pilotlight_predictor.core.batch import join, rows_of
from pilotlight_predictor.core.requests import InferRequest, Inputs, LayoutKind, Outputs, RequestedOutput
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.observability.logs import log

MLMODEL: Final = "MLmodel"
_PICKLES: Final = frozenset({*PICKLE_SUFFIXES, ".pth", ".pt", ".ckpt"})
_CODE_INSTEAD: Final = "save it from code (python_model='FILE.py')"
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^;\s]+)")
# Flavour → the key of its file, and the backend that runs it.
_NATIVE: Final = {
    "onnx": ("data", "onnxruntime"), "sklearn": ("pickled_model", "sklearn"), "xgboost": ("data", "xgboost"),
    "lightgbm": ("data", "lightgbm"), "pytorch": ("model_data", "torch.backend"),
    "transformers": ("model_binary", "huggingface.backend"),
}  # fmt: skip
# What python_function of a flavour returns for a DataFrame, if not an array.
_KINDS: Final[Mapping[str, LayoutKind]] = {"onnx": "records", "transformers": "records", "pytorch": "matrix"}
TEXTS: Final = 32  # rows that a text model computes at once; clients of MLflow send whole tables
Flavours = Mapping[str, Mapping[str, Any]]
Predict = Callable[[Inputs, Mapping[str, Any]], Any]  # inputs, parameters → DataFrame, array, dict …


class MlflowInstance(TensorInstance):
    """One model; clones share it. Requests with parameters of their own run one by one."""

    open_inputs = True  # names are checked here, and any number type that can be cast is taken
    _kind: LayoutKind | None = None  # of predictions, if not what `predict` returns

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
        return to_outputs(result, self._signature.outputs, self._kind)


class NativeInstance(MlflowInstance):
    """A model of another backend behind its MLflow signature: columns by name, or as one matrix if it has one input.

    `method`: the output to ask for, such as predict_proba; empty for all. `kind`: what python_function would return.
    Texts are computed in batches of TEXTS rows.
    """

    def __init__(self, native: TensorInstance, method: str, signature: Signature, kind: LayoutKind | None) -> None:
        super().__init__(self._run_native, signature)
        self._native, self._method, self._kind = native, method, kind
        self._specs = {spec.name: spec for spec in native.inputs}
        self._texts = bool(self._specs) and all(spec[1:3] == ("BYTES", (-1,)) for spec in native.inputs)
        self.inputs, self.quick = self.inputs or list(native.inputs), native.quick

    def clone(self) -> "NativeInstance":
        return NativeInstance(self._native.clone(), self._method, self._signature, self._kind)

    def close(self) -> None:
        self._native.close()

    def _run_native(self, inputs: Inputs, _: Mapping[str, Any]) -> Any:
        if len(self._specs) == 1 and all(value.datatype != "BYTES" for value in inputs.values()):
            ((name, spec),) = self._specs.items()
            names = spec.columns if inputs.keys() == set(spec.columns) else tuple(inputs)
            matrix = np.column_stack([inputs[each].array.reshape(len(inputs[each].array), -1) for each in names])
            inputs = {name: Tensor("FP64", matrix)}
        elif self._texts and len(inputs) == 1 and not self._specs.keys() & inputs.keys():  # a column without a name
            inputs = {next(iter(self._specs)): next(iter(inputs.values()))}
        tensors = {name: self._typed(name, value) for name, value in inputs.items()}
        rows = max(rows_of(tensors), 1)
        step = TEXTS if self._texts else rows
        answer = join([self._answer_rows(tensors, start, start + step) for start in range(0, rows, step)])
        return {name: value.array for name, value in answer.items()}

    def _answer_rows(self, tensors: Inputs, start: int, end: int) -> Outputs:
        part = {name: Tensor(value.datatype, value.array[start:end]) for name, value in tensors.items()}
        wanted = (RequestedOutput(self._method),) if self._method else ()
        (answer,) = self._native.execute([InferRequest("", part, outputs=wanted)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _typed(self, name: str, value: Tensor) -> Tensor:
        spec = self._specs.get(name)
        if spec is None:
            return value
        if value.datatype == "BYTES":
            return Tensor("BYTES", value.array.reshape(-1)) if self._texts else value
        return Tensor(spec.datatype, value.array.astype(NUMPY_TYPES[spec.datatype], copy=False))


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
    native = _native_instance(spec, folder, flavours, signature)
    if native is None:
        make = _estimator if "sklearn" in flavours else _python_function
        return MlflowInstance(make(spec, folder, flavours, signature), signature)
    if signature.by_columns or method != "predict":
        chosen = method if "sklearn" in flavours else ""
        kind: LayoutKind = next((kind for name, kind in _KINDS.items() if name in flavours), "values")
        return NativeInstance(native, chosen, signature, kind)
    return native


def _native_instance(spec: LoadSpec, folder: Path, flavours: Flavours, signature: Signature) -> TensorInstance | None:
    """Return the instance of the backend that runs the model file; None if it has code of its own, or none does."""
    own = {name: _inside(folder, flavours[name].get("code") or "") for name in _NATIVE if name in flavours}
    name = next((name for name, code in own.items() if name == "lightgbm" or code == folder), "")
    if not name:
        return None
    if name == "transformers" and not _is_plain_classifier(flavours, signature):
        return None
    key, backend = _NATIVE[name]
    if name == "lightgbm" and not str(flavours[name].get("model_class", "Booster")).endswith("Booster"):
        backend = "sklearn"
    path = _inside(folder, flavours[name].get(key, "data"))
    if name == "transformers":
        parameters = {**spec.config.parameters, "task": "text-classification"}
        spec = replace(spec, config=replace(spec.config, parameters=parameters))
    if name == "pytorch":
        path = next((path / each for each in ("model.pt2", "model.pth") if (path / each).is_file()), path)
    instance: TensorInstance = import_module(f"pilotlight_predictor.backends.{backend}").load(
        replace(spec, path=path, model_dir=own[name])
    )
    return instance


def _is_plain_classifier(flavours: Flavours, signature: Signature) -> bool:
    """Whether mlflow's python_function returns what the pipeline does: the label and the score of each text."""
    flavour, options = flavours["transformers"], flavours.get("python_function", {}).get("config")
    whole = "model_binary" in flavour and "peft_adaptor" not in flavour
    return flavour.get("task") == "text-classification" and whole and not (options or signature.params)


def _estimator(spec: LoadSpec, folder: Path, flavours: Flavours, signature: Signature) -> Predict:
    """Read an estimator of scikit-learn that has code of its own, which may take columns by their names."""
    flavour = flavours["sklearn"]
    code = UserModule(_inside(folder, flavour["code"]) / "model.py", folder)
    try:
        estimator = read_estimator(replace(spec, path=_inside(folder, flavour.get("pickled_model"))), code.pickled)
        predict = getattr(estimator, str(flavours.get("python_function", {}).get("predict_fn", "predict")))
    except BaseException:
        code.close()
        raise
    weakref.finalize(estimator, code.close)
    return lambda inputs, _: predict(to_data(inputs, signature.inputs))


def _python_function(spec: LoadSpec, folder: Path, flavours: Flavours, signature: Signature) -> Predict:
    """Load by mlflow, once every pickle in the folder is pinned; mlflow itself opens them by name."""
    if "python_function" not in flavours:
        raise LoadFailed(f"{MLMODEL} has the flavours {', '.join(flavours)}: save it with python_function too")
    pickles = _pickles(folder, flavours)
    for path in pickles:
        open_trusted(path, spec.trusted_pickles, "a pickle", _CODE_INSTEAD).close()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        import mlflow.pyfunc
    except ImportError as error:
        raise LoadFailed(f"MLflow models need the mlflow extra: {install_command('mlflow')} ({error})") from None
    trusted = pickles or not {"code", "model_code_path"}.isdisjoint(flavours["python_function"])
    try:
        with finding(_no_code, MLMODEL) if trusted else finding(_no_pickle):
            model = mlflow.pyfunc.load_model(str(folder), suppress_warnings=True)
    except LoadFailed:
        raise
    except Exception as error:
        raise LoadFailed(f"mlflow cannot load {folder.name}: {type(error).__name__}: {first_line(error)}") from error
    return lambda inputs, params: model.predict(to_data(inputs, signature.inputs), params=dict(params) or None)


def _no_code(module: str, name: str) -> NoReturn:
    fix = "save the model with code_paths=[FILE] of the module that defines it"
    raise LoadFailed(f"a pickle of the model needs {module}.{name}, which is not here: {fix}")


def _no_pickle(module: str, name: str) -> NoReturn:
    """Refuse what no pin covers: pickles of protocol 0 look like text, and some loaders read any file as a pickle."""
    raise LoadFailed(f"{MLMODEL} leads to a pickle, of another name, that needs {module}.{name}: {_CODE_INSTEAD}")


def _pickles(folder: Path, flavours: Flavours) -> list[Path]:
    """Return files that are pickles by name or first bytes, and those that MLmodel says are read as such."""
    stated = {_inside(folder, each["python_model"]) for each in flavours.values() if each.get("python_model")}
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if path.suffix in _PICKLES or path in stated or _begins_as_pickle(path))


def _begins_as_pickle(path: Path) -> bool:
    """Whether a file has the first bytes of a pickle: loaders of MLflow read some under names of their own."""
    with path.open("rb") as file:
        return re.match(rb"\x80[\2-\5]", file.read(2)) is not None


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


def _client_error(error: Exception) -> BadRequest | None:
    """Return a BadRequest if the request does not fit the signature; None for other failures."""
    if getattr(error, "error_code", "") in {"BAD_REQUEST", "INVALID_PARAMETER_VALUE"}:
        return BadRequest(f"the model rejects the input: {first_line(error)}")
    return None

"""User code as a model: a model.py beside which its own files may lie. Four forms, recognised by what it defines.

    class TritonPythonModel     Triton's, unchanged                  triton_model.py
    class … (kserve.Model)      KServe's, unchanged                  kserve_model.py
    class Model                 initialize / execute / finalize      python_forms.py
    def predict(x, y)           argument names are input names       python_forms.py

Constants INPUTS and OUTPUTS describe the tensors when there is no configuration: INPUTS = {"x": ("FP32", [-1, 4])}.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from pilotlight_predictor.backends import kserve_model, triton_model
from pilotlight_predictor.backends import triton_python_backend_utils as pb_utils
from pilotlight_predictor.backends.base import Answer, Asked, LoadSpec
from pilotlight_predictor.backends.declared_tensors import Specs, declared
from pilotlight_predictor.backends.model_source import Source, trimmed
from pilotlight_predictor.backends.python_forms import ClassForm, Form, FunctionForm
from pilotlight_predictor.backends.python_parking import parking
from pilotlight_predictor.backends.python_values import declared_outputs
from pilotlight_predictor.backends.triton_calls import Calling
from pilotlight_predictor.errors import BackendFailed, LoadFailed, PredictorError
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.tensors import TensorSpec

T = TypeVar("T")


class PythonInstance:
    """A form and the source it came from; turns what user code raises into an opaque error with a useful cause."""

    quick = False

    def __init__(
        self, name: str, form: Form, source: Source, specs: tuple[Specs, Specs], numbers: "count[int]"
    ) -> None:
        self._name, self._form, self._source, self._numbers = name, form, source, numbers
        self._specs = specs
        self.completed: ModelConfig | None = None  # what the model itself made of its configuration
        self.inputs: Sequence[TensorSpec] = specs[0]
        self.outputs: Sequence[TensorSpec] = specs[1]
        self.parking = parking(form, self._opaque)
        self.verbs: frozenset[str] = getattr(form, "verbs", frozenset())  # of V1, which only kserve.Model knows

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        try:
            answers = self._form.answer(batch)
        except Exception as error:
            answers = [error] * len(batch)
        return [self._opaque(answer) if isinstance(answer, Exception) else answer for answer in answers]

    def clone(self) -> "PythonInstance":
        form = _guarded(self._name, self._source, lambda: self._form.clone(f"{self._name}_{next(self._numbers)}"))
        return _made(type(self), self._name, form, self._source.share(), self._specs, self._numbers)

    def close(self) -> None:
        self.parking = None  # which holds us: a circle
        try:
            self._form.close()
        finally:
            self._source.close()

    def _opaque(self, error: Exception) -> Exception:
        if isinstance(error, PredictorError):
            return error
        failed = BackendFailed(f"model {self._name!r} raised {type(error).__name__}: see the server's log")
        failed.__cause__ = trimmed(error, self._source.folders)
        return failed


class DecoupledPythonInstance(PythonInstance):
    """Of a form that answers in parts."""

    decoupled = True

    def begin(self, batch: Sequence[Asked]) -> None:
        assert isinstance(self._form, triton_model.DecoupledTritonForm)
        try:
            self._form.begin(batch)
        except Exception as error:
            failed = self._opaque(error)
            for asked in batch:
                asked.send(failed)


def load(spec: LoadSpec) -> PythonInstance:
    if not spec.path.is_file():
        raise LoadFailed(f"model {spec.config.name!r} has no {spec.path.name} in version {spec.version}")
    specs = declared(spec.path)
    module, calling = pb_utils.bound_to(spec)
    source = Source(spec.path, spec.model_dir, {pb_utils.NAME: module}, calling.leave)
    try:
        written = _completed(source, spec)
        whole = replace(spec, config=written or spec.config)
        calling.decoupled = whole.config.decoupled
        form = _guarded(spec.config.name, source, lambda: _form(source.module, whole, specs[1], calling))
    except LoadFailed:
        source.close()
        raise
    kind = DecoupledPythonInstance if isinstance(form, triton_model.DecoupledTritonForm) else PythonInstance
    instance = _made(kind, spec.config.name, form, source, specs, count(1))
    instance.completed = written
    return instance


def _made(
    kind: type[PythonInstance], name: str, form: Form, source: Source, specs: tuple[Specs, Specs], numbers: "count[int]"
) -> PythonInstance:
    """One that what its class says of itself does not fit is freed as any other."""
    try:
        return _guarded(name, source, lambda: kind(name, form, source, specs, numbers))
    except LoadFailed:
        try:
            form.close()
        finally:
            source.close()
        raise


def _completed(source: Source, spec: LoadSpec) -> ModelConfig | None:
    cls = getattr(source.module, "TritonPythonModel", None)
    if not isinstance(cls, type):
        return None
    return _guarded(spec.config.name, source, lambda: triton_model.completed(cls, spec))


def _form(module: Any, spec: LoadSpec, outputs: Specs, calling: Calling) -> Form:
    known = declared_outputs(spec.config, outputs)
    if isinstance(getattr(module, "TritonPythonModel", None), type):
        kind = triton_model.DecoupledTritonForm if spec.config.decoupled else triton_model.TritonForm
        return kind(module.TritonPythonModel, triton_model.triton_args(spec), known, calling)
    wrapped = kserve_model.find(module)
    if wrapped is not None:
        return kserve_model.KserveForm(wrapped, spec, known)
    if isinstance(getattr(module, "Model", None), type):
        return ClassForm(module.Model, triton_model.triton_args(spec), known)
    if callable(getattr(module, "predict", None)):
        form = FunctionForm(module.predict, known)
        form.check_inputs([tensor.name for tensor in spec.config.inputs])
        return form
    raise LoadFailed(
        f"{spec.path.name} of model {spec.config.name!r} defines none of: def predict, class Model, "
        f"class TritonPythonModel, a subclass of kserve.Model"
    )


def _guarded(name: str, source: Source, make: Callable[[], T]) -> T:
    try:
        return make()
    except PredictorError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise LoadFailed(f"model {name!r} could not be initialised: {reason}") from trimmed(error, source.folders)

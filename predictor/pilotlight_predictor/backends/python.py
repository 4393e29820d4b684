"""User code as a model: a model.py beside which its own files may lie. Four forms, recognised by what it defines.

    class TritonPythonModel     Triton's, unchanged                  triton_model.py
    class … (kserve.Model)      KServe's, unchanged                  kserve_model.py
    class Model                 initialize / execute / finalize      python_forms.py
    def predict(x, y)           argument names are input names       python_forms.py

Constants INPUTS and OUTPUTS describe the tensors when there is no configuration: INPUTS = {"x": ("FP32", [-1, 4])}.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any

from pilotlight_predictor.backends import kserve_model, triton_model
from pilotlight_predictor.backends.base import Answer, LoadSpec
from pilotlight_predictor.backends.declared_tensors import Specs, declared
from pilotlight_predictor.backends.model_source import Source, trimmed
from pilotlight_predictor.backends.python_forms import ClassForm, Form, FunctionForm
from pilotlight_predictor.backends.python_values import declared_outputs
from pilotlight_predictor.errors import BackendFailed, LoadFailed, PredictorError
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.tensors import TensorSpec


class PythonInstance:
    """A form and the source it came from; turns what user code raises into an opaque error with a useful cause."""

    quick = False

    def __init__(
        self, name: str, form: Form, source: Source, specs: tuple[Specs, Specs], numbers: "count[int]"
    ) -> None:
        self._name, self._form, self._source, self._numbers = name, form, source, numbers
        self._specs = specs
        self.inputs: Sequence[TensorSpec] = specs[0]
        self.outputs: Sequence[TensorSpec] = specs[1]
        self.verbs: frozenset[str] = getattr(form, "verbs", frozenset())  # of V1, which only kserve.Model knows

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        try:
            answers = self._form.answer(batch)
        except Exception as error:
            answers = [error] * len(batch)
        return [self._opaque(answer) if isinstance(answer, Exception) else answer for answer in answers]

    def clone(self) -> "PythonInstance":
        form = _guarded(self._name, self._source, lambda: self._form.clone(f"{self._name}_{next(self._numbers)}"))
        return PythonInstance(self._name, form, self._source.share(), self._specs, self._numbers)

    def close(self) -> None:
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


def load(spec: LoadSpec) -> PythonInstance:
    if not spec.path.is_file():
        raise LoadFailed(f"model {spec.config.name!r} has no {spec.path.name} in version {spec.version}")
    triton_model.offer_utils()
    specs = declared(spec.path)
    source = Source(spec.path, spec.model_dir)
    try:
        form = _guarded(spec.config.name, source, lambda: _form(source.module, spec, specs[1]))
    except LoadFailed:
        source.close()
        raise
    return PythonInstance(spec.config.name, form, source, specs, count(1))


def _form(module: Any, spec: LoadSpec, outputs: Specs) -> Form:
    known = declared_outputs(spec.config, outputs)
    if isinstance(getattr(module, "TritonPythonModel", None), type):
        return triton_model.TritonForm(module.TritonPythonModel, triton_model.triton_args(spec), known)
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


def _guarded(name: str, source: Source, make: Any) -> Form:
    try:
        form: Form = make()
    except PredictorError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise LoadFailed(f"model {name!r} could not be initialised: {reason}") from trimmed(error, source.folders)
    return form

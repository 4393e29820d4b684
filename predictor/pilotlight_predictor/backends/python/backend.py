"""Python backend: a model.py, with its own modules next to it. Four kinds, recognised by what it defines.

class TritonPythonModel     Triton's, unchanged                  triton/model.py
class … (kserve.Model)      KServe's, unchanged                  kserve.py
class Model                 initialize, execute or predict       functions.py; another name by the parameter `class`
def predict(x, y)           argument names are input names       functions.py; likewise
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from itertools import count
from operator import index
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from pilotlight_predictor.backends.base import Answer, DecoupledRequest, LoadSpec
from pilotlight_predictor.backends.python import kserve
from pilotlight_predictor.backends.python.functions import (
    ClassModel,
    Declared,
    FunctionModel,
    ModelEventLoop,
    Specs,
    UserModel,
    declared,
    declared_outputs,
)
from pilotlight_predictor.backends.python.source import UserModule, import_reason, own_classes, trim_traceback
from pilotlight_predictor.backends.python.triton import model as triton_model
from pilotlight_predictor.backends.python.triton import pb_utils
from pilotlight_predictor.backends.python.triton.bls import BlsCaller
from pilotlight_predictor.backends.trusted_pickles import finding
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import BackendFailed, LoadFailed, PredictorError
from pilotlight_predictor.repository.model_config import ModelConfig

T = TypeVar("T")
CLASS_PARAMETER: Final = "class"
CLASS_METHODS: Final = ("predict", "execute", "execute_batch")


class UserModelParking:
    """A Parkable (backends/base.py) of a user's object that defines `park` and `wake`, one for each instance.

    The object frees its GPU memory and restores it itself. Its optional `park_bytes` is the host memory it needs while
    parked, which counts against --park-memory. Its exceptions are converted by `opaque`.
    """

    def __init__(self, model: Any, loop: ModelEventLoop, opaque: Callable[[Exception], Exception]) -> None:
        self._model, self._loop, self._opaque = model, loop, opaque
        wanted = getattr(model, "park_bytes", 0)
        try:
            self.size = index(wanted)
        except TypeError:
            self.size = -1
        if self.size < 0:  # fails the load, not a later parking
            raise LoadFailed(f"park_bytes = {wanted!r}, must be a whole number of bytes")
        self.parked = False

    @property
    def host_bytes(self) -> int:
        return self.size if self.parked else 0

    def prepare(self) -> None:
        """Do nothing: user code parks in one method, while no request runs."""

    def park(self) -> None:
        if not self.parked:
            self._call(self._model.park)
            self.parked = True

    def wake(self) -> None:
        if self.parked:
            self._call(self._model.wake)
            self.parked = False

    def drop_host_copy(self) -> None:
        """Do nothing: user code owns the host copy."""

    def _call(self, method: Callable[[], Any]) -> None:
        try:
            self._loop.resolve(method())
        except Exception as error:
            failure = self._opaque(error)
            raise failure from failure.__cause__


def create_parking(model: UserModel, opaque: Callable[[Exception], Exception]) -> UserModelParking | None:
    """Return None unless the user's object defines both `park` and `wake`."""
    target, loop = getattr(model, "model", None), getattr(model, "loop", None)
    if loop is None or not callable(getattr(target, "park", None)) or not callable(getattr(target, "wake", None)):
        return None
    return UserModelParking(target, loop, opaque)


class PythonInstance:
    """A user model and its module; exceptions of user code become opaque errors with the exception as cause."""

    quick = False

    def __init__(
        self, name: str, model: UserModel, module: UserModule, specs: tuple[Specs, Specs], numbers: "count[int]"
    ) -> None:
        self._name, self._model, self._module, self._numbers = name, model, module, numbers
        self._specs = specs
        self.completed: ModelConfig | None = None  # by the model's own auto_complete_config
        self.inputs: Sequence[TensorSpec] = specs[0]
        self.outputs: Sequence[TensorSpec] = specs[1]
        self.parking = create_parking(model, self._opaque)
        self.verbs: frozenset[str] = getattr(model, "verbs", frozenset())  # of V1, for kserve.Model only

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        try:
            answers = self._model.execute(batch)
        except Exception as error:
            answers = [error] * len(batch)
        return [self._opaque(answer) if isinstance(answer, Exception) else answer for answer in answers]

    def clone(self) -> "PythonInstance":
        model = _guarded(self._module, lambda: self._model.clone(f"{self._name}_{next(self._numbers)}"))
        return _create_instance(type(self), self._name, model, self._module.share(), self._specs, self._numbers)

    def close(self) -> None:
        self.parking = None  # breaks a reference cycle
        try:
            self._model.close()
        finally:
            self._module.close()

    def _opaque(self, error: Exception) -> Exception:
        if isinstance(error, PredictorError):
            return error
        failed = BackendFailed(f"model {self._name!r} raised {type(error).__name__}: see the server's log")
        failed.__cause__ = trim_traceback(error, self._module.folders)
        return failed


class DecoupledPythonInstance(PythonInstance):
    """Instance of a decoupled user model."""

    decoupled = True

    def begin(self, batch: Sequence[DecoupledRequest]) -> None:
        assert isinstance(self._model, triton_model.DecoupledTritonModel)
        try:
            self._model.begin(batch)
        except Exception as error:
            failed = self._opaque(error)
            for request in batch:
                request.send(failed)


def load(spec: LoadSpec) -> PythonInstance:
    if not spec.path.is_file():
        raise LoadFailed(f"model {spec.config.name!r} has no {spec.path.name} in version {spec.version}")
    specs = declared(spec.path, spec.config.parameters.get(CLASS_PARAMETER, ""))
    module, caller = pb_utils.create_module(spec)
    user_module = UserModule(spec.path, spec.model_dir, {pb_utils.NAME: module}, caller.close)
    try:
        cls, written = getattr(user_module.module, "TritonPythonModel", None), None
        if isinstance(cls, type):
            written = _guarded(user_module, lambda: triton_model.auto_completed_config(cls, spec))
        whole = replace(spec, config=written or spec.config)
        caller.decoupled = whole.config.decoupled
        model = _guarded(user_module, lambda: _model(user_module.module, whole, specs[1], caller))
        function = model.function if isinstance(model, ClassModel) else model
        if isinstance(function, FunctionModel):
            function.check_required([tensor.name for tensor in spec.config.inputs or specs[0]])
    except PredictorError:
        user_module.close()
        raise
    kind = DecoupledPythonInstance if isinstance(model, triton_model.DecoupledTritonModel) else PythonInstance
    instance = _create_instance(kind, spec.config.name, model, user_module, specs, count(1))
    instance.completed = written
    return instance


def _create_instance(
    kind: type[PythonInstance], name: str, model: UserModel, module: UserModule, specs: tuple[Specs, Specs],
    numbers: "count[int]",
) -> PythonInstance:  # fmt: skip
    """Create an instance; on failure close its model and module."""
    try:
        return _guarded(module, lambda: kind(name, model, module, specs, numbers))
    except LoadFailed:
        try:
            model.close()
        finally:
            module.close()
        raise


def _model(module: Any, spec: LoadSpec, outputs: Specs, caller: BlsCaller) -> UserModel:
    known = declared_outputs(spec.config, outputs)
    if name := spec.config.parameters.get(CLASS_PARAMETER):
        return _named_model(module, name, spec, known)
    if isinstance(getattr(module, "TritonPythonModel", None), type):
        kind = triton_model.DecoupledTritonModel if spec.config.decoupled else triton_model.TritonModel
        return kind(module.TritonPythonModel, triton_model.triton_args(spec), known, caller)
    wrapped = kserve.find_model_class(module)
    if wrapped is not None:
        return kserve.KserveModel(wrapped, spec, known)
    if isinstance(getattr(module, "Model", None), type):
        _refuse_torch_module(module.Model)
        return ClassModel(module.Model, triton_model.triton_args(spec), known)
    if callable(getattr(module, "predict", None)):
        model = FunctionModel(module.predict, known)
        model.check_inputs([tensor.name for tensor in spec.config.inputs])
        return model
    classes = own_classes(module)
    able = [each for each in classes if any(callable(getattr(each, name, None)) for name in CLASS_METHODS)]
    able = able or [each for each in classes if "__call__" in vars(each)]
    if len(able) == 1:
        return ClassModel(able[0], triton_model.triton_args(spec), known)
    for each in classes:
        _refuse_torch_module(each)
    functions = [value for value in vars(module).values() if inspect.isfunction(value)]
    names = [each.__name__ for each in (*able, *classes)]
    names += [each.__name__ for each in functions if each.__module__ == module.__name__]
    name = next(iter(names), "CLASS")
    raise LoadFailed(
        f"{spec.path.name} defines none of: def predict, class Model or one class with predict, class "
        f"TritonPythonModel, a subclass of kserve.Model; name what to serve behind the file, as in "
        f"{spec.path.name}:{name}, or by the parameter class={name}"
    )


def _named_model(module: Any, name: str, spec: LoadSpec, known: Declared) -> UserModel:
    cls = getattr(module, name, None)
    if inspect.isfunction(cls):
        return FunctionModel(cls, known)
    if not isinstance(cls, type):
        raise LoadFailed(f"{spec.path.name} of model {spec.config.name!r} defines no class or function {name}")
    if kserve.is_model_class(cls):
        return kserve.KserveModel(cls, spec, known)
    _refuse_torch_module(cls)
    return ClassModel(cls, triton_model.triton_args(spec), known)


def _refuse_torch_module(cls: type) -> None:
    """Raise LoadFailed if the torch backend should serve the class, which has no method that could load its weights."""
    torch = sys.modules.get("torch")  # imported by the user's code, if at all
    module = getattr(getattr(torch, "nn", None), "Module", None)
    own = any(callable(getattr(cls, name, None)) for name in (*CLASS_METHODS, "initialize"))
    if module and issubclass(cls, module) and not own:
        raise LoadFailed(
            f"{cls.__name__} is a torch.nn.Module: put its weights beside it as model.pt, name this file model.py, and "
            "deploy the folder"
        )


def _guarded(module: UserModule, make: Callable[[], T]) -> T:
    try:
        with finding(module.pickled):
            return make()
    except PredictorError:
        raise
    except (Exception, SystemExit) as error:
        failed = LoadFailed(f"{module.path.name} could not be initialised: {import_reason(error, module.path)}")
        raise failed from trim_traceback(error, module.folders)

"""Plain kinds of a model.py: a function `predict` and a class `Model`, and what every kind shares.

That is the conversion between tensors and numpy arrays (user code has no BF16: it gets float32 and may return it), and
the declarations INPUTS and OUTPUTS. Methods may be async: the requests of a batch then run concurrently on the
instance's own event loop.
"""

import ast
import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from pilotlight_predictor.backends.base import Answer
from pilotlight_predictor.backends.python import annotated_arguments
from pilotlight_predictor.core.requests import UNNAMED, InferRequest, Inputs, Outputs
from pilotlight_predictor.core.tensors import (
    DATATYPES,
    NUMPY_TYPES,
    Array,
    Shape,
    Tensor,
    TensorSpec,
    bf16_from_float,
    bf16_to_float,
    fits,
    tensor,
)
from pilotlight_predictor.errors import BackendFailed, BadRequest, LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig


class WrongReturn(BackendFailed):
    """The model returned an invalid value; the text names it and what it must be."""


class DeclaredOutput(NamedTuple):
    """Declaration of one output; an empty datatype or no shape allows any. The shape includes the batch dimension."""

    datatype: str = ""
    shape: Shape | None = None


Declared = Mapping[str, DeclaredOutput]
Specs = tuple[TensorSpec, ...]
_ANY: Final = DeclaredOutput()
_TEXTS: Final = frozenset({"STRING", "STR", "TEXT", "TYPE_STRING"})
_PARSING: Final = Lock()  # ast.parse of Python 3.11 has one recursion counter for all threads


def declared_outputs(config: ModelConfig, outputs: Sequence[TensorSpec]) -> dict[str, DeclaredOutput]:
    """Outputs by name, from the configuration, else from the module's OUTPUTS."""
    own = {spec.name: DeclaredOutput(spec.datatype, spec.shape) for spec in outputs}
    if not config.outputs:
        return own
    front = (-1,) if config.max_batch_size > 0 else ()
    declared = {}
    for output in config.outputs:
        file = own.get(output.name, _ANY)
        dims = output.dims if output.reshape is None else output.reshape  # the model returns that before the reshape
        shape = front + dims if output.dims else file.shape
        declared[output.name] = DeclaredOutput(output.datatype or file.datatype, shape)
    return declared


def arrays(inputs: Inputs, argument: str = "") -> dict[str, Array]:
    """Return arrays by name; `argument` is that of values without one. Raise BadRequest if it is empty."""
    if UNNAMED in inputs and not argument:
        raise BadRequest(
            "the model declares no inputs, so values without a name belong to none: declare them (INPUTS in model.py, "
            'or config.pbtxt), or name them: {"NAME": values}'
        )
    return {name or argument: array_of(tensor) for name, tensor in inputs.items()}


def array_of(tensor: Tensor) -> Array:
    return bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array


def outputs_of(returned: Any, declared: Declared) -> Outputs:
    """Convert a dict of arrays or lists, or one of them for a single output. Raises WrongReturn if it does not fit."""
    if isinstance(returned, (np.ndarray, np.generic, list, str, bytes, float, int)):
        if len(declared) > 1:
            raise WrongReturn(
                f"the model returned {_describe(returned)}, must be a dict with the outputs {', '.join(declared)}"
            )
        returned = {next(iter(declared), "output"): returned}
    if not isinstance(returned, Mapping):
        raise WrongReturn(
            f"the model returned {_describe(returned)}, must be a dict of output name → array or list, or one of them"
        )
    missing = [name for name in declared if name not in returned]
    if missing:
        raise WrongReturn(f"the model returned {_describe(returned)}, must also hold {', '.join(missing)}")
    unknown = [str(name) for name in returned if str(name) not in declared] if declared else []
    if unknown:
        raise WrongReturn(f"the model returned output {', '.join(unknown)}, must be among {', '.join(declared)}")
    return {str(name): _output(str(name), value, declared.get(str(name), _ANY)) for name, value in returned.items()}


def _output(name: str, value: Any, declared: DeclaredOutput) -> Tensor:
    if not isinstance(value, (np.ndarray, np.generic, list, str, bytes, float, int)):
        raise WrongReturn(f"the model returned {type(value).__name__} for output {name!r}, must be a numpy array")
    try:
        array = np.asarray(value)
    except ValueError:
        raise WrongReturn(f"the model returned lists of different lengths for output {name!r}") from None
    _check_shape(name, array.shape, declared.shape)
    result = _typed(name, array, declared.datatype)
    if declared.datatype and result.datatype != declared.datatype:
        raise WrongReturn(f"the model returned {array.dtype} for output {name!r}, must be {declared.datatype}")
    return result


def _check_shape(name: str, shape: Shape, declared: Shape | None) -> None:
    if declared is None or (not shape and declared == (1,)):  # a scalar: dims cannot be empty in Triton's format
        return
    if not fits(shape, declared):
        raise WrongReturn(f"the model returned shape {list(shape)} for output {name!r}, must be {list(declared)}")


def _typed(name: str, array: Array, datatype: str) -> Tensor:
    if datatype == "BF16":
        return Tensor(datatype, array if array.dtype == np.uint16 else bf16_from_float(array))
    if datatype and datatype != "BYTES":
        array = _cast(name, array, datatype)
    try:
        return tensor(array)
    except TypeError as error:
        raise WrongReturn(f"the model returned for output {name!r}: {error}") from None


def _cast(name: str, array: Array, datatype: str) -> Array:
    """Cast within a kind, such as float64 to FP32. Raises WrongReturn for a change of kind."""
    dtype = NUMPY_TYPES[datatype]
    if array.dtype == dtype:
        return array
    if array.dtype == object or not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise WrongReturn(f"the model returned {array.dtype} for output {name!r}, must be {datatype}")
    return array.astype(dtype)


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "one array"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {type(item).__name__}" for name, item in value.items()) + "}"
    return type(value).__name__


class UserModel(Protocol):
    """User code of one kind. `execute` returns one answer per request; an exception fails that request alone."""

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]: ...

    def clone(self, instance_name: str) -> "UserModel": ...

    def close(self) -> None: ...


class ModelEventLoop:
    """Event loop for async user code, created at first use and reused, so that client sessions stay valid."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def resolve(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value

        async def as_coroutine() -> Any:
            return await value

        return self._run(as_coroutine())

    def resolve_all(self, values: Sequence[Any]) -> list[Any]:
        """Await the awaitable values concurrently; exceptions are returned in place of results."""
        waiting = [value for value in values if inspect.isawaitable(value)]
        if not waiting:
            return list(values)

        async def gather() -> list[Any]:
            return await asyncio.gather(*waiting, return_exceptions=True)

        done = iter(self._run(gather()))
        return [next(done) if inspect.isawaitable(value) else value for value in values]

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)


def attempt(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result, or the exception as a value, so that one request's failure does not fail its batch."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return error


class PerRequestModel:
    """Base of user models that are called once per request."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.argument = ""  # the only one, whose values need no name
        self.loop = ModelEventLoop()

    def call(self, inputs: dict[str, Array]) -> Any:
        raise NotImplementedError

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        started = [attempt(lambda r=request: self.call(arrays(r.inputs, self.argument))) for request in batch]
        return [self.to_answer(value) for value in self.loop.resolve_all(started)]

    def to_answer(self, value: Any) -> Answer:
        if isinstance(value, Exception):
            return value
        answer: Answer = attempt(outputs_of, value, self.declared)
        return answer

    def close(self) -> None:
        self.loop.close()


class FunctionModel(PerRequestModel):
    """`def predict(x, y)`: argument names are input names; returns a dict or one array."""

    def __init__(self, function: Callable[..., Any], declared: Declared) -> None:
        super().__init__(declared)
        self._function = function
        parameters = inspect.signature(function).parameters.values()
        self._any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
        self._names = [p.name for p in named]
        self._required = [p.name for p in named if p.default is p.empty]
        self._plain = annotated_arguments.annotations(named)
        self.argument = self._names[0] if len(self._names) == 1 and not self._any else ""

    def check_inputs(self, names: Sequence[str]) -> None:
        """Raise LoadFailed if the configuration lists an input that the function does not take."""
        unknown = [] if self._any else [name for name in names if name not in self._names]
        if unknown:
            raise LoadFailed(
                f"the configuration lists the inputs {', '.join(unknown)}, but predict takes {', '.join(self._names)}: "
                f"argument names must be input names"
            )

    def check_required(self, names: Sequence[str]) -> None:
        """Raise LoadFailed if the declared inputs, of which there are some, lack a required argument."""
        missing = [name for name in self._required if name not in names]
        if names and missing:
            name, required = getattr(self._function, "__name__", "predict"), ", ".join(self._required)
            raise LoadFailed(
                f"{name} takes {required}, but the declared inputs (INPUTS or config.pbtxt) are {', '.join(names)}: "
                "argument names must be input names"
            )

    def call(self, inputs: dict[str, Array]) -> Any:
        missing = [name for name in self._required if name not in inputs]
        if missing:
            raise BadRequest(f"missing inputs: {', '.join(map(repr, missing))}")
        if not self._any:
            inputs = {name: array for name, array in inputs.items() if name in self._names}
        plain = {n: annotated_arguments.convert(n, kind, inputs[n]) for n, kind in self._plain if n in inputs}
        return self._function(**{**inputs, **plain})

    def clone(self, instance_name: str) -> "FunctionModel":
        return FunctionModel(self._function, self.declared)


class ClassModel(PerRequestModel):
    """`class Model`: initialize(args), execute(inputs) or execute_batch(list of inputs) or predict(x, y), finalize().

    `__call__` serves if there is no `predict`. Each instance creates its own object.
    """

    def __init__(self, cls: type, args: Mapping[str, str], declared: Declared) -> None:
        super().__init__(declared)
        self._cls, self._args = cls, args
        _check_constructor(cls)
        self.model = cls()
        if hasattr(self.model, "initialize"):
            self.loop.resolve(self.model.initialize(dict(args)))
        self._batch = getattr(self.model, "execute_batch", None)
        self._single = getattr(self.model, "execute", None)
        function = next((each for name in ("predict", "__call__") if (each := getattr(self.model, name, None))), None)
        self.function: FunctionModel | None = None  # that serves
        if self._batch is None and self._single is None and callable(function):
            self.function = FunctionModel(function, declared)
            self._single, self.argument = self.function.call, self.function.argument
        if self._batch is None and self._single is None:
            file = f"{cls.__module__.rpartition('.')[2]}.py"
            raise LoadFailed(
                f"class {cls.__name__} of {file} has no method to serve: write predict(self, x), whose argument names "
                "are the names of the inputs, or execute(inputs), execute_batch(batch)"
            )

    def call(self, inputs: dict[str, Array]) -> Any:
        assert self._single is not None
        return self._single(inputs)

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        if self._batch is None:
            return super().execute(batch)
        returned = self.loop.resolve(self._batch([arrays(request.inputs) for request in batch]))
        if not isinstance(returned, (list, tuple)) or len(returned) != len(batch):
            what = f"{len(returned)} responses" if isinstance(returned, (list, tuple)) else type(returned).__name__
            raise WrongReturn(f"execute_batch returned {what}, must be a list of {len(batch)} dicts, one per request")
        return [self.to_answer(value) for value in returned]

    def clone(self, instance_name: str) -> "ClassModel":
        return ClassModel(self._cls, {**self._args, "model_instance_name": instance_name}, self.declared)

    def close(self) -> None:
        if hasattr(self.model, "finalize"):
            self.loop.resolve(self.model.finalize())
        super().close()


def _check_constructor(cls: type) -> None:
    """Raise LoadFailed if the class cannot be made without arguments."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):  # of native code
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in optional]
    if needed:
        raise LoadFailed(
            f"{cls.__name__} needs arguments ({', '.join(needed)}), and is made without any: give them defaults, or "
            "load files in a method initialize(self, args)"
        )


def declared(path: Path, served: str = "") -> tuple[Specs, Specs]:
    """Return the tensors that a model.py declares, which is parsed, not run. Raises LoadFailed if it cannot be parsed.

    They are `inputs` and `outputs` of @pilotlight.model at the class or function `served`, else INPUTS and OUTPUTS,
    else the inputs of a `predict` whose arguments are all annotated with plain types.
    """
    try:
        text = path.read_text(encoding="utf-8")
        with _PARSING:
            tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise LoadFailed(f"{path.name} is not valid Python: {error}") from None
    options = _decorator_options(tree, (served,) if served else ("Model", "predict"))
    inputs, outputs = (
        _specs(options[name], name, path) if name in options else _constant(tree, name.upper(), path)
        for name in ("inputs", "outputs")
    )
    return inputs or annotated_arguments.declared(tree, served), outputs


def _decorator_options(tree: ast.Module, served: Sequence[str]) -> dict[str | None, ast.expr]:
    """Return the keywords of @model or @pilotlight.model at a class or function of these names."""
    return {
        keyword.arg: keyword.value
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in served
        for each in node.decorator_list
        if isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] == "model"
        for keyword in each.keywords
    }


def _constant(tree: ast.Module, name: str, path: Path) -> Specs:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(node, (ast.Assign, ast.AnnAssign))
            return _specs(node.value, name, path)
    return ()


def _specs(node: ast.expr | None, name: str, path: Path) -> Specs:
    try:
        value: Mapping[str, tuple[str, Sequence[int]]] = (node and ast.literal_eval(node)) or {}
        specs = tuple(TensorSpec(key, kind, tuple(int(dim) for dim in dims)) for key, (kind, dims) in value.items())
    except (ValueError, TypeError, AttributeError):
        raise LoadFailed(f'{name} in {path.name} must be a literal such as {{"x": ("FP32", [-1, 4])}}') from None
    for spec in specs:
        if spec.datatype not in DATATYPES:
            fix = "use BYTES" if str(spec.datatype).upper() in _TEXTS else f"use one of {', '.join(sorted(DATATYPES))}"
            raise LoadFailed(f"{name} in {path.name}: {spec.datatype} of '{spec.name}' is not a datatype; {fix}")
    return specs

"""The two plain kinds of a model.py: a function `predict`, and a class `Model`. Selected by python.py.

    def predict(x, y): ...                       argument names are input names; returns a dict or one array
    class Model: initialize(args), execute(inputs) or execute_batch(list of inputs), finalize()

Any of them may be async: the requests of a batch then run concurrently on the instance's own event loop.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from pilotlight_predictor.backends.base import Answer
from pilotlight_predictor.backends.python_values import Declared, WrongReturn, arrays, outputs_of
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.tensors import Array


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
        return self._run(value) if inspect.isawaitable(value) else value

    def resolve_all(self, values: Sequence[Any]) -> list[Any]:
        """Await the awaitable values concurrently; exceptions are returned in place of results."""
        waiting = [value for value in values if inspect.isawaitable(value)]
        if not waiting:
            return list(values)
        done = iter(self._run(_gather(waiting)))
        return [next(done) if inspect.isawaitable(value) else value for value in values]

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _run(self, awaitable: Awaitable[Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_as_coroutine(awaitable))


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _gather(waiting: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*waiting, return_exceptions=True)


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
        self.loop = ModelEventLoop()

    def call(self, inputs: dict[str, Array]) -> Any:
        raise NotImplementedError

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        started = [attempt(self.call, arrays(request.inputs)) for request in batch]
        return [self.to_answer(value) for value in self.loop.resolve_all(started)]

    def to_answer(self, value: Any) -> Answer:
        if isinstance(value, Exception):
            return value
        answer: Answer = attempt(outputs_of, value, self.declared)
        return answer

    def close(self) -> None:
        self.loop.close()


class FunctionModel(PerRequestModel):
    """`def predict(x, y)`."""

    def __init__(self, function: Callable[..., Any], declared: Declared) -> None:
        super().__init__(declared)
        self._function = function
        parameters = inspect.signature(function).parameters.values()
        self._any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
        self._names = [p.name for p in named]
        self._required = [p.name for p in named if p.default is p.empty]

    def check_inputs(self, names: Sequence[str]) -> None:
        """Raise LoadFailed if the configuration lists an input that the function does not take."""
        unknown = [] if self._any else [name for name in names if name not in self._names]
        if unknown:
            raise LoadFailed(
                f"the configuration lists the inputs {', '.join(unknown)}, but predict takes {', '.join(self._names)}: "
                f"argument names must be input names"
            )

    def call(self, inputs: dict[str, Array]) -> Any:
        missing = [name for name in self._required if name not in inputs]
        if missing:
            raise BadRequest(f"inputs must also hold {', '.join(missing)}")
        if not self._any:
            inputs = {name: array for name, array in inputs.items() if name in self._names}
        return self._function(**inputs)

    def clone(self, instance_name: str) -> "FunctionModel":
        return FunctionModel(self._function, self.declared)


class ClassModel(PerRequestModel):
    """`class Model` with `execute(inputs)` or `execute_batch(batch)`; each instance creates its own object."""

    def __init__(self, cls: type, args: Mapping[str, str], declared: Declared) -> None:
        super().__init__(declared)
        self._cls, self._args = cls, args
        self.model = cls()
        if hasattr(self.model, "initialize"):
            self.loop.resolve(self.model.initialize(dict(args)))
        self._batch = getattr(self.model, "execute_batch", None)
        self._single = getattr(self.model, "execute", None)
        if self._batch is None and self._single is None:
            raise LoadFailed(f"class {cls.__name__} of model.py has neither execute(inputs) nor execute_batch(batch)")

    def call(self, inputs: dict[str, Array]) -> Any:
        assert self._single is not None
        return self._single(inputs)

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        if self._batch is None:
            return super().execute(batch)
        returned = self.loop.resolve(self._batch([arrays(request.inputs) for request in batch]))
        if not isinstance(returned, (list, tuple)) or len(returned) != len(batch):
            what = f"{len(returned)} answers" if isinstance(returned, (list, tuple)) else type(returned).__name__
            raise WrongReturn(f"execute_batch returned {what}, must be a list of {len(batch)} dicts, one per request")
        return [self.to_answer(value) for value in returned]

    def clone(self, instance_name: str) -> "ClassModel":
        return ClassModel(self._cls, {**self._args, "model_instance_name": instance_name}, self.declared)

    def close(self) -> None:
        if hasattr(self.model, "finalize"):
            self.loop.resolve(self.model.finalize())
        super().close()

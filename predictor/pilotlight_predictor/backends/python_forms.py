"""The two plain forms of a model.py: a function `predict`, and a class `Model`. python.py chooses and calls them.

    def predict(x, y): ...                       argument names are input names; a dict or one array comes back
    class Model: initialize(args), execute(inputs) or execute_batch(list of inputs), finalize()

Any of them may be async: the requests of a batch then run concurrently on an event loop of the instance's own.
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


class Form(Protocol):
    """One way in which a user may write a model. An exception of `answer` for one request stands in its place."""

    def answer(self, batch: Sequence[InferRequest]) -> Sequence[Answer]: ...

    def clone(self, instance_name: str) -> "Form": ...

    def close(self) -> None: ...


class Loop:
    """Runs what user code may have made async; the loop is made at the first need and kept, with its sessions."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def settle(self, value: Any) -> Any:
        return self._run(value) if inspect.isawaitable(value) else value

    def settle_all(self, values: Sequence[Any]) -> list[Any]:
        """Awaits together what can be awaited; an exception stands in the place of its result."""
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
    """The result, or the exception as a value: one request's failure is not its neighbours'."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return error


class PerRequest:
    """Calls `call` once per request; the base of the forms that do."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.loop = Loop()

    def call(self, inputs: dict[str, Array]) -> Any:
        raise NotImplementedError

    def answer(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        started = [attempt(self.call, arrays(request.inputs)) for request in batch]
        return [self.settled(value) for value in self.loop.settle_all(started)]

    def settled(self, value: Any) -> Answer:
        if isinstance(value, Exception):
            return value
        found: Answer = attempt(outputs_of, value, self.declared)
        return found

    def close(self) -> None:
        self.loop.close()


class FunctionForm(PerRequest):
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
        """At load: what the configuration lists against what the function takes."""
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

    def clone(self, instance_name: str) -> "FunctionForm":
        return FunctionForm(self._function, self.declared)


class ClassForm(PerRequest):
    """`class Model` with `execute(inputs)` or `execute_batch(batch)`; each instance makes an object of its own."""

    def __init__(self, cls: type, args: Mapping[str, str], declared: Declared) -> None:
        super().__init__(declared)
        self._cls, self._args = cls, args
        self.model = cls()
        if hasattr(self.model, "initialize"):
            self.loop.settle(self.model.initialize(dict(args)))
        self._batch = getattr(self.model, "execute_batch", None)
        self._single = getattr(self.model, "execute", None)
        if self._batch is None and self._single is None:
            raise LoadFailed(f"class {cls.__name__} of model.py has neither execute(inputs) nor execute_batch(batch)")

    def call(self, inputs: dict[str, Array]) -> Any:
        assert self._single is not None
        return self._single(inputs)

    def answer(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        if self._batch is None:
            return super().answer(batch)
        returned = self.loop.settle(self._batch([arrays(request.inputs) for request in batch]))
        if not isinstance(returned, (list, tuple)) or len(returned) != len(batch):
            what = f"{len(returned)} answers" if isinstance(returned, (list, tuple)) else type(returned).__name__
            raise WrongReturn(f"execute_batch returned {what}, must be a list of {len(batch)} dicts, one per request")
        return [self.settled(value) for value in returned]

    def clone(self, instance_name: str) -> "ClassForm":
        return ClassForm(self._cls, {**self._args, "model_instance_name": instance_name}, self.declared)

    def close(self) -> None:
        if hasattr(self.model, "finalize"):
            self.loop.settle(self.model.finalize())
        super().close()

"""`@pilotlight.model`: marks a class or function to be served, and how.

A model.py may be decorated, so that a predictor imports this module during its cold start: it must stay light.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, overload

from pilotlight.errors import UsageError

T = TypeVar("T")
Tensors = Mapping[str, tuple[str, Sequence[int]]]  # datatype and shape by name: {"x": ("FP32", [-1, 4])}
ATTRIBUTE: Final = "__pilotlight_model__"


class ModelOptions(NamedTuple):
    """How a class or function is served; see `model`."""

    name: str | None = None
    requirements: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    inputs: Tensors | None = None
    outputs: Tensors | None = None
    min_replicas: int | None = None
    resources: Mapping[str, str | int] | None = None


@overload
def model(served: T, /) -> T: ...


@overload
def model(
    *, name: str | None = None, requirements: Sequence[str] = (), files: Sequence[str] = (),
    inputs: Tensors | None = None, outputs: Tensors | None = None, min_replicas: int | None = None,
    resources: Mapping[str, str | int] | None = None,
) -> Callable[[T], T]: ...  # fmt: skip


def model(
    served: Any = None, /, *, name: str | None = None, requirements: Sequence[str] = (), files: Sequence[str] = (),
    inputs: Tensors | None = None, outputs: Tensors | None = None, min_replicas: int | None = None,
    resources: Mapping[str, str | int] | None = None,
) -> Any:  # fmt: skip
    """Mark a class, a function or an instance for `deploy`, `canary` and `test`; it stays what it is.

    A class has `predict(self, x, y)`, or `execute(self, inputs)`, and optionally `initialize(self, args)`; argument
    names are input names. `inputs` and `outputs` declare tensors: {"x": ("FP32", [-1, 4])}. `requirements` are
    installed for it, `files` lie beside its source (`Path(__file__).parent`). `resources` are those of a replica:
    {"cpu": 1, "memory": "2Gi"}.
    """
    for option, value in (("requirements", requirements), ("files", files)):
        if isinstance(value, str):
            raise UsageError(f"{option} of @pilotlight.model is {value!r}, must be a list such as [{value!r}]")
    options = ModelOptions(name, tuple(requirements), tuple(files), inputs, outputs, min_replicas, resources)

    def mark(target: Any) -> Any:
        setattr(target, ATTRIBUTE, options)
        return target

    return mark if served is None else mark(served)


def options_of(served: Any) -> ModelOptions:
    """Return the options of a class, function or instance; of a base class all but the name."""
    options: ModelOptions = getattr(served, ATTRIBUTE, ModelOptions())
    kind = served if isinstance(served, type) else type(served)
    inherited = ATTRIBUTE not in {**vars(kind), **getattr(served, "__dict__", {})}
    return options._replace(name=None) if inherited else options

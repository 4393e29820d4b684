"""Binding of inputs to the arguments of `forward`, and of its results to outputs. Pure, without torch.

`bind` runs once at load, with the arguments read by modules.py; `name_outputs` runs per batch.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from pilotlight.wire.messages import quoted
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import BadRequest, LoadFailed

_INDEXED: Final = re.compile(r".*__(\d+)")  # Triton's INPUT__0, OUTPUT__1: the number is the position


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of `forward`; `takes` is the kind of its value."""

    name: str
    takes: str = "tensor"  # tensor | scalar | dict | list
    required: bool = True
    keyword_only: bool = False


@dataclass(frozen=True, slots=True)
class ForwardBinding:
    """How to call `forward`: input names by position, then argument name → input name by keyword."""

    positional: tuple[str, ...] = ()
    keywords: Mapping[str, str] = field(default_factory=dict)
    scalars: frozenset[str] = frozenset()
    container: str = ""
    names: Mapping[str, str] = field(default_factory=dict)  # argument name → input name

    def check(self, inputs: Collection[str]) -> None:
        """Raise BadRequest if a request's inputs do not match the arguments; for models without declared inputs."""
        if self.container:
            return
        known = (*self.positional, *self.keywords.values())
        takes = f"the model's forward takes {quoted(known)}"
        for name in inputs:
            if name not in known:
                raise BadRequest(f"unexpected inference input '{name}'; {takes}")
        if missing := [name for name in known if name not in inputs]:
            raise BadRequest(f"missing inputs: {quoted(missing)}; {takes}")

    def call(self, forward: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        if self.container == "dict":
            return forward(dict(values))
        if self.container == "list":
            return forward([values[name] for name in self.positional if name in values])
        keywords = {argument: values[name] for argument, name in self.keywords.items() if name in values}
        return forward(*(values.get(name) for name in self.positional), **keywords)


def bind(arguments: Sequence[Argument], names: Sequence[str]) -> ForwardBinding:
    """Bind by argument name if all names match, else by the number in INPUT__0, else in configuration order."""
    if len(arguments) == 1 and arguments[0].takes in {"dict", "list"}:
        return ForwardBinding(positional=tuple(in_order(names)), container=arguments[0].takes)
    chosen = _pair(arguments, names or [argument.name for argument in arguments if argument.required])
    missing = [argument.name for argument in arguments if argument.required and argument.name not in chosen]
    if missing:
        raise LoadFailed(
            f"the model's forward needs {', '.join(missing)}, but the configuration lists only {', '.join(names)}: "
            f"add the missing inputs"
        )
    # By position: the arguments before the first that is omitted or keyword-only.
    leading = list(takewhile(lambda a: not a.keyword_only and a.name in chosen, arguments))
    return ForwardBinding(
        positional=tuple(chosen[argument.name] for argument in leading),
        keywords={a.name: chosen[a.name] for a in arguments[len(leading) :] if a.name in chosen},
        scalars=frozenset(chosen[a.name] for a in arguments if a.takes == "scalar" and a.name in chosen),
        names=chosen,
    )


def _pair(arguments: Sequence[Argument], names: Sequence[str]) -> dict[str, str]:
    """Argument name → input name."""
    known = [argument.name for argument in arguments]
    if set(names) <= set(known):
        return {name: name for name in names}
    if len(names) > len(known):
        raise LoadFailed(
            f"the configuration lists {len(names)} inputs ({', '.join(names)}), but the model's forward takes "
            f"{len(known)} ({', '.join(known)}): name the inputs after its arguments or remove the others"
        )
    return dict(zip(known, in_order(names), strict=False))


def in_order(names: Sequence[str]) -> list[str]:
    """Sort names such as INPUT__1, INPUT__0 by number if every name has one."""
    numbers = [position(name) for name in names]
    if None in numbers or sorted(n for n in numbers if n is not None) != list(range(len(names))):
        return list(names)
    return [name for _, name in sorted(zip(numbers, names, strict=True), key=lambda pair: pair[0] or 0)]


def position(name: str) -> int | None:
    match = _INDEXED.fullmatch(name)
    return int(match[1]) if match else None


def name_outputs(result: Any, names: Sequence[str]) -> dict[str, Any]:
    """Name the outputs in the tensor, tuple, list or dict that `forward` returned."""
    if isinstance(result, Mapping):
        if not names or set(names) <= set(result):
            return {name: result[name] for name in names or result}
        result = list(result.values())
    values = list(_flat(result))
    if not names:
        return {f"OUTPUT__{i}": value for i, value in enumerate(values)}
    positions = _positions(names)
    if max(positions) >= len(values):
        raise TypeError(f"forward returned {len(values)} tensors, but the configuration lists {', '.join(names)}")
    return {name: values[index] for name, index in zip(names, positions, strict=True)}


def rename_outputs(specs: Sequence[TensorSpec], names: Sequence[str]) -> list[TensorSpec]:
    """Outputs of the file under the names of the configuration."""
    if not specs or set(names) <= {spec.name for spec in specs}:
        return list(specs)
    positions = _positions(names)
    if max(positions) >= len(specs):
        raise LoadFailed(
            f"the configuration lists the outputs {', '.join(names)}, but the model file has {len(specs)}: "
            f"{', '.join(spec.name for spec in specs)}"
        )
    return [specs[index]._replace(name=name) for name, index in zip(names, positions, strict=True)]


def _positions(names: Sequence[str]) -> list[int]:
    """Index of each output: OUTPUT__1 is the second result wherever it is listed; without numbers by order."""
    numbers = [number for name in names if (number := position(name)) is not None]
    return numbers if len(numbers) == len(names) else list(range(len(names)))


def _flat(value: Any) -> Iterator[Any]:
    """Flatten (out, (h, c)) to out, h, c."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    else:
        yield value

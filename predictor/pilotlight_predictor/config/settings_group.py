"""Base of the groups of settings, and `setting`, which defines one of them as a row."""

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, cast, dataclass_transform

from pilotlight_predictor.config.value_types import ValueKind

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class SettingsGroup:
    """Base of a group of settings: a frozen dataclass with keyword-only fields.

    Generating and compiling six methods for each of eight groups took 8 ms of every start; these serve all groups.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False, match_args=False)(cls)

    if not TYPE_CHECKING:  # type checkers derive it from the fields

        def __init__(self, **values: Any) -> None:
            for name, item in self.__dataclass_fields__.items():
                if name not in values and item.default is item.default_factory is MISSING:
                    raise TypeError(f"the field {name} is required")
                default = item.default_factory() if item.default_factory is not MISSING else item.default
                self.__dict__[name] = values.pop(name, default)
            if values:
                raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"{name} cannot be changed: settings are read once")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"{name} cannot be removed: settings are read once")


def setting(default: T, kind: ValueKind, flags: str, text: str, *, env: str = "", yaml: str = "") -> T:
    """Define a setting. The first of `flags` also names the variable INFERENCE_…; `env` and `yaml` add names."""
    row = {"kind": kind, "flags": flags.split(), "help": text, "env": env.split(), "yaml": yaml.split()}
    if isinstance(default, dict):
        return cast(T, field(default_factory=dict, metadata=row))
    return field(default=default, metadata=row)

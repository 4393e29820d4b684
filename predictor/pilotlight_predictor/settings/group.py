"""Base of a group of settings: a frozen dataclass without generated methods.

Generating and compiling six methods for each of eight groups took 8 ms of every start; these serve all groups. Fields,
`dataclasses.fields`, `replace` and type checking work as usual; fields are keyword-only.
"""

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
class SettingsGroup:
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False, match_args=False)(cls)

    if not TYPE_CHECKING:  # type checkers derive it from the fields

        def __init__(self, **values: Any) -> None:
            for name, item in self.__dataclass_fields__.items():
                self.__dict__[name] = values.pop(name) if name in values else _default(item)
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


def _default(item: "Field[Any]") -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    if item.default is MISSING:
        raise TypeError(f"the field {item.name} must be given")
    return item.default

"""What a group of settings is: a frozen dataclass, without the code that `dataclass` would write for each of them.

Writing and compiling six functions for each of eight groups took 8 ms of every start; those below do for all. Fields,
`dataclasses.fields`, `replace` and what a type checker knows are as usual; fields are given by name.
"""

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Group:
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False, match_args=False)(cls)

    if not TYPE_CHECKING:  # a type checker makes one for each class, of its fields

        def __init__(self, **given: Any) -> None:
            for name, item in self.__dataclass_fields__.items():
                self.__dict__[name] = given.pop(name) if name in given else _default(item)
            if given:
                raise TypeError(f"{type(self).__name__} has no field {', '.join(given)}")

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

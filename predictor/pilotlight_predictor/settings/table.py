"""The rows of `model.py` as a table, and the way back: a mapping of values becomes one `Settings`."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, NamedTuple

from pilotlight import contract
from pilotlight_predictor.settings.kinds import TEXT, Kind
from pilotlight_predictor.settings.model import Settings


class Row(NamedTuple):
    """One setting: its `key` is the path in the objects, `paths` are those in the file, the first one canonical."""

    key: str
    kind: Kind
    default: Any
    flags: tuple[str, ...]
    variables: tuple[str, ...]
    paths: tuple[str, ...]
    help: str
    idle: str = ""  # why it has no effect


def variable(flag: str) -> str:
    return contract.ENV_SETTINGS_PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def _row(prefix: str, item: "Field[Any]") -> Row:
    row = item.metadata
    default = item.default if item.default is not MISSING else {}
    flags = tuple(row["flags"])
    return Row(
        key=prefix + item.name,
        kind=row["kind"],
        default=default,
        flags=flags,
        variables=(variable(flags[0]), *row["env"]),
        paths=(prefix + item.name, *(prefix + name for name in row["yaml"])),
        help=f"{row['help']} No effect: {row['idle']}." if row["idle"] else row["help"],
        idle=row["idle"],
    )


def _walk(cls: Any, prefix: str) -> Iterator[Row]:
    for item in fields(cls):
        if "kind" in item.metadata:
            yield _row(prefix, item)
        elif is_dataclass(item.default):
            yield from _walk(item.default, f"{prefix}{item.name}.")


ROWS = tuple(_walk(Settings, ""))
CONFIG = Row("config", TEXT, "", ("--config",), (variable("--config"),), (), "File with settings, inference.yaml.")


def build(values: Mapping[str, Any], warnings: tuple[str, ...]) -> Settings:
    """Defaults where `values` has no entry for a row's key."""
    made: Settings = _build(Settings, "", {**values, "warnings": warnings})
    return made


def _build(cls: Any, prefix: str, values: Mapping[str, Any]) -> Any:
    given = {}
    for item in fields(cls):
        key = prefix + item.name
        if key in values:
            given[item.name] = values[key]
        elif is_dataclass(item.default):
            given[item.name] = _build(type(item.default), f"{key}.", values)
    return cls(**given)

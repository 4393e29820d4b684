"""The settings of `model.py` as a table of rows, and construction of `Settings` from a mapping of values."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, NamedTuple

from pilotlight import contract
from pilotlight_predictor.settings.kinds import TEXT, ValueKind
from pilotlight_predictor.settings.model import Settings


class SettingRow(NamedTuple):
    """A setting. `key`: its path in Settings; `paths`: those in the file, the first one canonical."""

    key: str
    kind: ValueKind
    default: Any
    flags: tuple[str, ...]
    variables: tuple[str, ...]
    paths: tuple[str, ...]
    help: str
    no_effect: str = ""  # why it has no effect


def variable(flag: str) -> str:
    return contract.ENV_SETTINGS_PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def _row(prefix: str, item: "Field[Any]") -> SettingRow:
    row = item.metadata
    default = item.default if item.default is not MISSING else {}
    flags = tuple(row["flags"])
    return SettingRow(
        key=prefix + item.name,
        kind=row["kind"],
        default=default,
        flags=flags,
        variables=(variable(flags[0]), *row["env"]),
        paths=(prefix + item.name, *(prefix + name for name in row["yaml"])),
        help=f"{row['help']} No effect: {row['no_effect']}." if row["no_effect"] else row["help"],
        no_effect=row["no_effect"],
    )


def _walk(cls: Any, prefix: str) -> Iterator[SettingRow]:
    for item in fields(cls):
        if "kind" in item.metadata:
            yield _row(prefix, item)
        elif is_dataclass(item.default):
            yield from _walk(item.default, f"{prefix}{item.name}.")


ROWS = tuple(_walk(Settings, ""))
CONFIG = SettingRow(
    "config", TEXT, "", ("--config",), (variable("--config"),), (), "File with settings, inference.yaml."
)


def build(values: Mapping[str, Any], warnings: tuple[str, ...]) -> Settings:
    """Build Settings; keys without a value get their default."""
    settings: Settings = _build(Settings, "", {**values, "warnings": warnings})
    return settings


def _build(cls: Any, prefix: str, values: Mapping[str, Any]) -> Any:
    arguments = {}
    for item in fields(cls):
        key = prefix + item.name
        if key in values:
            arguments[item.name] = values[key]
        elif is_dataclass(item.default):
            arguments[item.name] = _build(type(item.default), f"{key}.", values)
    return cls(**arguments)

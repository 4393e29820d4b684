"""The settings of setting_definitions.py as rows, the result of parsing one source, and the limits of a protocol.

read_sources.py fills a ParsedSource each for flags, variables and file; merge_sources.py merges them into `Settings`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, NamedTuple

from pilotlight import contract
from pilotlight_predictor.config.setting_definitions import MIB, Settings
from pilotlight_predictor.config.value_types import TEXT, ValueKind

PREDICT_MAX_REQUEST_MB = 10.0
PREDICT_TIMEOUT_S = 30.0


class SettingRow(NamedTuple):
    """A setting. `key`: its path in Settings; `paths`: those in the file, the first one canonical."""

    key: str
    kind: ValueKind
    default: Any
    flags: tuple[str, ...]
    variables: tuple[str, ...]
    paths: tuple[str, ...]
    help: str


def variable(flag: str) -> str:
    return contract.ENV_SETTINGS_PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def _row(prefix: str, item: "Field[Any]") -> SettingRow:
    row = item.metadata
    flags = tuple(row["flags"])
    return SettingRow(
        key=prefix + item.name,
        kind=row["kind"],
        default=item.default if item.default is not MISSING else {},
        flags=flags,
        variables=(variable(flags[0]), *row["env"]),
        paths=(prefix + item.name, *(prefix + name for name in row["yaml"])),
        help=row["help"],
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


class ParsedSource:
    """Values of one source. `origins`: the flag, variable or file:line:column of each key."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.implied: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.incomplete = False  # a part was skipped, which may have contained settings that seem to be missing

    def add(self, row: SettingRow, text: str, origin: str) -> None:
        """Parse one value; repeatable settings collect their values, for others the last one wins."""
        try:
            value = row.kind.read(text)
        except ValueError:
            self.reject(origin, row.key, text, row.kind.must)
            return
        if row.kind.many == "list":
            value = (*self.values.get(row.key, ()), value)
        elif row.kind.many == "map":
            value = {**self.values.get(row.key, {}), value[0]: value[1]}
        self.values[row.key] = value
        self.origins[row.key] = origin

    def reject(self, origin: str, name: str, text: object, must: str) -> None:
        self.problems.append(f"{origin}: {name} = {text}, must be {must}")

    def skip(self, sentence: str) -> None:
        """Report a part of the source that cannot be parsed as a setting."""
        self.problems.append(sentence)
        self.incomplete = True


class Limits(NamedTuple):
    """Limits of one protocol: admission enforces size and rate, ModelVersion.infer values and timeout.

    None, or 0 for the timeout: no limit.
    """

    max_bytes: int
    timeout_s: float
    requests_per_minute: int | None
    max_sequence_length: int | None
    messages_per_second: int | None = None  # per streaming connection


def limits(settings: Settings, *, predict: bool = False) -> Limits:
    """Return the limits of the /predict protocol, or those of all others."""
    rate, check = settings.safeguards.rate_limit, settings.safeguards.input_validation
    megabytes, max_bytes = settings.safeguards.max_request_size_mb, settings.server.http_max_input_size
    if megabytes is not None:
        max_bytes = int(megabytes * MIB)
    elif predict:
        max_bytes = min(max_bytes, int(PREDICT_MAX_REQUEST_MB * MIB))
    return Limits(
        max_bytes=max_bytes,
        timeout_s=settings.performance.inference_timeout_s or (PREDICT_TIMEOUT_S if predict else 0.0),
        requests_per_minute=rate.requests_per_minute if _applies(rate.enabled, predict) else None,
        max_sequence_length=check.max_sequence_length if _applies(check.enabled, predict) else None,
        messages_per_second=rate.messages_per_second if _applies(rate.enabled, predict) else None,
    )


def _applies(enabled: bool | None, predict: bool) -> bool:
    return predict if enabled is None else enabled

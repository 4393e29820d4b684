"""Kinds of setting values, parsed in the same way from a flag, a variable or a file.

`read` raises ValueError for invalid text; ParsedSource, which knows the origin, builds the message from `must`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pilotlight.wire.request_log.settings import LogSettings

TRUE = frozenset({"true", "1", "yes", "on"})
FALSE = frozenset({"false", "0", "no", "off"})
TOTAL = 100.0  # of a model's traffic weights
# Not compiled at import: few servers have labels, and every start would pay for it.
_LABEL = r"(?:[^/=]+/)?[^/=\s]*[^/=\s\d][^/=\s]*"
_VERSION = r"(?:[^/=]+/)?[^/=\s]+"
API_GROUPS = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace",
    "logging",
)  # fmt: skip
TRACE_VALUES = {
    "file": ".*", "log-frequency": r"\d{1,9}", "rate": r"[1-9]\d{0,8}", "count": r"-1|\d{1,9}",
    "level": "OFF|TIMESTAMPS|TENSORS|MIN|MAX",
    "mode": "triton|opentelemetry", "opentelemetry,url": ".+", "opentelemetry,resource": ".+=.*",
}  # fmt: skip
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


class RestrictedGroups(NamedTuple):
    """API groups whose calls need a header of this name and value."""

    groups: tuple[str, ...]
    header: str
    value: str


class ValueKind(NamedTuple):
    """Kind of a setting's value. `many`: how a repeatable setting collects its values; `separator`: of a variable's."""

    metavar: str
    must: str
    read: Callable[[str], Any]
    many: Literal["", "list", "map"] = ""
    separator: str = ","


def boolean(text: str) -> bool:
    word = text.lower()
    if word not in TRUE and word not in FALSE:
        raise ValueError
    return word in TRUE


def port(text: str) -> int:
    if text.lower() in ("none", "off"):
        return -1
    return integer(text, -1, 65535)


def integer(text: str, least: int, most: int) -> int:
    number = int(text)
    if not least <= number <= most:
        raise ValueError
    return number


def amount(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise ValueError
    return number


def size(text: str) -> int:
    match = re.fullmatch(r"(\d+) *([kmg]i?|)b?", text.strip().lower())
    if not match:
        raise ValueError
    return int(match[1]) * UNITS[match[2]]


def memory(text: str) -> str:
    """Return bytes as digits, or a percentage, whose base is known where it is used."""
    if not text.strip().endswith("%"):
        return str(size(text))
    share = float(text.strip().removesuffix("%"))
    if not 0 <= share <= 100:
        raise ValueError
    return f"{share:g}%"


def device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise ValueError
    return text


def network(text: str) -> str:
    import ipaddress

    return str(ipaddress.ip_network(text.strip(), strict=False))


def pickle(text: str) -> tuple[str, str]:
    name, _, digest = text.rpartition("=")
    if not name or not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise ValueError
    return name, digest.lower()


def parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError
    return name, value


def label(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not re.fullmatch(_LABEL, name) or not re.fullmatch(r"[0-9]{1,18}", number):
        raise ValueError
    return name, int(number)


def weight(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    percentage = float(number)
    if not re.fullmatch(_VERSION, name) or not 0 <= percentage <= TOTAL:
        raise ValueError
    return name, percentage


def pins(text: str) -> dict[str, Any]:
    """Return the pins by URI; storage/pins.py reads the one that is used."""
    import json

    documents = json.loads(text)
    if not isinstance(documents, dict):
        raise ValueError
    return documents


def restricted_groups(text: str) -> RestrictedGroups:
    names, colon, pair = text.partition(":")
    header, equals, value = pair.partition("=")
    groups = tuple(name.strip() for name in names.split(","))
    if (
        not (colon and equals and header.strip())
        or not set(groups) <= set(API_GROUPS)
        or len(set(groups)) < len(groups)
    ):
        raise ValueError
    return RestrictedGroups(groups, header.strip(), value.strip())


def pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error:
        raise ValueError from None
    return text


def trace_option(text: str) -> tuple[str, str]:
    """Return a trace setting and its value; opentelemetry's url is that of --otel-endpoint."""
    key, equals, value = text.removeprefix("triton,").partition("=")
    if not equals or not re.fullmatch(TRACE_VALUES.get(key.replace("_", "-"), "(?!)"), value):
        raise ValueError
    return key.replace("_", "-"), value


def request_log(text: str) -> "LogSettings":
    from pilotlight.wire.request_log.settings import decode

    return decode(text)


def choice(*words: str, also: dict[str, str] | None = None) -> ValueKind:
    """Return the kind of one of `words`; `also` maps alternative spellings to them."""
    allowed = {word: word for word in words} | (also or {})

    def read(value: str) -> str:
        if value.lower() not in allowed:
            raise ValueError
        return allowed[value.lower()]

    named = [word for word in words if word]
    return ValueKind("|".join(named), f"one of {', '.join(named)}", read)


def count(least: int = 0, most: int = 2**31 - 1) -> ValueKind:
    bound = f"from {least} to {most}" if most < 2**31 - 1 else f"{least} or greater"
    return ValueKind("N", f"a whole number {bound}", lambda value: integer(value, least, most))


BOOL = ValueKind("true|false", "true or false", boolean)
BYTES = ValueKind("BYTES", "a number of bytes such as 67108864 or 64MiB", size)
DEVICE = ValueKind("DEVICE", "auto, cpu, cuda or cuda:N", device)
LABELS = ValueKind("[MODEL/]LABEL=N", "a label that is not a number, =, and a version number", label, "map")
MEMORY = ValueKind("MEMORY", "a number of bytes such as 8GiB, or a percentage of the machine's such as 25%", memory)
MILLISECONDS = ValueKind("MS", "a number of milliseconds, 0 or greater", amount)
NETWORKS = ValueKind("CIDR", "a network such as 10.0.0.0/8", network, "list")
PINS = ValueKind("JSON", "a JSON object of URIs and their pins, as `python -m pilotlight_predictor pin` prints", pins)
PARAMETERS = ValueKind("NAME=VALUE", "a name, = and a value", parameter, "map")
LOG = ValueKind("JSON", "the settings of a request log, as `platformctl render` writes them", request_log)
ADAPTERS = ValueKind("NAME=PATH", "a name, = and a folder or URI", parameter, "map")
PICKLES = ValueKind("FILE=SHA256", "a file name, = and the 64 hex digits of its SHA-256", pickle, "map")
PATTERN = ValueKind("REGEX", "a regular expression", pattern)
PORT = ValueKind("PORT", "a port from 0 to 65535", lambda value: integer(value, 0, 65535))
PORT_OR_OFF = ValueKind("PORT", "a port from 0 to 65535, or -1 or none for off", port)
RESTRICTED = ValueKind(
    "GROUP,…:KEY=VALUE", f"groups, :, a header's name, = and its value; each group one of {', '.join(API_GROUPS)}",
    restricted_groups, "list", " ",
)  # fmt: skip
SECONDS = ValueKind("SECONDS", "a number of seconds, 0 or greater", amount)
FACTOR = ValueKind("FACTOR", "a number, 0 or greater", amount)
MEGABYTES = ValueKind("MB", "a number of megabytes, 0 or greater", amount)
TEXT = ValueKind("TEXT", "text", str)
TEXTS = ValueKind("TEXT", "text", str, "list")
TRACE = ValueKind(
    "SETTING=VALUE",
    "rate=N, level=OFF, TIMESTAMPS or TENSORS, count=N, mode=triton or opentelemetry, triton,file=PATH,"
    " triton,log-frequency=N or opentelemetry,url=URL",
    trace_option, "list", " ",
)  # fmt: skip
WEIGHTS = ValueKind(
    "[MODEL/]VERSION=PERCENT", "a version's number or label, = and a percentage from 0 to 100", weight, "map"
)


def weights_by_model(weights: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Group weights of "model/version" by model; those of every model are under the empty name."""
    by_model: dict[str, dict[str, float]] = {}
    for key, share in weights.items():
        model, _, version = key.rpartition("/")
        by_model.setdefault(model, {})[version] = share
    return by_model


def check_weights(weights: Mapping[str, float], labels: Mapping[str, int]) -> Iterator[str]:
    """Yield problems: a model's weights must add up to 100, and their versions must be numbers or known labels."""
    for model, versions in weights_by_model(weights).items():
        total = sum(versions.values())
        if abs(total - TOTAL) > 1e-6:
            values = ", ".join(f"{version}={share:g}" for version, share in versions.items())
            owner = f" of '{model}'" if model else ""
            yield f"model.version_weights{owner} = {values}, must add up to 100, not {total:g}"
        for version in versions:
            if not version.isdigit() and version not in labels and f"{model}/{version}" not in labels:
                yield f"model.version_weights = {version}, must be a number or a label given with --version-label"

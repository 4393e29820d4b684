"""Conditions on the figures of a simulation: `p99<2s`, `cost<10`, `failed_share<=1%`; prices from a file."""

import re
from dataclasses import dataclass
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.k8s.quantities import parse_duration
from pilotlight.simulation.result import QUANTILE, Prices, Simulation
from pilotlight.wire.messages import suggestion

FIGURES: Final = (
    "mean", "requests", "failed", "failed_share", "cold_starts", "cold_requests", "replica_seconds", "gpu_hours",
    "cpu_hours", "cost", "max_replicas", "mean_replicas",
)  # fmt: skip
_CONDITION: Final = re.compile(r"\s*([a-z0-9._-]+)\s*(<=|>=|<|>)\s*(\S+)\s*")
_OPERATORS: Final = {"<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass(frozen=True)
class Condition:
    """A figure that must be below or above a value."""

    text: str
    figure: str
    operator: str
    value: float

    def problem(self, result: Simulation) -> str:
        """Return why the result does not meet it: `p99 is 3.2 s, must be <2s`; empty: it does."""
        actual = result.figure(self.figure)
        if actual is None:
            return f"{self.text}: there is no {self.figure}; it needs a profile with the rates of a language model"
        if _OPERATORS[self.operator](actual, self.value):
            return ""
        unit = " s" if is_time(self.figure) else ""
        return f"{self.figure} is {actual:.3g}{unit}, must be {self.text[len(self.figure) :].strip()}"


def is_time(figure: str) -> bool:
    return figure == "mean" or QUANTILE.fullmatch(figure) is not None


def parse_condition(text: str, option: str) -> Condition:
    """Return the condition. Raise UsageError that names the option."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {text!r}: must be a figure, <, <=, > or >=, and a value, such as 'p99<2s'")
    name = match[1].replace("-", "_")
    if name not in FIGURES and not QUANTILE.fullmatch(name):
        known = ("p99", "held_p95", *FIGURES)
        raise UsageError(f"{option} {text!r}: there is no figure {match[1]}{suggestion(name, known)}", ", ".join(known))
    value = _value(match[3], is_time(name))
    if value is None:
        unit = "a time such as 200ms or 2s" if is_time(name) else "a number or a percentage"
        raise UsageError(f"{option} {text!r}: {match[3]} must be {unit}")
    return Condition(text.replace(match[1], name, 1).strip(), name, match[2], value)


def _value(text: str, time: bool) -> float | None:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") and not time else float(text)
    except ValueError:
        return parse_duration(text) if time else None


def read_prices(path: Path) -> Prices:
    """Return the prices of a YAML file: `gpuHour: 2.5`, `cpuHour: 0.04`, `currency: EUR`."""
    import yaml

    form = "write gpuHour: 2.5, cpuHour: 0.04 and, if you like, currency: EUR"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        unknown = [name for name in document if name not in ("gpuHour", "cpuHour", "currency")]
        prices = Prices(
            float(document.get("gpuHour") or 0), float(document.get("cpuHour") or 0),
            str(document.get("currency") or ""),
        )  # fmt: skip
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not a file of prices ({error}); {form}") from None
    if unknown or min(prices.gpu_hour, prices.cpu_hour) < 0:
        problem = f"{unknown[0]} is unknown" if unknown else "a price is negative"
        raise UsageError(f"{path}: {problem}; {form}")
    return prices

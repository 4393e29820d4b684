"""Knative's annotations `autoscaling.knative.dev/…`: names, classes, and the values that its webhook takes.

plan checks a document's own annotations with it, lint those of manifests; the local platform reads the same names.
"""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Final

from pilotlight.k8s.quantities import parse_duration

KNATIVE_AUTOSCALING: Final = "autoscaling.knative.dev/"
KPA_CLASS: Final = "kpa.autoscaling.knative.dev"
HPA_CLASS: Final = "hpa.autoscaling.knative.dev"
MAX_INT32: Final = 2**31 - 1
MAX_SECONDS: Final = 3600
# Minimum and maximum. A burst capacity of -1 keeps the activator in the path.
NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    "target": (0.01, inf),
    "target-utilization-percentage": (1, 100),
    "panic-window-percentage": (1, 100),
    "panic-threshold-percentage": (110, 1000),
    "target-burst-capacity": (-1, inf),
    **dict.fromkeys(("min-scale", "max-scale", "initial-scale"), (0, MAX_INT32)),
    "activation-scale": (2, MAX_INT32),
}
# Minimum and maximum in seconds, and whether fractions of a second are rejected.
DURATIONS: Final[Mapping[str, tuple[float, float, bool]]] = {
    "window": (6, MAX_SECONDS, True),
    "scale-down-delay": (0, MAX_SECONDS, True),
    "scale-to-zero-pod-retention-period": (0, MAX_SECONDS, False),
}
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "class": (KPA_CLASS, HPA_CLASS),
    "metric": ("concurrency", "rps", "cpu", "memory"),
    "metric-aggregation-algorithm": ("linear", "weighted-exponential", "weightedExponential"),
}
KEYS: Final = frozenset({*NUMBERS, *DURATIONS, *CHOICES})


def camel(key: str) -> str:
    """Return the legacy spelling of an annotation: `minScale` for `min-scale`."""
    first, *rest = key.split("-")
    return first + "".join(word.capitalize() for word in rest)


def required_value(key: str, value: str) -> str:
    """Return what a known annotation must be, such as `a number from 1 to 100`; empty if Knative takes the value."""
    if key in CHOICES:
        return "" if value in CHOICES[key] else f"one of {', '.join(CHOICES[key])}"
    if key in DURATIONS:
        return required_duration(value, *DURATIONS[key])
    low, high = NUMBERS[key]
    whole = key.endswith("-scale")
    try:
        number = float(value)
    except ValueError:
        number = inf
    valid = isfinite(number) and low <= number <= high and (number.is_integer() or not whole)
    if valid and not (key == "target-burst-capacity" and -1 < number < 0):
        return ""
    return f"a {'whole ' * whole}number {f'of at least {low:g}' if high >= MAX_INT32 else f'from {low:g} to {high:g}'}"


def required_duration(value: str, low: float, high: float, whole: bool) -> str:
    """Return what a duration must be; empty if it is within its bounds in seconds, and `whole` seconds if it must."""
    seconds = parse_duration(value)
    if seconds is not None and low <= seconds <= high and (seconds.is_integer() or not whole):
        return ""
    bounds = f"from {low:g}s to {high:g}s" if high <= MAX_SECONDS else "that is not negative"
    return f"a duration such as 90s {bounds}{', in whole seconds' * whole}"

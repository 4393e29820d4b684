"""How a curve grows, as one number and as words. Pure arithmetic over points (x, y), in the order of x."""

import math
from collections.abc import Callable, Sequence

Points = Sequence[tuple[float, float]]


def line(points: Points) -> tuple[float, float]:
    """Intercept and slope of the least-squares line."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return mean_y - slope * mean_x, slope


def exponent(points: Points) -> float:
    """k of the y = c·x^k that lies nearest in logarithms: 1 is proportional, 0 does not grow."""
    return line([(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0])[1]


def kept(what: str, digits: int = 0) -> Callable[[Points], str]:
    """For what should stay as it is."""

    def told(points: Points) -> str:
        (first, start), (last, end) = points[0], points[-1]
        factor = f" ({end / start:.3g}×)" if start else ""
        return f"{what}: {start:,.{digits}f} at {first:,.0f}, {end:,.{digits}f} at {last:,.0f}{factor}"

    return told


def most(what: str, digits: int = 0) -> Callable[[Points], str]:
    """For what should rise and then stay up."""

    def told(points: Points) -> str:
        at, best = max(points, key=lambda point: point[1])
        last, end = points[-1]
        after = f", {end:,.{digits}f} at {last:,.0f}" if last != at else ""
        return f"{what}: peak {best:,.{digits}f} at {at:,.0f}{after}"

    return told


def each(what: str, unit: str) -> Callable[[Points], str]:
    """For what is paid once for each."""

    def told(points: Points) -> str:
        intercept, slope = line(points)
        return f"{what}: {_number(intercept)} {unit} plus {_number(slope)} {unit} for each"

    return told


def power(what: str, unit: str) -> Callable[[Points], str]:
    """For what takes longer the more there is; the exponent is that of the last factor of ten, free of fixed cost."""

    def told(points: Points) -> str:
        grown = [point for point in points if point[0] >= points[-1][0] / 10]
        first, last = points[0], points[-1]
        ends = f"{_number(first[1])} {unit} at {first[0]:,.0f}, {_number(last[1])} {unit} at {last[0]:,.0f}"
        return f"{what}: {ends}, growing as n^{exponent(grown):.2f}"

    return told


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

"""Search for the settings of a document that meet an objective at the least cost, one axis after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pilotlight.simulation.conditions import Condition
from pilotlight.simulation.result import Simulation
from pilotlight.simulation.scenario import Scenario
from pilotlight.simulation.variants import Axis, Variant
from pilotlight.targets.local.control.service_state import min_replicas
from pilotlight.targets.local.scaling.types import Kpa

Minimized = Literal["gpu-hours", "cost", "replica-seconds"]
MINIMIZED: Final[tuple[Minimized, ...]] = get_args(Minimized)
MOST_POINTS: Final = 60
WINDOW: Final = 'metadata.annotations["autoscaling.knative.dev/window"]'


@dataclass(frozen=True)
class Point:
    """One setting that was tried. `pareto`: none is better in both the objective's figure and the price."""

    variant: Variant
    result: Simulation
    price: float
    figure: float
    meets: bool
    pareto: bool = False


@dataclass(frozen=True)
class Proposal:
    """`best`: the cheapest point that meets the objective; else the nearest to it. `present`: as it is written."""

    present: Point
    best: Point
    points: tuple[Point, ...]


def default_axes(scenario: Scenario, component: str) -> list[Axis]:
    """Return what is searched unless --vary says it: the lower bound, the target of a replica, the window."""
    scaling = scenario.scaling
    counts = sorted({0, 1, 2, 3, min_replicas(scenario.scaling)})
    axes = [Axis(f"spec.{component}.minReplicas", tuple(map(str, counts)))]
    if isinstance(scaling, Kpa):
        target = max(1, round(scaling.target))
        targets = sorted({max(1, round(target * factor)) for factor in (0.1, 0.25, 0.5, 1, 2)})
        axes.append(Axis(f"spec.{component}.scaleTarget", tuple(map(str, targets))))
        axes.append(Axis(WINDOW, tuple(f"{seconds:g}s" for seconds in sorted({15.0, 60.0, 180.0, scaling.window_s}))))
    return axes


def search(
    axes: Sequence[Axis], evaluate: Callable[[Variant], Simulation], objective: Condition, minimized: Minimized
) -> Proposal:
    """Try the document as it is, then the values of one axis after the other around the best so far.

    It ends when no axis improves, or after MOST_POINTS simulations.
    """
    tried: dict[Variant, Point] = {}

    def point(variant: Variant) -> Point:
        if variant not in tried:
            result = evaluate(variant)
            figure = result.figure(objective.figure)
            met = not objective.problem(result)
            prices = {"gpu-hours": result.gpu_hours, "cost": result.cost, "replica-seconds": result.replica_seconds}
            tried[variant] = Point(variant, result, prices[minimized], figure or 0.0, met)
        return tried[variant]

    best = present = point(())
    improved = True
    while improved and len(tried) < MOST_POINTS:
        improved = False
        for axis in axes:
            others = tuple(each for each in best.variant if each[0] != axis.path)
            for value in axis.values:
                variant = tuple(sorted((*others, (axis.path, value))))
                if len(tried) < MOST_POINTS and _better(candidate := point(variant), best):
                    best, improved = candidate, True
    points = tuple(_with_pareto(list(tried.values())))
    chosen = next(each for each in points if each.variant == best.variant)
    return Proposal(next(each for each in points if each.variant == present.variant), chosen, points)


def _better(candidate: Point, best: Point) -> bool:
    """Whether it meets the objective at a lower price, or comes nearer to it while none meets it."""
    if candidate.meets != best.meets:
        return candidate.meets
    if not candidate.meets:
        return candidate.figure < best.figure * 0.999
    return candidate.price < best.price * 0.999


def _with_pareto(points: list[Point]) -> Iterator[Point]:
    for each in points:
        dominated = any(
            other.price <= each.price
            and other.figure <= each.figure
            and (other.price, other.figure) != (each.price, each.figure)
            for other in points
        )
        yield Point(each.variant, each.result, each.price, each.figure, each.meets, not dominated)

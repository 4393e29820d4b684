"""Whole canaries in simulated time: requests drawn at random, the real judge and the real steps. No server, no clock.

python tests/platform/canaries/simulation.py 250   prints the table of docs/how-to/canary.md, for so many canaries a row
"""

import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy

from pilotlight.canaries.actions import Conditions, apply_action
from pilotlight.canaries.analysis import judge
from pilotlight.canaries.canary_state import Canary
from pilotlight.canaries.next_action import add_elapsed, comparison_window_s, next_action, record_judgement
from pilotlight.canaries.queries import Missing, ObservedCounts
from pilotlight.canaries.statistics import earlier_strata
from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.prometheus.histograms import Buckets
from pilotlight.spec.canary_policy import CanaryPolicy

EDGES = (*LATENCY_BUCKETS, math.inf)
P99 = 2.326  # standard deviations above the median


@dataclass(frozen=True)
class Model:
    """Log-normal latencies, and a share of answers that are errors."""

    median_s: float = 0.06
    spread: float = 0.5
    errors: float = 0.005

    def with_p99(self, times: float) -> "Model":
        """The same median and a longer tail."""
        return Model(self.median_s, self.spread + math.log(times) / P99, self.errors)


GOOD = Model()
SLOWER = Model(GOOD.median_s * 1.5, GOOD.spread, GOOD.errors)
FAILING = Model(GOOD.median_s, GOOD.spread, GOOD.errors + 0.02)
BAD = Model(SLOWER.median_s, SLOWER.spread, FAILING.errors)
BROKEN = Model(errors=1.0)


@dataclass(frozen=True)
class Weather:
    """What befalls both sides alike: a database that both ask, a neighbour on the machine."""

    slower: float = 1.0
    errors: float = 0.0


FAIR = Weather()


@dataclass
class Traffic:
    """What one revision has answered so far, as its histogram keeps it."""

    model: Model
    random: numpy.random.Generator
    counts: "numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]" = field(
        default_factory=lambda: numpy.zeros(len(EDGES), dtype=numpy.int64)
    )
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    earlier: list[ObservedCounts] = field(default_factory=list)  # as it stood before each check

    def serve(self, mean: float, weather: Weather = FAIR) -> None:
        self.earlier.append(self.observed(0.0))
        number = int(self.random.poisson(mean))
        took = weather.slower * self.random.lognormal(math.log(self.model.median_s), self.model.spread, number)
        self.counts += numpy.bincount(numpy.searchsorted(LATENCY_BUCKETS, took), minlength=len(EDGES))
        self.requests += number
        self.errors += int(self.random.binomial(number, min(self.model.errors + weather.errors, 1.0)))
        self.seconds += float(took.sum())

    def observed(self, seconds: float) -> ObservedCounts:
        below: Buckets = tuple(zip(EDGES, map(float, numpy.cumsum(self.counts)), strict=True))
        return ObservedCounts(self.requests, self.errors, below, self.seconds, seconds)

    def lately(self, checks: int, seconds: float) -> ObservedCounts | Missing:
        """Since so many checks ago, as two readings of its counters tell."""
        if checks <= 0:
            return Missing("early", "too short a time")
        now, then = self.observed(seconds), self.earlier[-checks]
        grown = zip(now.buckets, then.buckets, strict=True)
        below: Buckets = tuple((edge, count - before) for (edge, count), (_, before) in grown)
        requests, errors = now.requests - then.requests, now.errors - then.errors
        return ObservedCounts(requests, errors, below, now.seconds - then.seconds, seconds)


@dataclass(frozen=True)
class Outcome:
    phase: str
    checks: int
    reason: str


def run(
    policy: CanaryPolicy, stable: Model, fresh: Model, per_interval: float, seed: int,
    weather: Callable[[Canary, int], Weather] = lambda canary, check: FAIR,
) -> Outcome:  # fmt: skip
    """Until it has ended or paused; `per_interval` requests reach both sides together, in the weather of the check."""
    random = numpy.random.default_rng(seed)
    ours, theirs = Traffic(fresh, random), Traffic(stable, random)
    canary = Canary(policy, "new", "old", 2, 1, "")
    facts, checks = Conditions(ready=True), 0
    canary = apply_action(canary, next_action(canary, None, facts), "")
    while canary.phase == "Progressing" and canary.weight < 100:
        today = weather(canary, checks)
        ours.serve(per_interval * canary.weight / 100, today)
        theirs.serve(per_interval * (100 - canary.weight) / 100, today)
        canary = add_elapsed(canary, policy.interval_s, facts)
        seconds = comparison_window_s(canary)
        beside, baseline = (each.lately(round(seconds / policy.interval_s), seconds) for each in (ours, theirs))
        whole = ours.observed(canary.observed_s) if policy.checks or not policy.compare else beside
        judgement = judge(
            policy, whole, baseline, history=canary.measurements, paired_canary=beside, earlier=earlier_strata(canary)
        )
        canary, checks = record_judgement(canary, judgement), checks + 1
        canary = apply_action(canary, next_action(canary, judgement, facts), "")
    return Outcome(canary.phase if canary.weight < 100 else "Promoted", checks, canary.reason)


def outcomes(
    runs: int, fresh: Model, stable: Model = GOOD, per_interval: float = 200.0,
    weather: Callable[[Canary, int], Weather] = lambda canary, check: FAIR, **policy: object,
) -> list[Outcome]:  # fmt: skip
    asked = CanaryPolicy(**{"compare": "baseline", **policy})  # type: ignore[arg-type]
    return [run(asked, stable, fresh, per_interval, seed, weather) for seed in range(runs)]


def share(found: list[Outcome], phase: str, within: float = math.inf) -> float:
    return sum(each.phase == phase and each.checks <= within for each in found) / len(found)


SCENARIOS = {
    "equal": GOOD,
    "10 % slower": Model(GOOD.median_s * 1.1, GOOD.spread, GOOD.errors),
    "p99 +50 %, errors +2 pp": BAD,
    "p99 +50 %, median too": SLOWER,
    "p99 +50 %, median unchanged": GOOD.with_p99(1.5),
    "errors +2 pp": FAILING,
    "errors only": BROKEN,
}


def table(runs: int) -> None:
    print("| requests per check at 5 / 25 / 50 % | canary | rolled back | promoted | paused | checks: median | p99 |")
    print("|---|---|---|---|---|---|---|")
    for per_interval in (200.0, 400.0, 100.0):
        rates = " / ".join(f"{per_interval * weight / 100:g}" for weight in (5, 25, 50))
        for name, model in SCENARIOS.items():
            found = outcomes(runs, model, per_interval=per_interval)
            phases = Counter(each.phase for each in found)
            checks = sorted(each.checks for each in found)
            figures = " | ".join(
                f"{100 * phases[phase] / runs:.1f} %" for phase in ("RolledBack", "Promoted", "Paused")
            )
            print(f"| {rates} | {name} | {figures} | {checks[runs // 2]} | {checks[min(runs - 1, runs * 99 // 100)]} |")


if __name__ == "__main__":
    table(int(sys.argv[1]) if len(sys.argv) > 1 else 100)

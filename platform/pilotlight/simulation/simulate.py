"""Simulation of a scenario: exact up to two million requests, else approximate."""

from dataclasses import replace
from typing import Final

from pilotlight.simulation.approximation.engine import simulate_approximately
from pilotlight.simulation.conditions import Condition
from pilotlight.simulation.exact import simulate_exactly
from pilotlight.simulation.replica_set import DEFAULT_COLD_START_S
from pilotlight.simulation.result import Prices, Simulation
from pilotlight.simulation.scenario import Scenario
from pilotlight.simulation.service_times import Profile
from pilotlight.simulation.stations import DEFAULT_SERVICE_TIME_S
from pilotlight.simulation.trace import CountTrace, Trace
from pilotlight.simulation.trigger_metrics import missing_metrics
from pilotlight.targets.local.scaling.keda import scheduled

MAX_EXACT: Final = 2_000_000  # requests: about half a minute


def simulate(
    scenario: Scenario, profile: Profile, trace: Trace | CountTrace, *, seed: int = 0, prices: Prices | None = None,
    slo: Condition | None = None,
) -> Simulation:  # fmt: skip
    """Return the result. The same arguments give the same result."""
    if trace.requests > MAX_EXACT:
        result = simulate_approximately(scenario, profile, trace, seed)
    else:
        single = trace.expanded(seed) if isinstance(trace, CountTrace) else trace
        result = simulate_exactly(scenario, profile, single, seed)
    return replace(
        result, prices=prices or Prices(), slo_seconds=slo.value if slo else None,
        assumptions=(*assumptions(scenario, profile, trace), *result.assumptions),
    )  # fmt: skip


def assumptions(scenario: Scenario, profile: Profile, trace: Trace | CountTrace) -> list[str]:
    """Return what was not given and therefore taken as a default, and triggers without the metrics that they read."""
    times = profile.service_times
    measured = times.samples or times.by_batch or times.by_concurrency or times.llm
    notes = []
    if trace.requests > MAX_EXACT and (times.by_batch or times.by_concurrency or times.llm):
        notes.append("more than two million requests are simulated by mean latencies: p99 may be off by a third")
    if trace.service_times is None and not measured:
        notes.append(
            f"service time {DEFAULT_SERVICE_TIME_S:g} s, neither measured nor given: --profile, --service-time"
        )
    if not profile.cold_starts:
        notes.append(f"cold start {DEFAULT_COLD_START_S:g} s, neither measured nor given: --profile, --cold-start")
    llm = times.llm if trace.requests <= MAX_EXACT else None  # the approximation does not know tokens one by one
    notes += missing_metrics(scenario.scaling, llm=llm is not None, cache=bool(llm and llm.kv_cache_tokens))
    if scheduled(scenario.scaling) and trace.start is None:
        notes.append("the trace has no date: it starts on a Monday at 00:00 UTC")
    return notes

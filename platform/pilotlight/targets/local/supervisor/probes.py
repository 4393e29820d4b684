"""Probe thresholds, budgets and intervals. Pure; the clock is an argument.

As in Knative a starting replica is probed every few milliseconds whatever the startupProbe's period: the probe only
sets the budget of the start, so readiness is not delayed by the rest of a period.
"""

from dataclasses import dataclass
from typing import Final

from pilotlight.targets.local.model import Probe

MIN_INTERVAL_S: Final = 0.01
MAX_INTERVAL_S: Final = 0.1
RELATIVE_INTERVAL: Final = 0.05  # a start that took 1 s is seen at most 50 ms late


def start_interval(elapsed_s: float) -> float:
    """Return the seconds to the next probe of a replica that has been starting for `elapsed_s`."""
    return min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, elapsed_s * RELATIVE_INTERVAL))


def start_budget(startup: Probe | None, progress_deadline_s: float) -> float:
    """Return the seconds that a start may take: by the startupProbe, else the progress deadline."""
    if startup is None:
        return progress_deadline_s
    return startup.initial_delay_s + startup.period_s * startup.failure_threshold


def start_failed(startup: Probe | None, budget_s: float, last_reason: str) -> str:
    """Return why a start that exceeded its budget was ended, with the predictor's last reason."""
    reason = f": {last_reason}" if last_reason else ""
    if startup is None:
        return f"not ready within the progress deadline of {budget_s:g} s{reason}"
    return f"startup probe failed {startup.failure_threshold} times in {budget_s:g} s{reason}"


@dataclass
class ProbeCounter:
    """Consecutive results of one probe. `passing` changes only when a threshold is reached."""

    probe: Probe
    due: float
    passing: bool = True
    failures: int = 0
    successes: int = 0

    def record(self, ok: bool, now: float) -> bool:
        """Count a result; return whether `passing` changed."""
        self.due = now + self.probe.period_s
        self.successes = self.successes + 1 if ok else 0
        self.failures = 0 if ok else self.failures + 1
        before = self.passing
        if self.failures >= self.probe.failure_threshold:
            self.passing = False
        elif self.successes >= self.probe.success_threshold:
            self.passing = True
        return self.passing != before


def first_counter(probe: Probe | None, now: float, age_s: float = 0.0) -> ProbeCounter | None:
    """Return a counter first due after the initial delay, which runs from the start of the process."""
    if probe is None:
        return None
    return ProbeCounter(probe, now + max(0.0, probe.initial_delay_s - age_s))

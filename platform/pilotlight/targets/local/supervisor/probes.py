"""What probes say of a replica: thresholds, budgets and the pace of asking. Pure; the clock is an argument.

A start is asked after every few milliseconds, as Knative does, whatever period a startupProbe names: that probe
keeps its meaning as a budget, and nobody waits for the rest of a period.
"""

from dataclasses import dataclass
from typing import Final

from pilotlight.targets.local.model import Probe

QUICK_S: Final = 0.01
SLOW_S: Final = 0.1
PACE: Final = 0.05  # a start that took 1 s is seen at most 50 ms late


def start_interval(elapsed_s: float) -> float:
    """Seconds to the next question to a replica that has been starting for that long."""
    return min(SLOW_S, max(QUICK_S, elapsed_s * PACE))


def start_budget(startup: Probe | None, progress_deadline_s: float) -> float:
    """How long a start may take before it counts as failed: the startupProbe's word, else the progress deadline."""
    if startup is None:
        return progress_deadline_s
    return startup.initial_delay_s + startup.period_s * startup.failure_threshold


def start_failed(startup: Probe | None, budget_s: float, told: str) -> str:
    """Why a start that used up its budget was ended. `told` is what the predictor itself said last."""
    said = f": {told}" if told else ""
    if startup is None:
        return f"not ready within the progress deadline of {budget_s:g} s{said}"
    return f"startup probe failed {startup.failure_threshold} times in {budget_s:g} s{said}"


@dataclass
class Tally:
    """Consecutive answers of one probe. `holds` changes only when a threshold is reached."""

    probe: Probe
    due: float
    holds: bool = True
    failures: int = 0
    successes: int = 0

    def note(self, ok: bool, now: float) -> bool:
        """Whether `holds` changed with this answer."""
        self.due = now + self.probe.period_s
        self.successes = self.successes + 1 if ok else 0
        self.failures = 0 if ok else self.failures + 1
        before = self.holds
        if self.failures >= self.probe.failure_threshold:
            self.holds = False
        elif self.successes >= self.probe.success_threshold:
            self.holds = True
        return self.holds != before


def tally(probe: Probe | None, now: float, age_s: float = 0.0) -> Tally | None:
    """First due when its initial delay, counted from the process's start, is over."""
    if probe is None:
        return None
    return Tally(probe, now + max(0.0, probe.initial_delay_s - age_s))

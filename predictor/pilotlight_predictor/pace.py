"""Policy that decides whether a model is fast enough to run on the event loop. Pure.

Passing a batch to a thread and back costs about 50 µs; a small ONNX model computes in 20 µs. Such a model runs on the
loop, where requests of one tick form a batch for free. A slower model would block every connection: it runs in its
instance's thread.
"""

from typing import Final

QUICK_NS: Final = 300_000
TOO_SLOW_NS: Final = 1_000_000
TRIALS: Final = 3  # consecutive fast executions in the thread before the model moves to the loop
MAX_SLOW: Final = 2  # consecutive slow executions on the loop that end it: a single one may be noise
RETRY_AFTER: Final = 1_000  # fast executions in the thread before a demoted model is tried on the loop again


class InlineExecutionPolicy:
    """`trial_ns`: duration of a warm-up execution on an idle model; 0 without warm-up."""

    def __init__(self, allowed: bool, trial_ns: int = 0) -> None:
        self._allowed = allowed
        self.inline = allowed and 0 < trial_ns <= QUICK_NS
        self._trials = TRIALS
        self._slow = 0

    @property
    def on_probation(self) -> bool:
        """Whether one more slow execution demotes the model: then thread CPU time must be measured, at the cost of two
        system calls. Otherwise wall time suffices: it is never less than CPU time."""
        return self._slow > 0

    def observe(self, duration_ns: int) -> None:
        """Record an execution. `duration_ns`: CPU time of the executing thread, so that a busy machine does not count
        against the model."""
        if not self._allowed:
            return
        if self.inline:
            self._slow = self._slow + 1 if duration_ns > TOO_SLOW_NS else 0
            if self._slow >= MAX_SLOW:
                self.inline, self._trials = False, RETRY_AFTER
            return
        if duration_ns <= QUICK_NS:
            self._trials -= 1
        else:
            self._trials = max(self._trials, TRIALS)
        self.inline = self._trials <= 0
        self._slow = 0

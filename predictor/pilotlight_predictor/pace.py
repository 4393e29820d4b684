"""Decides whether a model is quick enough to run on the event loop itself. Pure.

Handing a batch to a thread and back costs about 50 µs of switching; a small ONNX model answers in 20 µs. Such a model
runs on the loop, where requests of one tick form a batch for free. A model that takes longer would hold up every
connection, so it runs in its thread.
"""

from typing import Final

QUICK_NS: Final = 300_000
TOO_SLOW_NS: Final = 1_000_000
TRIALS: Final = 3  # executions in the thread that must all have been quick
STRIKES: Final = 2  # slow executions on the loop, one after the other, that end it: one may be the machine's noise
PENANCE: Final = 1_000  # executions in the thread before a demoted model is tried again


class Pace:
    """`trial_ns` is how long a warm-up took, when nothing else ran; 0 when there was none."""

    def __init__(self, allowed: bool, trial_ns: int = 0) -> None:
        self._allowed = allowed
        self.inline = allowed and 0 < trial_ns <= QUICK_NS
        self._trials = TRIALS
        self._strikes = 0

    @property
    def in_doubt(self) -> bool:
        """Whether the next execution on the loop may end it: then what the thread computed has to be measured, which
        takes two system calls. Otherwise the clock will do, which shows at least as much."""
        return self._strikes > 0

    def observe(self, duration_ns: int) -> None:
        """`duration_ns` is what the executing thread computed: waiting for a busy machine is not the model's doing."""
        if not self._allowed:
            return
        if self.inline:
            self._strikes = self._strikes + 1 if duration_ns > TOO_SLOW_NS else 0
            if self._strikes >= STRIKES:
                self.inline, self._trials = False, PENANCE
            return
        if duration_ns <= QUICK_NS:
            self._trials -= 1
        else:
            self._trials = max(self._trials, TRIALS)
        self.inline = self._trials <= 0
        self._strikes = 0

"""All canaries of a target, looked after for as long as a process lives: the control process, or `platformctl api`.

bell = Bell()
threading.Thread(target=follow, args=(target, bell)).start()
bell.ring()     something changed: look at once
bell.stop()     and join the thread
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from pilotlight.canary import keeping
from pilotlight.canary.bell import Bell
from pilotlight.canary.model import Canary
from pilotlight.canary.runner import Runner
from pilotlight.errors import PlatformError
from pilotlight.targets.target import KeptCanary, Key, Target

TROUBLE_S: Final = 5.0
log = logging.getLogger("pilotlight.canary")


def follow(target: Target, bell: Bell, holder: str = "") -> None:
    """Until the bell says stop. Whatever goes wrong with one canary or the target is told and tried again."""
    rounds = Rounds(target, Runner(target, holder))
    pause: float | None = 0.0
    trouble = ""  # told once, however long it lasts
    while bell.wait(pause):
        try:
            pause = rounds.round()
            trouble = ""
        except PlatformError as error:
            if str(error) != trouble:
                log.warning("canaries cannot be looked after: %s", error)
            pause, trouble = TROUBLE_S, str(error)
        except Exception:
            log.exception("looking after canaries failed; this is a defect of ours, and it is tried again")
            pause = TROUBLE_S


class Rounds:
    """Which canary is due when."""

    def __init__(self, target: Target, runner: Runner, clock: Callable[[], float] = time.monotonic) -> None:
        self._target, self._runner, self._clock = target, runner, clock
        self._due: dict[Key, float] = {}
        self._wished: dict[Key, str] = {}  # a wish is looked at once at once; one that must wait, with every tick

    def round(self) -> float | None:
        """Ticks those that are due; seconds until the next is, None where no canary runs."""
        living: dict[Key, Canary] = {}
        for kept in self._target.canaries(None):
            canary = _running(kept)
            if canary is None:
                continue
            living[kept.key] = canary
            urgent = canary.wish and canary.wish != self._wished.get(kept.key)
            self._wished[kept.key] = canary.wish
            if urgent or self._clock() >= self._due.get(kept.key, 0.0):
                self._ticked(kept.key, canary)
        self._due = {key: at for key, at in self._due.items() if key in living}
        self._wished = {key: wish for key, wish in self._wished.items() if key in living}
        return max(0.0, min(self._due.values()) - self._clock()) if self._due else None

    def _ticked(self, key: Key, canary: Canary) -> None:
        pause = canary.policy.interval_s
        try:
            after = self._runner.tick(key)
            if after is not None and after.ended_at:
                self._due.pop(key, None)
                return
            pause = self._runner.pause_s(after) if after is not None else pause
        except PlatformError as error:
            log.warning("the canary of %s: %s", "/".join(key), error)
        except Exception:
            log.exception("the canary of %s failed; this is a defect of ours, and it is tried again", "/".join(key))
        self._due[key] = self._clock() + pause


def _running(kept: KeptCanary) -> Canary | None:
    try:
        return keeping.running(keeping.read(kept))
    except PlatformError as error:
        log.warning("%s", error)
        return None

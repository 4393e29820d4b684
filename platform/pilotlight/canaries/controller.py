"""Controller of all canaries of a target, in a thread of the control process or of `platformctl api`.

The runner is imported with the first canary: most platforms have none.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import Canary
from pilotlight.errors import PlatformError
from pilotlight.targets.target import Key, Target

if TYPE_CHECKING:
    from pilotlight.canaries.runner import CanaryRunner

IDLE_S: Final = 10.0  # polling interval if changes by other processes are not notified
JOIN_TIMEOUT_S: Final = 5.0  # for the current tick; another runner continues an unfinished one
ERROR_BACKOFF_S: Final = 5.0
log = logging.getLogger("pilotlight.canaries")


class WakeEvent:
    """Event that makes the controller reconcile now, or stop. `notified`: every change sets it, so that no polling is
    needed."""

    def __init__(self, *, notified: bool = False) -> None:
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._notified = notified

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def wait(self, seconds: float | None) -> bool:
        """Wait for a wake-up, at most `seconds`; return False when stopped. None waits without limit if notified."""
        limit = IDLE_S if seconds is None and not self._notified else seconds
        self._woken.wait(limit if limit is None else min(limit, threading.TIMEOUT_MAX))
        self._woken.clear()
        return not self.stopped


@asynccontextmanager
async def controller_thread(wake: WakeEvent, run: Callable[[], None]) -> AsyncIterator[None]:
    """Run `run` in a thread until the block ends."""
    thread = threading.Thread(target=run, name="canaries", daemon=True)
    thread.start()
    try:
        yield
    finally:
        wake.stop()
        await asyncio.to_thread(thread.join, JOIN_TIMEOUT_S)


def run_controller(target: Target, wake: WakeEvent, holder: str = "", min_pause_s: float = 0.0) -> None:
    """Run until the event is stopped. Errors of a canary or the target are logged and retried.

    `min_pause_s` between two ticks of a canary, whatever its author has written.
    """
    from pilotlight.canaries.runner import CanaryRunner

    controller = CanaryController(target, CanaryRunner(target, holder), min_pause_s=min_pause_s)
    pause: float | None = 0.0
    last_error = ""  # logged once per error
    while wake.wait(pause):
        try:
            pause = controller.reconcile()
            last_error = ""
        except PlatformError as error:
            if str(error) != last_error:
                log.warning("canaries cannot be reconciled: %s", error)
            pause, last_error = ERROR_BACKOFF_S, str(error)
        except Exception:
            log.exception("reconciling canaries failed; this is a bug, retrying")
            pause = ERROR_BACKOFF_S


class CanaryController:
    """Schedule of the ticks of all canaries."""

    def __init__(
        self, target: Target, runner: "CanaryRunner", clock: Callable[[], float] = time.monotonic,
        min_pause_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._target, self._runner, self._clock, self._min_pause_s = target, runner, clock, min_pause_s
        self._due: dict[Key, float] = {}
        # Last seen: a new command triggers a tick at once, a pending one is tried again with the next tick.
        self._commands: dict[Key, str] = {}

    def reconcile(self) -> float | None:
        """Tick the canaries that are due; return the seconds until the next one, None if no canary runs."""
        running: dict[Key, Canary] = {}
        for stored in self._target.canaries(None):
            try:
                canary = stored_history.running_canary(stored_history.decode_history(stored))
            except PlatformError as error:
                log.warning("%s", error)
                continue
            if canary is None:
                continue
            running[stored.key] = canary
            urgent = canary.command and canary.command != self._commands.get(stored.key)
            self._commands[stored.key] = canary.command
            if urgent or self._clock() >= self._due.get(stored.key, 0.0):
                self._tick(stored.key, canary)
        self._due = {key: at for key, at in self._due.items() if key in running}
        self._commands = {key: command for key, command in self._commands.items() if key in running}
        return max(0.0, min(self._due.values()) - self._clock()) if self._due else None

    def _tick(self, key: Key, canary: Canary) -> None:
        pause = canary.policy.interval_s
        try:
            after = self._runner.tick(key)
            if after is not None and after.ended_at:
                self._due.pop(key, None)
                return
            pause = self._runner.tick_interval_s(after) if after is not None else pause
        except PlatformError as error:
            log.warning("the canary of %s: %s", "/".join(key), error)
        except Exception:
            log.exception("the canary of %s failed; this is a bug, retrying", "/".join(key))
        self._due[key] = self._clock() + max(pause, self._min_pause_s)

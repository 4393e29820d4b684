"""What is done from time to time while replicas live: memory looked at, logs cut. Nothing runs while none lives."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pilotlight.targets.local.rounds import Survived
from pilotlight.targets.local.supervisor.limits import Limits
from pilotlight.targets.local.supervisor.process import usage
from pilotlight.targets.local.supervisor.reasons import over_limit
from pilotlight.targets.local.supervisor.rotation import rotate
from pilotlight.targets.local.supervisor.running import Running

LOOK_S: Final = 1.0
ROTATE_EVERY: Final = 5  # looks


class Tending:
    """`running` is the supervisor's own table, seen as it is at each look. `logs` are those of nobody's replica."""

    def __init__(self, running: Mapping[str, Running], limits: Limits, logs: Sequence[Path] = ()) -> None:
        self._running, self._limits, self._logs = running, limits, logs
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._tend())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _tend(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._running:
                return
            looks += 1
            with Survived("a look at the memory of replicas"):
                self._guard_memory()
            if looks % ROTATE_EVERY == 0:
                with Survived("cutting logs"):
                    replicas = [Path(running.record.log) for running in self._running.values()]
                    await asyncio.to_thread(rotate_all, [*self._logs, *replicas])

    def _guard_memory(self) -> None:
        """Where no control group does it. Memory shared with a pilot light counts too: the kernel tells no better."""
        for running in self._running.values():
            limit, pid = running.record.checks.memory_limit, running.record.pid
            if limit is None or not pid or self._limits.name != "watchdog":
                continue
            used = usage(pid).resident_bytes
            if used > limit:
                running.kill(over_limit(used, limit))


def rotate_all(logs: Sequence[Path]) -> None:
    for log in logs:
        rotate(log)

"""Periodic housekeeping while replicas run: memory limits without cgroups, and log rotation."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pilotlight.targets.local.rounds import log_and_continue
from pilotlight.targets.local.supervisor.limits import Limits
from pilotlight.targets.local.supervisor.process import usage
from pilotlight.targets.local.supervisor.reasons import over_limit
from pilotlight.targets.local.supervisor.rotation import rotate
from pilotlight.targets.local.supervisor.running import ReplicaProcess

INTERVAL_S: Final = 1.0
ROTATE_EVERY: Final = 5  # intervals


class Housekeeper:
    """`running` is the supervisor's live table; `logs` are files besides those of replicas."""

    def __init__(self, running: Mapping[str, ReplicaProcess], limits: Limits, logs: Sequence[Path] = ()) -> None:
        self._running, self._limits, self._logs = running, limits, logs
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._loop())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _loop(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self._running:
                return
            ticks += 1
            with log_and_continue("a look at the memory of replicas"):
                self._enforce_memory_limits()
            if ticks % ROTATE_EVERY == 0:
                with log_and_continue("cutting logs"):
                    replicas = [Path(running.record.log) for running in self._running.values()]
                    await asyncio.to_thread(rotate_all, [*self._logs, *replicas])

    def _enforce_memory_limits(self) -> None:
        """Kill replicas above their memory limit where no cgroup enforces it; RSS includes pages shared by forks."""
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

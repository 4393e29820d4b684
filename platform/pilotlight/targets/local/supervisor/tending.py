"""What is done from time to time while replicas live: memory looked at, logs cut. Nothing runs while none lives."""

import asyncio
from collections.abc import Mapping

from pilotlight.targets.local.supervisor.running import Running


class Tending:
    def __init__(self, running: Mapping[str, Running]) -> None:
        self._running = running
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass

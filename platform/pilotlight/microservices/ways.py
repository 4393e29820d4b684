"""Ways to running microservices: opened when first needed and held, since one may be a tunnel. For one event loop."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

from pilotlight.errors import NotFound
from pilotlight.microservices.model import Entry
from pilotlight.microservices.platforms import Platform
from pilotlight.microservices.records import JobRecord


class Ways:
    """`platform` finds one by its name; `blocking` runs a call in a thread."""

    def __init__(self, platform: Callable[[str], Platform], blocking: Callable[..., Awaitable[Any]]) -> None:
        self._platform = platform
        self._blocking = blocking
        self._open: dict[str, tuple[str, ExitStack]] = {}

    async def to(self, record: JobRecord) -> str:
        """What URLs of requests begin with; held for the next request too."""
        if record.entry is None:
            raise not_there(record.id)
        if record.id not in self._open:
            url, stack = await self._blocking(self._opened, record, record.entry)
            if record.id in self._open:  # another request was faster
                await self._blocking(stack.close)
            else:
                self._open[record.id] = url, stack
        return self._open[record.id][0].rstrip("/")

    def _opened(self, record: JobRecord, entry: Entry) -> tuple[str, ExitStack]:
        stack = ExitStack()
        return stack.enter_context(self._platform(record.platform).way(record.id, entry)), stack

    async def forget(self, job_id: str) -> None:
        """Nobody answered there, or it ends: the next request opens a way of its own."""
        _, stack = self._open.pop(job_id, ("", None))
        if stack is not None:
            with suppress(Exception):
                await self._blocking(stack.close)

    async def close(self) -> None:
        for job_id in list(self._open):
            await self.forget(job_id)


def not_there(job_id: str) -> NotFound:
    """Never started, stopped, or of somebody else: one answer for all."""
    return NotFound(f"no inference microservice {job_id} is running", "start one; the id of a stopped one is spent")

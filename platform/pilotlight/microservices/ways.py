"""Open routes to running microservices, cached since one may be a tunnel. For one event loop."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

from pilotlight.errors import NotFound
from pilotlight.microservices.model import Entry
from pilotlight.microservices.platforms import Platform
from pilotlight.microservices.records import JobRecord


class RouteCache:
    """Routes by job id. `platform` returns a platform by name; `blocking` runs a call in a thread."""

    def __init__(self, platform: Callable[[str], Platform], blocking: Callable[..., Awaitable[Any]]) -> None:
        self._platform = platform
        self._blocking = blocking
        self._open: dict[str, tuple[str, ExitStack]] = {}

    async def url(self, record: JobRecord) -> str:
        """Return the base URL of a microservice, opening its route if needed."""
        if record.entry is None:
            raise not_running(record.id)
        if record.id not in self._open:
            url, stack = await self._blocking(self._open_route, record, record.entry)
            if record.id in self._open:  # another request was faster
                await self._blocking(stack.close)
            else:
                self._open[record.id] = url, stack
        return self._open[record.id][0].rstrip("/")

    def _open_route(self, record: JobRecord, entry: Entry) -> tuple[str, ExitStack]:
        stack = ExitStack()
        return stack.enter_context(self._platform(record.platform).open_route(record.id, entry)), stack

    async def close_route(self, job_id: str) -> None:
        """Close the route of a microservice that stopped or does not respond; the next request opens a new one."""
        _, stack = self._open.pop(job_id, ("", None))
        if stack is not None:
            with suppress(Exception):
                await self._blocking(stack.close)

    async def close(self) -> None:
        for job_id in list(self._open):
            await self.close_route(job_id)


def not_running(job_id: str) -> NotFound:
    """Return the error of an id that was never started, is stopped, or belongs to another org."""
    return NotFound(f"no inference microservice {job_id} is running", "start one; the id of a stopped one is spent")

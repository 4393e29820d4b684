"""One replica as it lives: what it has in flight and the connections to it that are kept for the next request."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from pilotlight.gateway.table import Replica

if TYPE_CHECKING:
    from pilotlight.gateway.upstream import Upstream

CONNECT_S: Final = 5.0
KEPT: Final = 256  # idle connections
IDLE_S: Final = 50.0  # the predictor closes at 75: ours must go first, or a request could meet the closing


class Caller(Protocol):
    """Who asked for a connection."""

    def connected(self, replica: "LiveReplica", upstream: "Upstream") -> None: ...
    def unconnected(self, replica: "LiveReplica", reason: str) -> None: ...


class LiveReplica:
    __slots__ = ("_connecting", "config", "idle", "in_flight", "retired", "shunned_until")

    def __init__(self, config: Replica) -> None:
        self.config = config
        self.in_flight = 0
        self.idle: list[Upstream] = []  # the last one used is the next one
        self.retired = False  # no table has it: it finishes what it has
        self.shunned_until = 0.0
        self._connecting: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly

    @property
    def id(self) -> str:
        return self.config.id

    def shunned(self, now: float) -> bool:
        return self.shunned_until > now

    def pop(self) -> "Upstream | None":
        """A kept connection that is open as far as anybody here knows."""
        while self.idle:
            upstream = self.idle.pop()
            if not upstream.closing:
                return upstream
        return None

    def keep(self, upstream: "Upstream", now: float) -> None:
        if self.retired or len(self.idle) >= KEPT:
            upstream.close()
        else:
            upstream.idle_since = now
            self.idle.append(upstream)

    def forget(self, upstream: "Upstream") -> None:
        with suppress(ValueError):
            self.idle.remove(upstream)

    def connect(self, caller: Caller) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(caller))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, caller: Caller) -> None:
        from pilotlight.gateway.upstream import Upstream

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, upstream = await loop.create_connection(
                    lambda: Upstream(self), self.config.host, self.config.port
                )  # fmt: skip
        except (OSError, TimeoutError) as error:
            caller.unconnected(self, type(error).__name__)
        else:
            caller.connected(self, upstream)

    def retire(self) -> None:
        self.retired = True
        self.close_idle()

    def close_idle(self, before: float = float("inf")) -> None:
        """Closes connections that were last used before that time."""
        overdue = [upstream for upstream in self.idle if upstream.idle_since < before]
        for upstream in overdue:
            self.idle.remove(upstream)
            upstream.close()

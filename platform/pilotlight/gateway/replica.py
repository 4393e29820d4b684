"""Runtime state of one replica: requests in flight and idle connections to it."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from pilotlight.gateway.table import Replica

if TYPE_CHECKING:
    from pilotlight.gateway.upstream import Upstream

CONNECT_S: Final = 5.0
MAX_IDLE: Final = 256  # connections
IDLE_S: Final = 50.0  # shorter than the predictor's 75 s: a request must not meet a connection that is being closed


class ConnectionRequester(Protocol):
    """Receiver of a new connection, or of the reason why there is none."""

    def on_connected(self, replica: "LiveReplica", upstream: "Upstream") -> None: ...
    def on_connect_failed(self, replica: "LiveReplica", reason: str) -> None: ...


class LiveReplica:
    __slots__ = ("_connecting", "config", "idle", "in_flight", "retired", "unhealthy_until")

    def __init__(self, config: Replica) -> None:
        self.config = config
        self.in_flight = 0
        self.idle: list[Upstream] = []  # last in, first out
        self.retired = False  # not in the table any more: gets no new requests
        self.unhealthy_until = 0.0
        self._connecting: set[asyncio.Task[None]] = set()  # the event loop holds tasks only weakly

    @property
    def id(self) -> str:
        return self.config.id

    def is_unhealthy(self, now: float) -> bool:
        return self.unhealthy_until > now

    def take_idle(self) -> "Upstream | None":
        """Return an idle connection that is not known to be closing."""
        while self.idle:
            upstream = self.idle.pop()
            if not upstream.closing:
                return upstream
        return None

    def put_idle(self, upstream: "Upstream", now: float) -> None:
        if self.retired or len(self.idle) >= MAX_IDLE:
            upstream.close()
        else:
            upstream.idle_since = now
            self.idle.append(upstream)

    def remove_idle(self, upstream: "Upstream") -> None:
        with suppress(ValueError):
            self.idle.remove(upstream)

    def connect(self, requester: ConnectionRequester) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(requester))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, requester: ConnectionRequester) -> None:
        from pilotlight.gateway.upstream import Upstream

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, upstream = await loop.create_connection(
                    lambda: Upstream(self), self.config.host, self.config.port
                )  # fmt: skip
        except (OSError, TimeoutError) as error:
            requester.on_connect_failed(self, type(error).__name__)
        else:
            requester.on_connected(self, upstream)

    def retire(self) -> None:
        self.retired = True
        self.close_idle()

    def close_idle(self, before: float = float("inf")) -> None:
        """Close connections that were last used before that time."""
        overdue = [upstream for upstream in self.idle if upstream.idle_since < before]
        for upstream in overdue:
            self.idle.remove(upstream)
            upstream.close()

"""The listening side: connections start in the fast lane and go to aiohttp when they need it; draining at the end."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pilotlight.wire.http1 import Head
from pilotlight_predictor.beside_requests import beside_requests
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.door import ON_THE_WAY_S, accept_all, let_nobody_new_in
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.lane import Lane

if TYPE_CHECKING:
    from pilotlight_predictor.dispatch import Dispatcher
    from pilotlight_predictor.http import FullServer

BACKLOG: Final = 4096
FRESH_S: Final = 0.5  # from being accepted to sending a request
SETTLE_S: Final = 0.06  # in which requests sent before anybody could know of the end arrive
BOOT_BODY: Final = 1 << 20  # a booting server reads this much of a request that it will refuse


class HttpFront:
    """Booting until `open` gives it a dispatcher: then it answers only that it is alive and not ready."""

    def __init__(self, boot_reply: Callable[[Call], Reply]) -> None:
        self.lanes: set[Lane] = set()
        self.speaker: Lane | None = None
        self.closing = False
        self.reserve: Callable[[int], int | None] = _reserve_nothing
        self.release: Callable[[int], None] = _release_nothing
        self.serve: Callable[[Call, Any], None] = self._serve_boot
        self._boot_reply = boot_reply
        self._dispatcher: Dispatcher | None = None
        self._full: FullServer | None = None
        self._full_task: asyncio.Task[None] | None = None
        self._doors: dict[socket.socket, asyncio.Server] = {}
        self.others_accept = False  # whether other processes accept from the same sockets
        self._sweeper: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()
        self._waiting: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly

    async def listen(self, listener: socket.socket) -> None:
        if listener in self._doors or self.closing:
            return
        loop = asyncio.get_running_loop()
        # The server gets a duplicate: closing it leaves this one, for those who were about to be accepted.
        self._doors[listener] = await loop.create_server(lambda: Lane(self), sock=listener.dup(), backlog=BACKLOG)
        self._sweeper = self._sweeper or loop.create_task(self._sweep())

    def leave(self, listener: socket.socket) -> None:
        """Accepts no more from it; whoever waits there is another process's to accept."""
        server = self._doors.pop(listener, None)
        if server is not None:
            server.close()

    def open(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self.reserve, self.release = dispatcher.admission.reserve, dispatcher.admission.give_back
        self.serve = dispatcher.serve
        self._opened.set()
        for lane in self.lanes:
            lane.forget_route()

    def match(self, method: str, path: str) -> Any | None:
        if self._dispatcher is None:
            return self  # any plain request is answered by the booting server
        try:
            found = self._dispatcher.match(method, path)
        except PredictorError:
            return None
        return found if found.route.hot else None

    def admits(self, head: Head, peer: str, match: Any) -> bool:
        if match is self or self._dispatcher is None:
            return True
        try:
            admission, dialect = self._dispatcher.admission, match.dialect.name
            admission.check_size(head.length, dialect)
            admission.admit(head.headers, peer, match.route.action, dialect)
        except PredictorError:
            return False
        return True

    def asks(self, match: Any) -> bool:
        if match is self or self._dispatcher is None:
            return False
        return self._dispatcher.admission.asks(match.route.action, match.dialect.name)

    def _serve_boot(self, call: Call, match: Any) -> None:
        call.finish(self._boot_reply(call))

    def hand_over(self, lane: Lane) -> None:
        """Now, or once aiohttp is imported: its 0.3 s are no part of the cold start."""
        if self._full is not None:
            lane.take_over(self._full.handler())
            return
        lane.hold()
        task = asyncio.get_running_loop().create_task(self._hand_over_later(lane))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _hand_over_later(self, lane: Lane) -> None:
        try:
            await self.prepare_full()
            assert self._full is not None
            lane.take_over(self._full.handler())
        except BaseException:
            lane.close()  # nobody will answer it
            raise

    async def prepare_full(self) -> None:
        """Imports aiohttp off the loop and makes its server; needs the dispatcher."""
        await self._opened.wait()
        if self._full_task is None:
            self._full_task = asyncio.get_running_loop().create_task(self._make_full())
        await self._full_task

    async def _make_full(self) -> None:
        module = await beside_requests(_import_full)
        self._full = module.FullServer(self._dispatcher, self)

    async def _sweep(self) -> None:
        """Closes connections that are idle too long or whose request does not arrive."""
        while True:
            await asyncio.sleep(5)
            now = monotonic()
            for lane in list(self.lanes):
                lane.end_if_overdue(now)
            if self._full is not None:
                self._full.end_overdue(now)

    def in_flight(self) -> int:
        """Requests that will be answered: while booting those are answered at once, and what waits for aiohttp will
        not be when the boot ends early."""
        if self._dispatcher is None:
            return 0
        waiting = sum(1 for lane in self.lanes if not lane.idle)
        return waiting + (self._full.in_flight if self._full else 0)

    def _just_come(self) -> bool:
        """Whether somebody was accepted but has not yet had the time to send a request."""
        now = monotonic()
        return any(lane.fresh and now - lane.busy_since < FRESH_S for lane in self.lanes)

    async def drain(self, delay_s: float, timeout_s: float, hurry: asyncio.Event | None = None) -> bool:
        """Stops taking connections after the delay and waits for answers; False when the bound ended it first.

        `hurry` ends the waiting at once, whatever is still in flight.
        """
        self.closing = True
        hurry = hurry or asyncio.Event()
        await _wait(hurry, delay_s + SETTLE_S)
        await self._stop_listening()
        end = monotonic() + timeout_s
        await _wait(hurry, 0.01)  # those accepted last become connections in the next turns of the loop
        while (self.in_flight() or self._just_come()) and monotonic() < end and not hurry.is_set():
            await _wait(hurry, 0.01)
        finished = not self.in_flight()
        await self._close_all(0.0 if hurry.is_set() else max(0.0, end - monotonic()))
        return finished

    async def _stop_listening(self) -> None:
        """Whoever has connected believed in us: all of them are accepted, and the port is closed right behind."""
        if self._full is not None:
            self._full.end_sockets()
        if self.others_accept:
            for listener in list(self._doors):
                self.leave(listener)
            return
        for listener in self._doors:
            let_nobody_new_in(listener)
        await asyncio.sleep(ON_THE_WAY_S)
        for listener, server in self._doors.items():
            server.close()
            for connection in accept_all(listener):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: Lane(self), connection)

    async def _close_all(self, timeout_s: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for lane in list(self.lanes):
            lane.close()
        if self._full is not None:
            await self._full.close(timeout_s)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _reserve_nothing(length: int) -> int | None:
    return 0 if length <= BOOT_BODY else None


def _release_nothing(length: int) -> None:
    """A booting server has reserved nothing."""


def _import_full() -> Any:
    import pilotlight_predictor.http

    return pilotlight_predictor.http

"""What replicas of the gateway tell each other: how many requests each has for which workload.

    POST /counts   {"loads": [["models", "iris-predictor", 3]]}

Only pods behind the gateway's own headless Service are believed, by the address that a connection comes from.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

import aiohttp
from aiohttp import web
from msgspec import DecodeError, Struct, ValidationError, json

from pilotlight.gateway.cluster.demand import Loads
from pilotlight.gateway.logs import log

PATH: Final = "/counts"
LATE_S: Final = 1.0
MOST: Final = 4 << 20  # bytes of one word


class Word(Struct, frozen=True):
    loads: tuple[tuple[str, str, int], ...] = ()  # namespace, workload, requests


class Peers:
    """`heard` gets a peer's address and its loads."""

    def __init__(self, own: str, port: int, heard: Callable[[str, Loads], None]) -> None:
        self._own, self._port, self._heard = own, port, heard
        self._lines: dict[str, _Line] = {}
        self._session: aiohttp.ClientSession | None = None

    def know(self, addresses: Collection[str]) -> None:
        """Everybody who is there; those who are missing are told nothing more and believed nothing more."""
        wanted = set(addresses) - {self._own}
        for gone in self._lines.keys() - wanted:
            self._lines.pop(gone).close()
        for address in wanted - self._lines.keys():
            self._lines[address] = _Line(self._post, address)

    def tell(self, loads: Loads) -> None:
        """At once; a peer that is slow hears the latest next."""
        word = json.encode(Word(tuple((*key, number) for key, number in loads.items())))
        for line in self._lines.values():
            line.send(word)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MOST)
        app.router.add_post(PATH, self._listen)
        return app

    async def close(self) -> None:
        self.know(())
        if self._session is not None:
            await self._session.close()

    async def _listen(self, request: web.Request) -> web.Response:
        sender = request.remote or ""
        if sender not in self._lines:
            return web.Response(status=403, text="only replicas of this gateway tell counts here\n")
        try:
            word = json.decode(await request.read(), type=Word)
        except (DecodeError, ValidationError) as error:
            return web.Response(status=400, text=f"{error}\n")
        self._heard(sender, {(namespace, workload): number for namespace, workload, number in word.loads})
        return web.Response(status=204)

    async def _post(self, address: str, word: bytes) -> None:
        if self._session is None:  # from the address that they know us by, should the pod have several
            connector = aiohttp.TCPConnector(local_addr=(self._own, 0))
            timeout = aiohttp.ClientTimeout(total=LATE_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.post(f"http://{host}:{self._port}{PATH}", data=word) as answer:
                if answer.status != 204:
                    told = (await answer.text()).strip()
                    log("gateway.peer", f"{address} did not take our counts: {answer.status} {told}", level="WARNING")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log("gateway.peer", f"{address} did not hear our counts: {error or type(error).__name__}", level="WARNING")


class _Line:
    """To one peer: one word at a time, and of those that wait only the last."""

    def __init__(self, post: Callable[[str, bytes], Coroutine[Any, Any, None]], address: str) -> None:
        self._post, self._address = post, address
        self._next: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    def send(self, word: bytes) -> None:
        self._next = word
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._next is not None:
                word, self._next = self._next, None
                await self._post(self._address, word)
        finally:
            self._task = None

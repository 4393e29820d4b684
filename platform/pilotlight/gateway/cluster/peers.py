"""Load reports between replicas of the gateway: requests per workload.

    POST /counts   {"loads": [["models", "iris-predictor", 3]]}

Accepted only from pods behind the gateway's headless Service, by the source address of the connection.
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
MOST: Final = 4 << 20  # bytes of a message


class LoadsMessage(Struct, frozen=True):
    loads: tuple[tuple[str, str, int], ...] = ()  # namespace, workload, requests


class Peers:
    """`on_loads` gets a peer's address and its loads."""

    def __init__(self, own: str, port: int, on_loads: Callable[[str, Loads], None]) -> None:
        self._own, self._port, self._on_loads = own, port, on_loads
        self._senders: dict[str, _PeerSender] = {}
        self._session: aiohttp.ClientSession | None = None

    def set_peers(self, addresses: Collection[str]) -> None:
        """Set the peers; missing ones get no more messages and are rejected as senders."""
        peers = set(addresses) - {self._own}
        for removed in self._senders.keys() - peers:
            self._senders.pop(removed).close()
        for address in peers - self._senders.keys():
            self._senders[address] = _PeerSender(self._post, address)

    def broadcast(self, loads: Loads) -> None:
        """Send the loads to all peers; a slow peer skips to the latest."""
        message = json.encode(LoadsMessage(tuple((*key, number) for key, number in loads.items())))
        for sender in self._senders.values():
            sender.send(message)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MOST)
        app.router.add_post(PATH, self._receive)
        return app

    async def close(self) -> None:
        self.set_peers(())
        if self._session is not None:
            await self._session.close()

    async def _receive(self, request: web.Request) -> web.Response:
        sender = request.remote or ""
        if sender not in self._senders:
            return web.Response(status=403, text="only replicas of this gateway tell counts here\n")
        try:
            message = json.decode(await request.read(), type=LoadsMessage)
        except (DecodeError, ValidationError) as error:
            return web.Response(status=400, text=f"{error}\n")
        self._on_loads(sender, {(namespace, workload): number for namespace, workload, number in message.loads})
        return web.Response(status=204)

    async def _post(self, address: str, message: bytes) -> None:
        if self._session is None:  # from the address that peers accept, should the pod have several
            connector = aiohttp.TCPConnector(local_addr=(self._own, 0))
            timeout = aiohttp.ClientTimeout(total=LATE_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.post(f"http://{host}:{self._port}{PATH}", data=message) as response:
                if response.status != 204:
                    reason = (await response.text()).strip()
                    log(
                        "gateway.peer",
                        f"{address} did not take our counts: {response.status} {reason}",
                        level="WARNING",
                    )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log("gateway.peer", f"{address} did not hear our counts: {error or type(error).__name__}", level="WARNING")


class _PeerSender:
    """Sends to one peer: one message at a time, and of queued ones only the last."""

    def __init__(self, post: Callable[[str, bytes], Coroutine[Any, Any, None]], address: str) -> None:
        self._post, self._address = post, address
        self._next: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    def send(self, message: bytes) -> None:
        self._next = message
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._next is not None:
                message, self._next = self._next, None
                await self._post(self._address, message)
        finally:
            self._task = None

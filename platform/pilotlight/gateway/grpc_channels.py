"""Connections to the gRPC ports of replicas: one each, made when a call needs it, closed when the replica is gone."""

import asyncio
from typing import Any, Final

from pilotlight.gateway.addresses import Address
from pilotlight.gateway.table import Replica

CONNECT_S: Final = 5.0
OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a port may pass to another replica: nothing is remembered of the first
)


class Connection:
    """`users` are the calls that run on it."""

    def __init__(self, replica: Replica) -> None:
        import grpc.aio

        self.place = Address(replica.host, replica.grpc_port).place
        self.channel = grpc.aio.insecure_channel(self.place, options=OPTIONS)
        self.users = 0
        self.wanted = True

    async def ready(self) -> None:
        """Raises ConnectionError when none comes about: nothing of a call has been sent by then."""
        from grpc import ChannelConnectivity as State

        state = self.channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(CONNECT_S):
                while state is not State.READY:
                    if state in (State.TRANSIENT_FAILURE, State.SHUTDOWN):
                        raise ConnectionError(f"no connection to {self.place}")
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise ConnectionError(f"no connection to {self.place} within {CONNECT_S:g} s") from None


class Connections:
    """By replica."""

    def __init__(self) -> None:
        self._open: dict[str, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def get(self, replica: Replica) -> Connection:
        """Ready, and counted as used until `put` is called. Raises ConnectionError."""
        found = self._open.get(replica.id)
        if found is None:
            found = self._open[replica.id] = Connection(replica)
        found.users += 1
        try:
            await found.ready()
        except BaseException as error:
            if isinstance(error, ConnectionError):
                self._discard(replica.id, found)
            self.put(found)
            raise
        return found

    def put(self, connection: Connection) -> None:
        connection.users -= 1
        self._close_if_idle(connection)

    def keep(self, replicas: set[str]) -> None:
        for gone in self._open.keys() - replicas:
            self._discard(gone, self._open[gone])

    async def close(self) -> None:
        self.keep(set())
        await asyncio.gather(*self._closing)

    def _discard(self, replica: str, connection: Connection) -> None:
        """The next call makes another one; calls that run on this one go on."""
        if self._open.get(replica) is connection:
            del self._open[replica]
        connection.wanted = False
        self._close_if_idle(connection)

    def _close_if_idle(self, connection: Connection) -> None:
        if not connection.wanted and not connection.users:
            closing: Any = asyncio.get_running_loop().create_task(connection.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

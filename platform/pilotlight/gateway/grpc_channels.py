"""gRPC channels to replicas: one each, opened by the first call, closed when the replica is gone."""

import asyncio
from typing import Any, Final

from pilotlight.gateway.addresses import Address
from pilotlight.gateway.table import Replica

CONNECT_S: Final = 5.0
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # no shared subchannels: a port may pass to another replica
)


class GrpcChannel:
    """`users` is the number of calls that use it."""

    def __init__(self, replica: Replica) -> None:
        import grpc.aio

        self.place = Address(replica.host, replica.grpc_port).host_port
        self.channel = grpc.aio.insecure_channel(self.place, options=CHANNEL_OPTIONS)
        self.users = 0
        self.pooled = True

    async def ready(self) -> None:
        """Wait for the connection. Raises ConnectionError; nothing of a call has been sent by then."""
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


class ChannelPool:
    """Channels by replica."""

    def __init__(self) -> None:
        self._open: dict[str, GrpcChannel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def acquire(self, replica: Replica) -> GrpcChannel:
        """Return a connected channel, in use until `release`. Raises ConnectionError."""
        channel = self._open.get(replica.id)
        if channel is None:
            channel = self._open[replica.id] = GrpcChannel(replica)
        channel.users += 1
        try:
            await channel.ready()
        except BaseException as error:
            if isinstance(error, ConnectionError):
                self._discard(replica.id, channel)
            self.release(channel)
            raise
        return channel

    def release(self, connection: GrpcChannel) -> None:
        connection.users -= 1
        self._close_if_idle(connection)

    def retain(self, replicas: set[str]) -> None:
        """Discard the channels of all other replicas."""
        for removed in self._open.keys() - replicas:
            self._discard(removed, self._open[removed])

    async def close(self) -> None:
        self.retain(set())
        await asyncio.gather(*self._closing)

    def _discard(self, replica: str, connection: GrpcChannel) -> None:
        """Remove a channel from the pool; it is closed after its last call."""
        if self._open.get(replica) is connection:
            del self._open[replica]
        connection.pooled = False
        self._close_if_idle(connection)

    def _close_if_idle(self, connection: GrpcChannel) -> None:
        if not connection.pooled and not connection.users:
            closing: Any = asyncio.get_running_loop().create_task(connection.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

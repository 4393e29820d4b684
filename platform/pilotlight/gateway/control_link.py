"""Messages between control process and gateway, and the gateway's end of the unix socket: JSON lines, both ways.

The gateway outlives the control process: it continues with its last table and waits for a new connection. A lock on
its folder is held while it takes requests, so a socket without a lock is stale.
"""

import asyncio
import hashlib
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Final

from msgspec import Struct, field

from pilotlight import __version__
from pilotlight.errors import PlatformError
from pilotlight.gateway.fd_channel import Channel
from pilotlight.gateway.routing_table import Table
from pilotlight.wire.shared_files import is_locked, try_lock
from pilotlight.wire.unix_socket import listen

SOCKET: Final = "gateway.sock"
LOCK: Final = "gateway.lock"
BACKLOG: Final = 8


@cache
def build_id() -> str:
    """Return the version with a digest of the installed sources, as of this process's start.

    A gateway imports some modules on first use, so one that is older than the installed files has to be replaced even
    if the version is the same.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for folder in ("gateway", "wire") for path in (package / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(package)} {path.stat().st_mtime_ns}\n".encode())
    return f"{__version__}+{digest.hexdigest()[:12]}"


class Publish(Struct, frozen=True, tag="publish"):
    """Answered by Applied once no request can reach a replica that the table lacks."""

    table: Table


class Listen(Struct, frozen=True, tag="listen"):
    """The addresses to serve from now on, answered by Applied.

    Each `host:port/kind` with kind http or grpc; the n-th descriptor belongs to the n-th of `held`.
    """

    held: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()  # without a descriptor: bound by the gateway
    shared: tuple[str, ...] = ()  # addresses that serve all routes; any other serves the route of its port


class Spent(Struct, frozen=True, tag="spent"):
    """Tokens that callers have spent on a day (since the epoch, UTC), for quotas; sent first on every connection."""

    day: int
    callers: tuple[tuple[str, str, str, int], ...] = ()  # namespace, route, caller, tokens


class Lend(Struct, frozen=True, tag="lend"):
    """Requests the gateway's listeners: answered by Sockets with descriptors."""


class Stop(Struct, frozen=True, tag="stop"):
    """Finish requests in flight and exit."""

    drain_s: float = 30.0


class Hello(Struct, frozen=True, tag="hello"):
    """First on every connection."""

    version: str  # build_id of the gateway
    pid: int
    generation: int = 0
    routes: int = 0  # in the table that it serves


class Applied(Struct, frozen=True, tag="applied"):
    generation: int
    failed: tuple[str, ...] = ()  # addresses that could not be bound, each with its reason


class Sockets(Struct, frozen=True, tag="sockets"):
    held: tuple[str, ...] = ()


class Activity(Struct, frozen=True):
    """One backend with requests since the last report, or under way."""

    namespace: str
    revision: str
    waiting: int
    in_flight: int
    idle_s: float  # since its last request; 0: it has some


class Wake(Struct, frozen=True, tag="wake"):
    """A request waits for a backend without replicas; sent immediately.

    `active` is what the next report will have of others: one of them may have to leave a GPU for this one.
    """

    namespace: str
    name: str  # of the route
    revision: str
    waiting: int = 1
    active: tuple[Activity, ...] = ()


class BackendReport(Struct, frozen=True):
    """One backend over one interval. `concurrency` is the time average of waiting + in flight."""

    namespace: str
    name: str
    workload: str
    revision: str
    concurrency: float
    requests: int
    errors: int  # status 500 and above, and no response
    waiting: int  # now
    in_flight: int  # now
    cold_starts: int = 0
    held_s: float = 0.0
    latencies: tuple[int, ...] = ()  # counts by contract.LATENCY_BUCKETS, the last one above all edges
    held: int = 0  # requests that waited for a replica; `held_s` is their total time
    # Of `requests`: answered 503 by the gateway because no replica came or the queue was full. Encoded under the name
    # that gateways and control processes of other releases use.
    rejected: int = field(name="refused", default=0)
    latency_s: float = 0.0  # summed over `requests`
    lost: int = 0  # of `errors`: answered 502 by the gateway because the replica closed the connection
    idle_s: float = 0.0  # since its last request; 0: it has some


class TokenReport(Struct, frozen=True):
    """Tokens of one model and caller over one interval. `caller` is empty without authentication."""

    namespace: str
    name: str  # of the route
    model: str  # the service's, or an adapter
    caller: str
    requests: int = 0
    prompt: int = 0
    cached: int = 0  # of `prompt`
    completion: int = 0
    first_token: tuple[int, ...] = ()  # counts by contract.FIRST_TOKEN_BUCKETS; empty: no stream
    first_token_s: float = 0.0  # summed


class TokenQueue(Struct, frozen=True):
    """Prompt tokens of a route, estimated, whose requests have no first token yet; now."""

    namespace: str
    name: str
    tokens: int


class Report(Struct, frozen=True, tag="report"):
    """Counters since the last report, every second while there are requests."""

    seconds: float
    backends: tuple[BackendReport, ...] = ()
    tokens: tuple[TokenReport, ...] = ()
    token_queues: tuple[TokenQueue, ...] = ()
    adapters: tuple[BackendReport, ...] = ()  # `revision` is the engine's name of the adapter


class Unreachable(Struct, frozen=True, tag="unreachable"):
    """A replica refused a connection, or closed it without a response."""

    replica: str
    reason: str


class Leaving(Struct, frozen=True, tag="leaving"):
    """The gateway exits after a signal: it accepts no more connections, but applies tables until then."""


ControlMessage = Publish | Listen | Lend | Spent | Stop
GatewayMessage = Hello | Applied | Sockets | Wake | Report | Unreachable | Leaving
SendReply = Callable[..., None]  # a message, and sockets to send with it
OnControlMessage = Callable[[ControlMessage, list[socket.socket], SendReply], None]


class ControlServer:
    """One connection at a time: a newer one replaces the older one.

    `on_message` gets each message with its sockets and a function to reply. `hello` makes the first message.
    """

    def __init__(self, folder: Path, hello: Callable[[], Hello], on_message: OnControlMessage) -> None:
        self._folder, self._hello, self._on_message = folder, hello, on_message
        self._channel: Channel[ControlMessage] | None = None
        self._lock: IO[bytes] | None = None
        self._listener: socket.socket | None = None

    async def open(self, wait_s: float = 5.0) -> None:
        """Lock the folder and listen; wait up to `wait_s` for a predecessor to exit. Raises PlatformError."""
        self._lock = await _acquire_lock(self._folder / LOCK, wait_s)
        self._listener = listen(self._folder / SOCKET, BACKLOG)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    @property
    def connected(self) -> bool:
        return self._channel is not None and not self._channel.closed

    def send(self, message: GatewayMessage, sockets: Sequence[socket.socket] = ()) -> None:
        if self._channel is not None:
            self._channel.send(message, sockets)

    def release(self, *, disconnect: bool) -> None:
        """Release the folder for a successor; a connection may stay open until the exit."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
            with suppress(FileNotFoundError):
                (self._folder / SOCKET).unlink()
            if self._lock is not None:
                self._lock.close()
        if disconnect and self._channel is not None:
            self._channel.close()
            self._channel = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if self._channel is not None:
            self._channel.close()

        def on_message(message: ControlMessage, sockets: list[socket.socket]) -> None:
            self._on_message(message, sockets, channel.send)

        def on_lost() -> None:
            if self._channel is channel:
                self._channel = None

        self._channel = channel = Channel[ControlMessage](connection, ControlMessage, on_message, on_lost)
        channel.send(self._hello())


def is_running(folder: Path) -> bool:
    """Whether a gateway runs in the folder. Tries the lock only: connecting would disconnect the control process."""
    return is_locked(folder / LOCK)


async def _acquire_lock(path: Path, wait_s: float) -> IO[bytes]:
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    while (lock := try_lock(path)) is None:
        if loop.time() >= until:
            raise PlatformError(f"another gateway runs in {path.parent}; stop it first")
        await asyncio.sleep(0.02)
    return lock

"""Guard of a new, empty state against replicas and routes that run: their state was lost, and must not be overwritten.

Started like any other, a control process with an empty store would end the replicas as orphans and publish an empty
routing table. It refuses instead; gateway and replicas keep serving until `restore` or `up --forget`.
"""

import asyncio
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pilotlight.control_plane import launcher_registry
from pilotlight.errors import PlatformError
from pilotlight.gateway import fd_channel
from pilotlight.gateway.control_link import GatewayMessage, Hello
from pilotlight.gateway.fd_channel import Channel
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.store.schema import FRESH_START
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.local.supervisor.process_inspection import replica_processes

HELLO_S: Final = 5.0
REMOVED: Final = "requests are still served, but changes are not saved; run platformctl down, then platformctl up"


def refusal(database: Path, routes: int, replicas: Collection[int], elsewhere: Sequence[str] = ()) -> str:
    """Return why a control process with a new state must not start; empty: it may.

    `elsewhere` has a phrase for each launcher other than that of `local` that runs replicas.
    """
    if not routes and not replicas and not elsewhere:
        return ""
    running = list[str]()
    if routes:
        running.append(f"the gateway routes {routes} service{'s' if routes > 1 else ''}")
    if replicas:
        running.append(f"replicas run (pids {', '.join(map(str, sorted(replicas)))})")
    running += elsewhere
    return f"{database} is new while {' and '.join(running)}: the state was lost; {FRESH_START}"


async def check(home: Home, store: Store) -> None:
    """Raise PlatformError if the store is new though the home's gateway or replicas serve. Call it with the lock."""
    if not store.is_new:
        return
    replicas = [pid for pid, _ in replica_processes(home)]
    if why := refusal(home.database, await _routes(home), replicas, await launcher_registry.describe_running(home)):
        raise PlatformError(why)


def folder_removed(home: Home, lock: int) -> bool:
    """Whether the folder of the lock, held by this process, was removed or replaced."""
    with suppress(OSError):
        return not os.path.samestat(home.lock.stat(), os.fstat(lock))
    return True


async def _routes(home: Home) -> int:
    """Return the number of routes that the living gateway serves; 0: there is none."""
    connection = fd_channel.connect(home.gateway_socket)
    if connection is None:
        return 0
    hello: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def receive(message: GatewayMessage, _: object) -> None:
        if isinstance(message, Hello) and not hello.done():
            hello.set_result(message.routes)

    def lost() -> None:
        if not hello.done():
            hello.set_result(0)

    channel: Channel[GatewayMessage] = Channel(connection, GatewayMessage, receive, lost)
    try:
        return await asyncio.wait_for(hello, HELLO_S)
    except TimeoutError:
        return 0
    finally:
        channel.close()

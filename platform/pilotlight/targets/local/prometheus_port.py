"""The port of a Prometheus beside the platform: one that is free, who is ready there, and whether that is ours."""

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.gateway.addresses import listeners

HOST: Final = "127.0.0.1"


def free_port(wanted: int) -> int:
    """The usual port, or any that nobody has."""
    for port in (wanted, 0):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise PlatformError("no port is free for Prometheus")


async def is_ready(port: int) -> bool:
    """Asked in one line, so that a start imports no client for it."""
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(f"GET /-/ready HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    return False


def may_listen(pid: int, port: int) -> bool:
    """Whether it is the process that listens there, or one of its session; True where we may not look at it."""
    return pid in map(_session, listeners(port)) or not _seen(pid)


def _session(pid: int) -> int:
    with suppress(OSError):
        return os.getsid(pid)
    return 0


def _seen(pid: int) -> bool:
    with suppress(OSError):
        return bool(os.listdir(Path(f"/proc/{pid}/fd")))
    return False

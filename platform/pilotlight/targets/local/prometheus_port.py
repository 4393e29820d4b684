"""The port of a Prometheus beside the platform: one that is free, who is ready there, and whether that is ours."""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.gateway.addresses import listeners, listening

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
    """Whether it is the process that listens there, or one of its session; True where that cannot be seen."""
    return pid in map(_session, listeners(port)) or not listening(port) or _hidden(pid)


def _session(pid: int) -> int:
    with suppress(OSError):
        return os.getsid(pid)
    return 0


def _hidden(pid: int) -> bool:
    with suppress(FileNotFoundError):  # it has ended
        try:
            os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            return True
    return False

"""Sockets that have a place in a folder: only their owner opens them, and whoever sees one can connect to it."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LONGEST_PATH: Final = 100  # sun_path is 108 bytes on Linux and 104 elsewhere, with its end


def listen(path: Path, backlog: int) -> socket.socket:
    """Whatever lay at its place is replaced, so ask first whether it lives.

    It gets its name after it listens: one that is bound first refuses those who came when they saw it.
    """
    unnamed = path.with_name(f"{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        unnamed.unlink(missing_ok=True)
        _bind(listener, unnamed)
        listener.listen(backlog)
        unnamed.replace(path)
    except BaseException:
        listener.close()
        unnamed.unlink(missing_ok=True)
        raise
    return listener


def _bind(listener: socket.socket, path: Path) -> None:
    before = os.umask(0o177)
    try:
        with unix_address(path) as address:
            listener.bind(address)
    finally:
        os.umask(before)


@contextmanager
def unix_address(path: Path) -> Iterator[str]:
    """A name for the socket that is short enough, however deep its folder lies."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def peer_pid(connection: socket.socket) -> int:
    """Who is at the other end of a connection, as the kernel knows it; 0 where it does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", told)[0]
    return pid

"""Unix sockets with paths of any length, accessible to their owner only.

A host `unix:FOLDER` has a socket in that folder for each of its ports: port 8080 is FOLDER/8080. The URL of that port
is `unix:FOLDER/8080`. A server may be one of an org in a sandbox, so links in place of a socket are not followed.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SCHEME: Final = "unix:"  # of a host
MAX_PATH: Final = 100  # sun_path has 108 bytes on Linux and 104 elsewhere, including the final NUL


def is_unix(host: str) -> bool:
    return host.startswith(SCHEME)


def socket_path(host: str, port: int) -> Path:
    """Return the socket of a port of a `unix:` host."""
    return Path(host.removeprefix(SCHEME), str(port))


def url(host: str, port: int) -> str:
    """Return the URL of a port of a `unix:` or other host."""
    return f"{host}/{port}" if is_unix(host) else f"http://{host}:{port}"


def split_url(url: str) -> tuple[str, int]:
    """Return host and port of a `unix:` URL."""
    host, _, port = url.rstrip("/").rpartition("/")
    return host, int(port)


def connect(host: str, port: int) -> socket.socket:
    """Return a connected non-blocking socket, as `HeldSocket.connect` does."""
    held = HeldSocket(host, port)
    try:
        return held.connect()
    finally:
        held.close()


class HeldSocket:
    """A port of a `unix:` host that can be connected to as long as it listens, even if its file is removed."""

    def __init__(self, host: str, port: int) -> None:
        self._path = socket_path(host, port)
        self._file = -1

    def connect(self) -> socket.socket:
        """Return a connected non-blocking socket. Raise OSError, never wait.

        BlockingIOError: the backlog is full. It must not be waited for: the kernel does not report when there is space.
        """
        self.hold()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(self.address)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def address(self) -> str:
        """Address of the socket for this process, as long as it is held."""
        return f"/proc/self/fd/{self._file}"

    def hold(self) -> None:
        """Open the file, unless it is open. Raises OSError."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def listen(path: Path, backlog: int) -> socket.socket:
    """Return a listening socket at the path, replacing a file that is there: check first that nothing serves it."""
    # Bound under a temporary name and renamed once it listens: a client that sees the path never gets ECONNREFUSED.
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        temporary.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            with unix_address(temporary) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen(backlog)
        temporary.replace(path)
    except BaseException:
        listener.close()
        temporary.unlink(missing_ok=True)
        raise
    return listener


@contextmanager
def unix_address(path: Path) -> Iterator[str]:
    """Yield an address of the socket that fits into sun_path, however deep its folder is."""
    if len(os.fsencode(path)) <= MAX_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def peer_pid(connection: socket.socket) -> int:
    """Return the PID of the peer by SO_PEERCRED; 0 where the platform has none."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid

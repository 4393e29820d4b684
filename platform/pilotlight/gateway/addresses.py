"""Addresses that are listened on, `host:port/kind`, and how a socket comes to be bound to one.

Both processes use this: the control process binds HTTP listeners and keeps them, the gateway serves them.
"""

import errno
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.errors import PlatformError, UsageError

BACKLOG: Final = 4096  # connections that wait while a gateway starts; the system may allow fewer
KINDS: Final = ("http", "grpc")
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\[\]:/]+):(\d{1,5})(?:/(\w+))?")
_TWINS: Final = {"127.0.0.1": "::1", "0.0.0.0": "::"}  # noqa: S104 - what the user asked for
_LISTENING: Final = "0A"  # in the kernel's table of connections


class CannotListen(PlatformError):
    """An address that cannot be had: a sentence that names it, who may hold it, and what to change."""


class Address(NamedTuple):
    """`host` is a numeric address, or a name of this machine."""

    host: str
    port: int
    kind: str = "http"

    def __str__(self) -> str:
        return f"{self.place}/{self.kind}"

    @property
    def place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def twin(self) -> "Address | None":
        """The same in IPv6 for an address of IPv4, since `localhost` may mean either."""
        host = _TWINS.get(self.host)
        return None if host is None else self._replace(host=host)


def parse(text: str) -> Address:
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > 65535 or (found[3] or "http") not in KINDS:
        raise UsageError(f"listen = {text}, must be host:port/kind such as 127.0.0.1:8090/http; kinds: http, grpc")
    return Address(found[1].strip("[]"), int(found[2]), found[3] or "http")


def bind(address: Address, setting: str = "") -> socket.socket:
    """A listening socket; clients may connect from this moment on. `setting` is what to change when it is taken."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise CannotListen(refusal(address, error, setting)) from error
    return listener


def bind_twin(address: Address, setting: str = "") -> socket.socket | None:
    """As `bind`, but None where the machine has no IPv6."""
    try:
        return bind(address, setting)
    except CannotListen as error:
        cause = error.__cause__
        assert isinstance(cause, OSError)
        if cause.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        raise


@cache
def has_ipv6() -> bool:
    """Whether `::1` can be had."""
    listener = bind_twin(Address("::1", 0))
    if listener is not None:
        listener.close()
    return listener is not None


def refusal(address: Address, error: OSError, setting: str = "") -> str:
    """One sentence: what is not to be had, why, and what to do."""
    if error.errno == errno.EADDRINUSE:
        by = holder(address.port)
        fix = f"stop it or choose another port with {setting}" if setting else "stop it or choose another port"
        return f"port {address.port} on {address.host} is taken{f' by {by}' if by else ''}; {fix}"
    if error.errno == errno.EACCES:
        return f"port {address.port} on {address.host} needs a privilege that this user lacks; choose one above 1023"
    return f"cannot listen on {address.place}: {error.strerror or error}"


def holder(port: int) -> str:
    """Who listens on the port, as far as /proc lets us see: `name (pid 1234)`."""
    for pid in listeners(port):
        with suppress(OSError):
            return f"{Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})"
    return ""


def listeners(port: int) -> Iterator[int]:
    """The processes that listen on the port, as far as we may look at them."""
    wanted = {f"socket:[{inode}]" for inode in listening(port)}
    for process in os.listdir("/proc") if wanted else ():
        if process.isdigit() and wanted & set(_open_files(f"/proc/{process}/fd")):
            yield int(process)


def _open_files(folder: str) -> Iterator[str]:
    """What the descriptors of a process are, which may end or close some meanwhile."""
    with suppress(OSError):
        for descriptor in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(f"{folder}/{descriptor}")


def listening(port: int) -> set[str]:
    """The sockets that listen on the port, by their inodes."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            ours = [row for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]
            found.update(row[9] for row in ours)
    return found - {"0"}

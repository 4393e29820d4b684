"""Client of a connection: its address, and the local user that owns its end of a loopback connection.

Standard library only: every connection has one, also before the server is ready.
"""

import sys
from typing import Any, Final, Protocol

ESTABLISHED: Final = "01"
TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


class Transport(Protocol):
    def get_extra_info(self, name: str) -> Any: ...


class Peer(str):
    """Address of a client. `port`: of its end of the connection; 0: unknown."""

    __slots__ = ("port",)
    port: int


def peer_of(transport: Transport) -> str:
    """Return the client of a connection; empty for a unix socket."""
    address = transport.get_extra_info("peername")
    if not address or not isinstance(address, tuple):
        return ""
    peer = Peer(address[0])
    peer.port = address[1]
    return peer


def local_owner(address: str, port: int) -> int | None:
    """Return the uid of the local process at that end of a TCP connection; None where the kernel's table is missing.

    -1 if there is no such established connection. Its owner could have closed it, and the kernel then shows root's uid.
    """
    from ipaddress import IPv4Address, ip_address

    ip = ip_address(address)
    mapped = b"\0" * 10 + b"\xff\xff"
    forms = (ip.packed, mapped + ip.packed) if isinstance(ip, IPv4Address) else (ip.packed, ip.packed[12:])
    ends = {f"{_in_table(packed)}:{port:04X}" for packed in forms}
    owners: set[int] = set()
    readable = False
    for table in TABLES:
        try:
            with open(table, encoding="ascii") as file:
                rows = file.readlines()[1:]
        except OSError:
            continue
        readable = True
        for fields in map(str.split, rows):
            if fields[1] in ends and fields[3] == ESTABLISHED:
                owners.add(int(fields[7]))
    if not readable:
        return None
    return owners.pop() if len(owners) == 1 else -1


def _in_table(packed: bytes) -> str:
    """Return an address as the kernel's tables have it: words of four bytes in the machine's order."""
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)

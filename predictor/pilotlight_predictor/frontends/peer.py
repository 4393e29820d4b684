"""Client of a connection: its address, and the local user that owns its end of a loopback connection.

Standard library only: every connection has one, also before the server is ready.
"""

import os
import sys
from asyncio import BaseTransport
from contextlib import suppress
from typing import Final

ESTABLISHED: Final = "01"
TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


class Peer(str):
    """Address of a client. `port`: of its end of the connection; `server`: address and port of the server's end."""

    __slots__ = ("port", "server")
    port: int
    server: tuple[str, int]


def peer_of(transport: BaseTransport) -> str:
    """Return the client of a connection; empty for a unix socket."""
    address = transport.get_extra_info("peername")
    if not address or not isinstance(address, tuple):
        return ""
    peer = Peer(address[0])
    peer.port = address[1]
    peer.server = (transport.get_extra_info("sockname") or address)[:2]  # else no connection fits
    return peer


def local_owner(peer: Peer) -> int | None:
    """Return the uid of the local process at the client's end of a connection; None: the kernel's table is missing.

    -1 if there is no such established connection. Its owner could have closed it, and the kernel then shows root's uid.
    Both ends are compared: a client can have the port of another user's connection to another server. -1 also for a
    process of this user in another user namespace, such as the sandbox of a model; that of root has its own uid.
    """
    client, server = _forms(peer, peer.port), _forms(*peer.server)
    owners: set[tuple[int, str]] = set()
    readable = False
    for table in TABLES:
        try:
            with open(table, encoding="ascii") as file:
                rows = file.readlines()[1:]
        except OSError:
            continue
        readable = True
        for fields in map(str.split, rows):
            if fields[1] in client and fields[2] in server and fields[3] == ESTABLISHED:
                owners.add((int(fields[7]), fields[9]))
    if not readable:
        return None
    uid, inode = owners.pop() if len(owners) == 1 else (-1, "")
    return -1 if uid and uid == os.geteuid() and not _in_own_namespace(f"socket:[{inode}]") else uid


def _in_own_namespace(connection: str) -> bool:
    """Whether a process of this user and user namespace holds the socket, as far as /proc shows its descriptors."""
    own = os.stat("/proc/self/ns/user").st_ino
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # of another user, or gone
            if os.stat(f"/proc/{pid}/ns/user").st_ino == own:
                folder = f"/proc/{pid}/fd"
                if any(os.readlink(f"{folder}/{name}") == connection for name in os.listdir(folder)):
                    return True
    return False


def _forms(address: str, port: int) -> set[str]:
    """Return an end of a connection as the tables of IPv4 and IPv6 have it."""
    from ipaddress import IPv4Address, ip_address

    ip = ip_address(address)
    mapped = b"\0" * 10 + b"\xff\xff"
    forms = (ip.packed, mapped + ip.packed) if isinstance(ip, IPv4Address) else (ip.packed, ip.packed[12:])
    return {f"{_in_table(packed)}:{port:04X}" for packed in forms}


def _in_table(packed: bytes) -> str:
    """Return an address as the kernel's tables have it: words of four bytes in the machine's order."""
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)

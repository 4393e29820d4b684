"""Takes the gRPC port when the server is put together, before anybody listens on it.

A socket that is bound and does not listen yet holds the port: one that is taken is found at once, and a number of the
system's choice is known. Who connects before there is somebody to answer is refused and comes again.
"""

import socket
from typing import TYPE_CHECKING, NamedTuple

from pilotlight.contract import GRPC_PORT
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.logs import log

if TYPE_CHECKING:
    from pilotlight_predictor.settings import ServerSettings


class HeldPort(NamedTuple):
    host: str
    port: int
    holder: socket.socket

    def opened(self) -> socket.socket:
        """For whoever listens on it. The kernel remembers connections for a minute after their end, and the next server
        may take the port meanwhile. Not marked so before: two servers could then hold it.

        Connections inherit that the kernel asks after a peer that says nothing: one that has died is gone some day."""
        self.holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.holder.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return self.holder


def hold(settings: "ServerSettings") -> HeldPort | None:
    """None when gRPC is off, or when nobody asked for a port and the default one is taken. Raises LoadFailed."""
    port, host = settings.grpc_port, settings.grpc_host or settings.host
    if port < 0:
        return None
    if port == 0 and settings.workers > 1:
        log("setting", "gRPC is not served: several workers need a --grpc-port with a number", level="WARNING")
        return None
    try:
        holder = _held(host, port, shared=settings.workers > 1)
    except OSError as error:
        message = f"{host}:{port}: {error.strerror}; choose another with --grpc-port, or -1 for none"
        if port != GRPC_PORT:
            raise LoadFailed(f"cannot listen on {message}") from None
        log("setting", f"gRPC is not served: cannot listen on {message}", level="WARNING")
        return None
    return HeldPort(host, holder.getsockname()[1], holder)


def _held(host: str, port: int, *, shared: bool) -> socket.socket:
    """`shared` among workers. Where connections of another program are remembered, which did not share the port, they
    are in the way of who shares it, and of nobody else: there, two servers may hold it, and one of them listens."""
    if port and not shared:
        _bound(host, port, socket.SO_REUSEADDR).close()  # one that others share is taken, too
    try:
        return _bound(host, port, socket.SO_REUSEPORT)
    except OSError:
        return _bound(host, port, socket.SO_REUSEADDR, *([socket.SO_REUSEPORT] if shared else []))


def _bound(host: str, port: int, *options: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        for option in options:
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound

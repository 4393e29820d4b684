"""Reservation of the gRPC port at start, before the gRPC server listens on it.

A bound socket that does not listen reserves the port: a conflict is found at once, and the number of port 0 is known.
Until the server listens, connections are refused and clients retry.
"""

import socket
from typing import TYPE_CHECKING, NamedTuple

from pilotlight.contract import GRPC_PORT
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.logs import log

if TYPE_CHECKING:
    from pilotlight_predictor.settings import ServerSettings


class ReservedPort(NamedTuple):
    host: str
    port: int
    bound_socket: socket.socket

    def listening_socket(self) -> socket.socket:
        """Return the socket, ready to listen."""
        # Connections in TIME_WAIT must not block the next server. Not set earlier: two servers could then both bind.
        self.bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit keepalive, which finds peers that died silently.
        self.bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return self.bound_socket


def reserve_port(settings: "ServerSettings") -> ReservedPort | None:
    """Bind the gRPC port; None if gRPC is off or the default port is taken. Raise LoadFailed if another one is."""
    port, host = settings.grpc_port, settings.grpc_host or settings.host
    if port < 0:
        return None
    if port == 0 and settings.workers > 1:
        log("setting", "gRPC is not served: several workers need a --grpc-port with a number", level="WARNING")
        return None
    try:
        bound_socket = _reserve(host, port, shared=settings.workers > 1)
    except OSError as error:
        message = f"{host}:{port}: {error.strerror}; choose another with --grpc-port, or -1 for none"
        if port != GRPC_PORT:
            raise LoadFailed(f"cannot listen on {message}") from None
        log("setting", f"gRPC is not served: cannot listen on {message}", level="WARNING")
        return None
    return ReservedPort(host, bound_socket.getsockname()[1], bound_socket)


def _reserve(host: str, port: int, *, shared: bool) -> socket.socket:
    """Bind the port, `shared` between workers or not."""
    if port and not shared:
        _bind(host, port, socket.SO_REUSEADDR).close()  # fails if other processes share the port with SO_REUSEPORT
    try:
        return _bind(host, port, socket.SO_REUSEPORT)
    except OSError:
        # Connections in TIME_WAIT of a program without SO_REUSEPORT block that option only. Then two servers may
        # reserve the port, and one of them fails to listen.
        return _bind(host, port, socket.SO_REUSEADDR, *([socket.SO_REUSEPORT] if shared else []))


def _bind(host: str, port: int, *options: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        for option in options:
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound

"""Takes the gRPC port when the server is put together, before grpcio is there to listen on it.

grpcio takes no socket from others, but shares a port with those who allow it: a socket that is bound and never listens
holds the port, so that a port that is taken is found at once and a number of the system's choice is known.
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

    @property
    def place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def hold(settings: "ServerSettings") -> HeldPort | None:
    """None when gRPC is off, or when nobody asked for a port and the default one is taken. Raises LoadFailed."""
    port, host = settings.grpc_port, settings.grpc_host or settings.host
    if port < 0:
        return None
    if port == 0 and settings.workers > 1:
        log("setting", "gRPC is not served: several workers need a --grpc-port with a number", level="WARNING")
        return None
    try:
        if port and settings.workers == 1:
            _bound(host, port, shared=False).close()  # grpcio would share it with any process of this user
        holder = _bound(host, port, shared=True)
    except OSError as error:
        message = f"{host}:{port}: {error.strerror}; choose another with --grpc-port, or -1 for none"
        if port != GRPC_PORT:
            raise LoadFailed(f"cannot listen on {message}") from None
        log("setting", f"gRPC is not served: cannot listen on {message}", level="WARNING")
        return None
    return HeldPort(host, holder.getsockname()[1], holder)


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound

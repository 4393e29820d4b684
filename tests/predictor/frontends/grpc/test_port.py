"""The gRPC port as the kernel sees it."""

import socket

from pilotlight_predictor.config import ServerSettings
from pilotlight_predictor.frontends.grpc.server import reserve_port


def test_the_kernel_asks_after_clients_that_say_nothing() -> None:
    held = reserve_port(ServerSettings(host="127.0.0.1", grpc_port=0))
    assert held is not None
    with held.listening_socket() as listening:
        listening.listen()
        with socket.create_connection(("127.0.0.1", held.port), timeout=60), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

"""A port of this machine that leads to a port of a pod, through the API server, where no address can be reached.

ingress.py opens one when nothing else leads to a service. Each connection gets a websocket of its own, as kubectl's do,
and a thread that carries bytes both ways. In a websocket of the API the first byte of a message names its channel: 0 is
data, 1 tells errors, and the first message of either only repeats the number of the port.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import select
from typing import Any, Final, Self

from pilotlight.errors import PlatformError
from pilotlight.targets.kubernetes.connection import Connection

PIECE: Final = 65536
DATA: Final = b"\x00"
PROTOCOL: Final = "v4.channel.k8s.io"


class PortForward:
    """Listens from the moment it is made until `close`; connections that are open then are cut."""

    def __init__(self, connection: Connection, namespace: str, pod: str, port: int) -> None:
        self._connection = connection
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}"
        self._closed = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=f"forward {pod}:{port}", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def try_once(self) -> None:
        """Raises PlatformError where the API server will not carry anything: later nobody could be told."""
        with dialled(self._connection, self._path):
            return

    def close(self) -> None:
        self._closed.set()
        for held in (self._listener, *self._open):
            # Wakes whoever blocks on it; closing alone would not.
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                local, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(local,), name="forwarded connection", daemon=True).start()

    def _serve(self, local: socket.socket) -> None:
        self._open.add(local)
        with local:
            # A client whose connection ends without an answer reports it; there is nobody else to tell.
            with suppress(OSError, PlatformError), dialled(self._connection, self._path) as remote:
                carry(local, remote)
            self._open.discard(local)


@contextmanager
def dialled(connection: Connection, path: str) -> Iterator[Any]:
    """A websocket to the API server, with the credentials of the connection."""
    from kubernetes.stream import ws_client
    from websocket import WebSocketException

    made: Any = ws_client
    configuration = connection.api.configuration
    headers = {each["key"]: each["value"] for each in configuration.auth_settings().values() if each["value"]}
    headers["sec-websocket-protocol"] = PROTOCOL
    try:
        remote = made.create_websocket(configuration, made.get_websocket_url(configuration.host + path), headers)
    except WebSocketException as error:
        raise PlatformError(f"no port-forward to {path}: {error}") from error
    try:
        yield remote
    finally:
        # `close` would wait for an answer, and leaves the socket open where the other side has ended first.
        with suppress(OSError, WebSocketException):
            remote.send_close()
        remote.shutdown()


def carry(local: socket.socket, remote: Any) -> None:
    """Until either side ends. One thread for both ways: a TLS connection must not be read and written at once."""
    from websocket import WebSocketException

    begun: set[int] = set()
    while True:
        ready, _, _ = select([local, remote.sock], [], [])
        try:
            if local in ready:
                sent = local.recv(PIECE)
                if not sent:
                    return
                remote.send_binary(DATA + sent)
            if remote.sock in ready and not _deliver(local, remote, begun):
                return
        except WebSocketException:
            return


def _deliver(local: socket.socket, remote: Any, begun: set[int]) -> bool:
    """What has arrived, up to the last byte that TLS has decrypted already; False: the pod's side has ended."""
    from websocket import ABNF

    while True:
        opcode, frame = remote.recv_data_frame(True)
        if opcode == ABNF.OPCODE_CLOSE:
            return False
        if opcode == ABNF.OPCODE_BINARY and frame.data:
            channel, data = frame.data[0], frame.data[1:]
            if channel not in begun:
                begun.add(channel)
            elif channel != DATA[0]:
                return False
            else:
                local.sendall(data)
        if not getattr(remote.sock, "pending", lambda: 0)():
            return True

"""Port-forward from this machine to a pod through the API server; service_route.py uses it if no address is reachable.

Each connection has a websocket of its own, as with kubectl, and a thread that relays both directions. The first byte of
a websocket message is its channel: 0 is data, 1 errors; the first message of either only repeats the port number.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import select
from typing import Any, Final, Self

from pilotlight.errors import PlatformError
from pilotlight.targets.kubernetes.client import KubeConnection

PIECE: Final = 65536
DATA: Final = b"\x00"
PROTOCOL: Final = "v4.channel.k8s.io"


class PortForward:
    """Listens from its creation until `close`, which also closes open connections."""

    def __init__(self, connection: KubeConnection, namespace: str, pod: str, port: int) -> None:
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

    def check(self) -> None:
        """Open and close a websocket. Raises PlatformError; errors of later connections cannot be reported."""
        with open_websocket(self._connection, self._path):
            return

    def close(self) -> None:
        self._closed.set()
        for open_socket in (self._listener, *self._open):
            # Wakes the threads that block on it; close alone would not.
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
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
            # Not reported: the client sees that its connection ends without a response.
            with suppress(OSError, PlatformError), open_websocket(self._connection, self._path) as remote:
                relay(local, remote)
            self._open.discard(local)


@contextmanager
def open_websocket(connection: KubeConnection, path: str) -> Iterator[Any]:
    """Open a websocket to the API server, with the credentials of the connection."""
    from kubernetes.stream import ws_client
    from websocket import WebSocketException

    library: Any = ws_client
    configuration = connection.api.configuration
    headers = {each["key"]: each["value"] for each in configuration.auth_settings().values() if each["value"]}
    headers["sec-websocket-protocol"] = PROTOCOL
    try:
        remote = library.create_websocket(configuration, library.get_websocket_url(configuration.host + path), headers)
    except WebSocketException as error:
        raise PlatformError(f"no port-forward to {path}: {error}") from error
    try:
        yield remote
    finally:
        # `close` would wait for a reply, and leaves the socket open if the other side closed first.
        with suppress(OSError, WebSocketException):
            remote.send_close()
        remote.shutdown()


def relay(local: socket.socket, remote: Any) -> None:
    """Relay until either side ends. One thread: a TLS connection must not be read and written concurrently."""
    from websocket import WebSocketException

    started: set[int] = set()
    while True:
        ready, _, _ = select([local, remote.sock], [], [])
        try:
            if local in ready:
                sent = local.recv(PIECE)
                if not sent:
                    return
                remote.send_binary(DATA + sent)
            if remote.sock in ready and not _deliver(local, remote, started):
                return
        except WebSocketException:
            return


def _deliver(local: socket.socket, remote: Any, started: set[int]) -> bool:
    """Forward received data, including what TLS has already decrypted; False: the pod's side has ended."""
    from websocket import ABNF

    while True:
        opcode, frame = remote.recv_data_frame(True)
        if opcode == ABNF.OPCODE_CLOSE:
            return False
        if opcode == ABNF.OPCODE_BINARY and frame.data:
            channel, data = frame.data[0], frame.data[1:]
            if channel not in started:
                started.add(channel)
            elif channel != DATA[0]:
                return False
            else:
                local.sendall(data)
        if not getattr(remote.sock, "pending", lambda: 0)():
            return True

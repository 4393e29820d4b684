"""The pilot light's socket: one line of JSON in, one back, with file descriptors attached. Blocking."""

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pilotlight.wire import unix

BACKLOG: Final = 64
REQUEST_LIMIT: Final = 1 << 20  # an environment is a few kilobytes


def listen(path: Path) -> socket.socket:
    """Listen on a socket that only its owner can open; replace one that a dead process left behind."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError, FileNotFoundError):
        with unix.unix_address(path) as address:
            probe.connect(address)
        raise OSError(f"a pilot light serves {path} already")
    return unix.listen(path, BACKLOG)


def receive(connection: socket.socket, descriptors: list[int]) -> dict[str, Any]:
    """Read one line of JSON; append attached descriptors, which the caller closes, also after an error."""
    text = b""
    while not text.endswith(b"\n"):
        chunk, received, _, _ = socket.recv_fds(connection, 1 << 16, 4)
        descriptors += received
        text += chunk
        if not chunk or len(text) > REQUEST_LIMIT:
            raise ValueError(f"a request must be one line of JSON of at most {REQUEST_LIMIT} bytes")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("a request must be a JSON object")
    return document


def send(connection: socket.socket, document: dict[str, Any], descriptor: int | None = None) -> None:
    line = json.dumps(document).encode() + b"\n"
    socket.send_fds(connection, [line], [] if descriptor is None else [descriptor])

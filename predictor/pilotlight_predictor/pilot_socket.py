"""The pilot light's socket: one line of JSON in, one back, and descriptors beside them. Blocking, within a second."""

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pilotlight.wire import unix

BACKLOG: Final = 64
REQUEST_LIMIT: Final = 1 << 20  # an environment is a few kilobytes


def listen(path: Path) -> socket.socket:
    """A socket that only its owner can open; one that a dead process left behind is replaced."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError, FileNotFoundError):
        with unix.unix_address(path) as address:
            probe.connect(address)
        raise OSError(f"a pilot light serves {path} already")
    return unix.listen(path, BACKLOG)


def receive(connection: socket.socket, descriptors: list[int]) -> dict[str, Any]:
    """One line of JSON; descriptors that came with it are the caller's to close, whatever else happens."""
    text = b""
    while not text.endswith(b"\n"):
        piece, passed, _, _ = socket.recv_fds(connection, 1 << 16, 4)
        descriptors += passed
        text += piece
        if not piece or len(text) > REQUEST_LIMIT:
            raise ValueError(f"a request must be one line of JSON of at most {REQUEST_LIMIT} bytes")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("a request must be a JSON object")
    return document


def send(connection: socket.socket, document: dict[str, Any], descriptor: int | None = None) -> None:
    line = json.dumps(document).encode() + b"\n"
    socket.send_fds(connection, [line], [] if descriptor is None else [descriptor])

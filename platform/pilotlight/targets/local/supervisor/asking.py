"""One HTTP question to a replica, as lean as it gets: a cold start is asked after every few milliseconds."""

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any, Final, NamedTuple

Json = Any
MOST: Final = 16 << 20  # of an answer


class Answer(NamedTuple):
    """`status` 0: nobody answered within the time, or not in HTTP."""

    status: int
    body: bytes = b""

    @property
    def ok(self) -> bool:
        """As Kubernetes judges an HTTP probe."""
        return 200 <= self.status < 400

    def json(self) -> dict[str, Json]:
        with suppress(ValueError):
            document = json.loads(self.body)
            if isinstance(document, dict):
                return document
        return {}


async def ask(port: int, path: str, timeout_s: float, *, tell: bool = False, token: str = "") -> Answer:
    """On loopback; never raises. `tell`: something is to be done (POST), by who has the token."""
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    extra = f"{bearer}Content-Length: 0\r\n" if tell else bearer
    try:
        async with asyncio.timeout(timeout_s):
            return await get("127.0.0.1", port, path, method="POST" if tell else "GET", extra=extra)
    except (OSError, TimeoutError, ValueError):
        return Answer(0)


async def get(host: str, port: int, path: str, *, method: str = "GET", extra: str = "") -> Answer:
    """A connection of its own for each question, so that none outlives a replica that drains.

    Raises OSError when nobody is there, ValueError for what is no HTTP.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, (host, port))
        request = f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{extra}Connection: close\r\n\r\n"
        await loop.sock_sendall(connection, request.encode("latin-1"))
        answer = bytearray()
        while len(answer) < MOST and not _complete(answer):
            piece = await loop.sock_recv(connection, 65536)
            if not piece:
                break
            answer += piece
    return _parse(bytes(answer))


def _complete(answer: bytearray) -> bool:
    """Whether all of a body with a length is there; one without ends with its connection."""
    head, end, body = bytes(answer).partition(b"\r\n\r\n")
    _, named, rest = head.lower().partition(b"\r\ncontent-length:")
    return bool(end and named) and len(body) >= int(rest.split(b"\r\n", 1)[0])


def _parse(answer: bytes) -> Answer:
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1."):
        raise ValueError("no answer in HTTP")
    return Answer(int(head[9:12]), body)

"""Messages between supervisor and workers: frames of a JSON head and a body, over a socketpair.

worker → supervisor   joined, ready, leaving, listens (confirms an order); ask (forward to all), answer (response to do)
supervisor → worker   listen (accept from these sockets), do (run a request), answered (response to ask), stop, hurry
"""

import asyncio
import json
import struct
from typing import Any, Final, NamedTuple

_LENGTHS: Final = struct.Struct("!II")


class Frame(NamedTuple):
    head: dict[str, Any]
    body: bytes = b""

    @property
    def kind(self) -> str:
        return str(self.head["kind"])


class WorkerResponse(NamedTuple):
    """Complete HTTP response of a worker, independent of the transport."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed

    def frame(self, kind: str, number: int) -> Frame:
        head = {"status": self.status, "content_type": self.content_type, "headers": self.headers}
        return Frame({"kind": kind, "id": number, **head}, self.body)

    @classmethod
    def of(cls, frame: Frame) -> "WorkerResponse":
        head = frame.head
        return cls(head["status"], frame.body, head["content_type"], head["headers"])


def encode_frame(frame: Frame) -> bytes:
    head = json.dumps(frame.head).encode()
    return _LENGTHS.pack(len(head), len(frame.body)) + head + frame.body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Read one frame; None if the other side has closed."""
    try:
        head, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        return Frame(json.loads(await reader.readexactly(head)), await reader.readexactly(body))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

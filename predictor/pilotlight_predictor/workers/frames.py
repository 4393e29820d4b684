"""What parent and workers say to each other: frames of a JSON head and bytes, over a pair of connected sockets.

worker → parent   joined, ready, leaving, listens (as ordered); ask (all of you), answer (what I was told to do)
parent → worker   listen (to these sockets), do (this call), answered (what you asked), stop, hurry
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


class Answer(NamedTuple):
    """A reply as it travels: whole, and with no types of a transport."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed

    def frame(self, kind: str, number: int) -> Frame:
        told = {"status": self.status, "content_type": self.content_type, "headers": self.headers}
        return Frame({"kind": kind, "id": number, **told}, self.body)

    @classmethod
    def of(cls, frame: Frame) -> "Answer":
        head = frame.head
        return cls(head["status"], frame.body, head["content_type"], head["headers"])


def packed(frame: Frame) -> bytes:
    head = json.dumps(frame.head).encode()
    return _LENGTHS.pack(len(head), len(frame.body)) + head + frame.body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """None when the other side has gone."""
    try:
        head, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        return Frame(json.loads(await reader.readexactly(head)), await reader.readexactly(body))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

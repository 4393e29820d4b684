"""Many services asked at once, one connection each: who gets how many answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from bench.embedded.services import gateway_path
from bench.models import Payload


@dataclass(slots=True)
class Share:
    """What one service's connection got."""

    answers: int = 0
    errors: int = 0


def load(port: int, services: Sequence[str], payload: Payload, seconds: float) -> list[Share]:
    """All connections from one process, in turn: the load itself favours nobody."""
    return asyncio.run(_load(port, services, payload, seconds))


def fairness_index(counts: Sequence[int]) -> float:
    """Jain's: 1 when all got the same, 1/n when one got everything."""
    squares = len(counts) * sum(count * count for count in counts)
    return sum(counts) ** 2 / squares if squares else 0.0


def least_share(counts: Sequence[int]) -> float:
    """What the worst-off got, of what each would get if all got the same."""
    return min(counts) * len(counts) / sum(counts) if sum(counts) else 0.0


async def _load(port: int, services: Sequence[str], payload: Payload, seconds: float) -> list[Share]:
    end = monotonic() + seconds
    return await asyncio.gather(*(_ask_on(port, request_of(name, payload), end) for name in services))


def request_of(service: str, payload: Payload) -> bytes:
    headers = {"Host": "127.0.0.1", "Content-Length": str(len(payload.body)), **payload.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {gateway_path(service)} HTTP/1.1\r\n{head}\r\n".encode() + payload.body


async def _ask_on(port: int, request: bytes, end: float) -> Share:
    """The next request when the last one is answered, until the time is up; one at least."""
    share = Share()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while not share.answers + share.errors or monotonic() < end:
            writer.write(request)
            status = await _answer(reader)
            share.answers += status == 200
            share.errors += status != 200
    except (OSError, asyncio.IncompleteReadError, ValueError):
        share.errors += 1
    finally:
        writer.close()
    return share


async def _answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
    await reader.readexactly(length)
    return int(lines[0].split()[1])

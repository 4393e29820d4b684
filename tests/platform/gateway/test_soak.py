"""Many clients, replicas and tables at once, all of them unreliable: nothing is sent twice, mixed up or forgotten."""

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.bed import Bed, Origin, Reader, Seen, Writer, answer, backend, play, read_answer, route

ENDS = (ConnectionError, asyncio.IncompleteReadError)


class Chaos:
    """One run; everything random comes from its seed."""

    def __init__(self, bed: Bed, seed: int, each: int) -> None:
        self.bed = bed
        self.dice = random.Random(seed)
        self.each = each
        self.statuses: Counter[int] = Counter()
        self.received: Counter[str] = Counter()
        self.origins: list[Origin] = []

    async def reply(self, seen: Seen, reader: Reader, writer: Writer) -> None:
        name = seen.path.rpartition("/")[2]
        self.received[name] += 1
        deed = self.dice.random()
        if deed < 0.05:
            writer.close()  # dies at its work
        elif deed < 0.15:
            await asyncio.sleep(self.dice.random() * 0.01)
            await answer(writer, name.encode(), "Connection: close")
            writer.close()
        elif deed < 0.4:
            half = len(name) // 2
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % half + name[:half].encode())
            await asyncio.sleep(0)
            writer.write(b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(name) - half, name[half:].encode()))
        else:
            await answer(writer, name.encode())

    async def client(self, number: int) -> None:
        """Keeps its connection for as long as it holds; now and then it leaves in the middle."""
        reader = writer = None
        for turn in range(self.each):
            if reader is None or writer is None:
                reader, writer = await self.bed.connect()
            with suppress(*ENDS):
                if await self._ask(reader, writer, f"c{number}t{turn}"):
                    continue
            writer.close()
            reader = writer = None

    async def _ask(self, reader: Reader, writer: Writer, name: str) -> bool:
        """False: the connection is of no further use."""
        body = b"x" * self.dice.choice((0, 1, 1000, 300_000))
        chunked = self.dice.random() < 0.3
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked and body else b"0\r\n\r\n" if chunked else body
        raw = b"POST /iris/%b HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % (name.encode(), framing) + framed
        cut = self.dice.randrange(1, len(raw))
        writer.write(raw[:cut])
        await asyncio.sleep(0)
        if self.dice.random() < 0.05:
            return False
        writer.write(raw[cut:])
        if self.dice.random() < 0.05:
            return False
        answered = await read_answer(reader)
        self.statuses[answered.status] += 1
        assert answered.status in {200, 502}
        assert answered.status == 502 or answered.body == name.encode(), "somebody else's answer"
        return "connection" not in answered.headers

    async def tables(self) -> None:
        """Replicas come and go; now and then there is none, and requests wait."""
        while True:
            chosen = [origin for origin in self.origins if self.dice.random() < 0.6]
            limit = self.dice.choice((0, 1, 3))
            self.bed.publish(route("iris", backend("iris-1", *chosen, concurrency=limit)))
            await asyncio.sleep(self.dice.random() * 0.02)


@pytest.mark.parametrize(
    ("seed", "clients", "each"),
    [(1, 12, 25), (2, 12, 25), *(pytest.param(seed, 24, 200, marks=pytest.mark.long) for seed in range(3, 9))],
)
def test_whatever_happens_no_request_is_repeated_and_no_place_is_lost(seed: int, clients: int, each: int) -> None:
    async def case(bed: Bed) -> None:
        chaos = Chaos(bed, seed, each)
        chaos.origins = [await bed.origin(chaos.reply) for _ in range(3)]
        tables = asyncio.ensure_future(chaos.tables())
        await asyncio.gather(*(chaos.client(number) for number in range(clients)))
        tables.cancel()
        bed.publish(route("iris", backend("iris-1", *chaos.origins)))
        assert set(chaos.received.values()) == {1}, "a request reached replicas twice"
        assert chaos.statuses[200] > chaos.statuses[502]
        (live,) = bed.plane._backends.values()
        await eventually_async(lambda: live.counts.load == 0 and not live.waiting, "every place given back")
        assert [replica.in_flight for replica in live.replicas] == [0, 0, 0]
        assert (await bed.ask("GET", "/healthz")).status == 200

    play(case, limit_s=100)

"""Rows in which clients misbehave: they vanish, are slow, idle, greedy, or send what is no request."""

import asyncio
import gzip
import json
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from hypothesis import given
from tests.predictor.fuzzing import fuzz
from tests.predictor.protocols.v2.malformed import mutated, spliced
from tests.reliability.load import Connection, Load, infer_body
from tests.reliability.scenario import Scenario, descriptors, patience, rss_bytes
from tests.reliability.table import row

GROUP = "Clients that misbehave"
HEAD_S = 30.0  # within which the head of a request must have come
GROWTH = 32 << 20
PATH = "/slow/v2/models/slow/infer"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(run: Scenario, count: int, first: bytes = b"") -> list[Streams]:
    streams = []
    for _ in range(count):
        streams.append(await asyncio.open_connection("127.0.0.1", run.gateway_port))
        streams[-1][1].write(first)
    return streams


def head(length: int, extra: str = "") -> bytes:
    return f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{extra}\r\n".encode()


async def growth_bounded(run: Scenario, pid: int, before: tuple[int, int], name: str) -> None:
    """Expect that a process has the memory and the descriptors of before, but for connections that it keeps."""
    await run.until(lambda: descriptors(pid) <= before[1] + 16, f"descriptors of the {name} to be given back", 40)
    grown = rss_bytes(pid) - before[0]
    run.notes.append(f"{name}: {grown / 2**20:+.0f} MiB")
    run.expect(grown < GROWTH, f"the {name} grew by {grown / 2**20:.0f} MiB, expected less than {GROWTH >> 20}")


def measured(pid: int) -> tuple[int, int]:
    return rss_bytes(pid), descriptors(pid)


@row(GROUP, short=True)
async def clients_vanish(run: Scenario) -> None:
    """1,000 clients close their connection in the middle of a body.

    Others lose nothing; memory and descriptors of the gateway are given back.
    """
    await run.serve(least=1, most=1)
    (gateway,) = run.pids("gateway")
    async with Load(run.gateway_port, rate=20) as load:
        await asyncio.sleep(1.0)
        before = measured(gateway)
        for _ in range(10):
            for _, writer in await opened(run, 100, head(100_000) + b"x" * 1000):
                writer.close()
    await growth_bounded(run, gateway, before, "gateway")
    run.judge(load, back_s=5)


@row(GROUP)
async def slow_heads(run: Scenario) -> None:
    """1,000 connections send the head of a request at one byte in 5 s (slow loris).

    Each is closed with 408 after 30 s; others lose nothing.
    """
    await run.serve(least=1, most=1)
    (gateway,) = run.pids("gateway")
    async with Load(run.gateway_port, rate=10) as load:
        before, began = measured(gateway), time.monotonic()
        streams = await opened(run, 1000, b"P")
        reads = [asyncio.create_task(reader.read()) for reader, _ in streams]  # each until the gateway closes
        while time.monotonic() - began < HEAD_S * patience() + 10 and not all(read.done() for read in reads):
            await asyncio.sleep(5.0)
            for read, (_, writer) in zip(reads, streams, strict=True):
                if not read.done():
                    writer.write(b"O")
        seconds = time.monotonic() - began
        for _, writer in streams:
            writer.close()
        closed = [read.result() for read in reads if read.done() and not read.exception()]
        answers = Counter(answer[9:12] for answer in closed)
        run.notes.append(f"{sum(read.done() for read in reads)} closed within {seconds:.0f} s")
        run.expect(all(read.done() for read in reads), f"{len(closed)} of 1000 closed after {seconds:.0f} s")
        run.expect(answers[b"408"] >= 900, f"answers: {answers}")
    await growth_bounded(run, gateway, before, "gateway")
    run.judge(load, back_s=5)


@row(GROUP)
async def slow_bodies(run: Scenario) -> None:
    """500 connections send the body of a request at one byte in 2 s.

    Others lose nothing; memory and descriptors of the gateway are given back when they leave.
    """
    await run.serve(least=1, most=2)
    (gateway,) = run.pids("gateway")
    async with Load(run.gateway_port, rate=20) as load:
        before = measured(gateway)
        streams = await opened(run, 500, head(1000))
        for _ in range(10):
            await asyncio.sleep(2.0)
            for _, writer in streams:
                writer.write(b" ")
        for _, writer in streams:
            writer.close()
    await growth_bounded(run, gateway, before, "gateway")
    run.judge(load, back_s=5)


@row(GROUP)
async def idle_connections(run: Scenario) -> None:
    """2,000 connections are opened, get one response each, and stay idle.

    Others lose nothing; an idle connection costs the gateway at most 16 KiB.
    """
    await run.serve(least=1, most=1)
    (gateway,) = run.pids("gateway")
    async with Load(run.gateway_port, rate=20) as load:
        before = measured(gateway)
        connections = [Connection(run.gateway_port) for _ in range(2000)]
        for connection in connections:
            await connection.request("/healthz", method="GET")
        await asyncio.sleep(3.0)
        grown = rss_bytes(gateway) - before[0]
        run.expect(grown < 2000 * 16384, f"the gateway grew by {grown} bytes")
        for connection in connections:
            connection.close()
    await growth_bounded(run, gateway, before, "gateway")
    run.judge(load, back_s=5)


@row(GROUP)
async def large_answers(run: Scenario) -> None:
    """Three responses of 100 MB are read, and five clients never read theirs.

    The responses are correct, others lose nothing, and the gateway grows by less than 32 MiB.
    """
    folder = run.folder / "large"
    folder.mkdir()
    (folder / "model.py").write_text(
        'import numpy as np\nINPUTS = {"x": ("FP64", [1])}\nOUTPUTS = {"y": ("UINT8", [-1])}\n'
        "def predict(x):\n    return np.full(int(x[0]), 7, np.uint8)\n"
    )
    await run.serve(least=1, most=1)
    await run.serve(least=1, most=1, name="large", uri=str(folder))
    (gateway,) = run.pids("gateway")
    size = 100_000_000
    body = json.dumps({
        "inputs": [{"name": "x", "shape": [1], "datatype": "FP64", "data": [size]}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }).encode()  # fmt: skip
    path = "/large/v2/models/large/infer"
    async with Load(run.gateway_port, rate=10, timeout_s=60) as load:
        before = measured(gateway)
        for _ in range(3):
            status, _, data = await Connection(run.gateway_port).request(path, body)
            right = status == 200 and len(data) > size and data[-size:] == b"\7" * size
            run.expect(right, f"a large answer was {status} with {len(data)} bytes")
        del data
        streams = await opened(run, 5, head(len(body)).replace(b"slow", b"large") + body)
        for reader, _ in streams:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5.0)
        for _, writer in streams:
            writer.close()
    await growth_bounded(run, gateway, before, "gateway")
    run.judge(load, back_s=10)


@row(GROUP)
async def hostile_requests(run: Scenario) -> None:
    """Bodies one byte below and above the limit, a gzip bomb of 1 GB, a million chunks of one byte, 10,000 headers.

    413 or 400, never 5xx; gateway and replica grow by less than 32 MiB; others lose nothing.
    """
    limit = 1 << 20
    environment = f"      env: [{{name: INFERENCE_HTTP_MAX_INPUT_SIZE, value: '{limit}'}}]"
    await run.serve(least=1, most=1, model=environment)
    (gateway,), (replica,) = run.pids("gateway"), run.pids("replica")
    small = json.dumps(infer_body(0, 0.0)).encode()
    bomb = gzip.compress(bytes(1 << 30), 1)
    chunks = head(0, "Transfer-Encoding: chunked\r\n").replace(b"Content-Length: 0\r\n", b"")
    cases: dict[str, tuple[bytes, set[int]]] = {
        "a body of the limit": (head(limit) + small.ljust(limit), {200}),
        "a body beyond the limit": (head(limit + 1) + small.ljust(limit + 1), {413}),
        "a gzip bomb": (head(len(bomb), "Content-Encoding: gzip\r\n") + bomb, {413, 400}),
        "a million chunks": (chunks + b"1\r\n \r\n" * 1_000_000 + b"0\r\n\r\n", {413, 400}),
        "10,000 headers": (head(0, "".join(f"h{n}: v\r\n" for n in range(10_000))), {431, 400}),
    }
    async with Load(run.gateway_port, rate=20) as load:
        await asyncio.sleep(1.0)
        before = {gateway: measured(gateway), replica: measured(replica)}
        for name, (raw, expected) in cases.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", run.gateway_port)
            with suppress(OSError):
                writer.write(raw)
                await writer.drain()
            first = b""
            with suppress(OSError):
                first = await asyncio.wait_for(reader.readline(), 60)
            writer.close()
            status = int(first.split()[1]) if first else 0
            run.expect(status in expected, f"{name}: {status}, expected {' or '.join(map(str, expected))}")
    await growth_bounded(run, gateway, before[gateway], "gateway")
    await growth_bounded(run, replica, before[replica], "replica")
    run.judge(load, back_s=15)


@row(GROUP, short=True)
async def malformed_requests(run: Scenario) -> None:
    """10,000 malformed V2 requests: wrong shapes, types, names and JSON, and good ones with bytes exchanged.

    Never a 5xx, never a crash: 400, or a response if the request is valid.
    """
    folder = run.folder / "echo"
    folder.mkdir()
    (folder / "model.py").write_text(
        'INPUTS = {"x": ("FP64", [-1])}\nOUTPUTS = {"y": ("FP64", [-1])}\ndef predict(x):\n    return x\n'
    )
    await run.serve(least=1, most=1)
    await run.serve(least=1, most=1, name="echo", uri=str(folder))
    replicas, good, bodies = run.pids("replica"), infer_body(1, 0.0), []

    @fuzz(run.times(5000, 100), derandomize=False)
    @given(mutated([good]), spliced([json.dumps(good).encode()]))
    def collect(document: Any, text: bytes) -> None:
        bodies.extend([json.dumps(document).encode(), text])

    collect()
    statuses, connection = Counter[int](), Connection(run.gateway_port)
    async with Load(run.gateway_port, rate=10) as load:
        for body in bodies:
            status, _, answer = await connection.request("/echo/v2/models/echo/infer", body)
            statuses[status] += 1
            expired = status == 503 and b"timeout expired" in answer  # a request may ask for a deadline of 1 µs
            run.expect(status < 500 or expired, f"{status} {answer[:100]!r} to {body[:200]!r}")
    run.judge(load, back_s=5)
    run.notes.append(f"{len(bodies)} requests: {dict(statuses)}")
    run.expect(run.pids("replica") == replicas, "a replica was replaced")

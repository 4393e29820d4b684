"""Load at a bounded rate whose every answer is checked.

Each request carries a number of its own, and the right answer is twice that number plus one. The model appends each
number that it executes to a file, so that a request which was executed twice shows there.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Self

NUMBERS = itertools.count(1)
HEAD_BYTES = 1 << 22
MAX_IDLE = 4  # connections kept by a client: more would be counted as growth of the server


@dataclass
class Counts:
    """What became of requests, as their client saw it.

    `refused` has an HTTP status that is not 200, `reset` a connection that ended before the answer, `lost` no
    connection or no answer in time.
    """

    sent: int = 0
    right: int = 0
    wrong: int = 0
    refused: int = 0
    reset: int = 0
    lost: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def failed(self) -> int:
        return self.wrong + self.refused + self.reset + self.lost


def infer_body(number: int, work_s: float) -> dict[str, Any]:
    data = [float(number), work_s]
    return {"id": str(number), "inputs": [{"name": "x", "shape": [2], "datatype": "FP64", "data": data}]}


class Connection:
    """One HTTP/1.1 connection to 127.0.0.1, opened with its first request."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def usable(self) -> bool:
        if self._streams is None:
            return False
        reader, writer = self._streams
        return not (reader.at_eof() or reader.exception() or writer.is_closing())

    async def request(self, path: str, body: bytes = b"", method: str = "POST") -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body. Raise OSError or IncompleteReadError if the connection fails."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port, limit=HEAD_BYTES)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        status = 100
        while status < 200:  # a slow answer may have 100 Continue ahead of it
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
            status = int(first.split()[1])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, data

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


@dataclass
class Load:
    """Requests to one service while the `async with` block runs; left when the last one has ended.

    `answers` counts the revisions that answered, `statuses` the HTTP statuses that were refusals.
    """

    port: int
    name: str = "slow"
    rate: float = 40.0
    work_s: float = 0.005
    timeout_s: float = 40.0
    prefix: str = ""  # path before /v2; the service's name unless given
    counts: Counts = field(default_factory=Counts)
    answers: Counter[int] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    longest_gap_s: float = 0.0
    allowed: int = 0  # requests that the injected faults may have cost

    def __post_init__(self) -> None:
        self._idle: list[Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self._last_right = time.monotonic()

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    def fault(self) -> None:
        """Note that a process dies now: what is in flight may fail, and one that is just being sent."""
        self.allowed += self.in_flight + 1

    async def __aenter__(self) -> Self:
        self._last_right = time.monotonic()
        self._sender = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        await self._sender
        while self._tasks:
            await asyncio.wait(self._tasks)
        for connection in self._idle:
            connection.close()

    async def _send(self) -> None:
        due = time.monotonic()
        while not self._ending:
            task = asyncio.create_task(self._one())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            due = max(due + 1 / self.rate, time.monotonic() - 1.0)  # a pause of the machine is not made up for
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - self._last_right)

    async def _one(self) -> None:
        number, began = next(NUMBERS), time.monotonic()
        self.counts.sent += 1
        try:
            async with asyncio.timeout(self.timeout_s):
                status, answer = await self._exchange(number)
        except TimeoutError:
            self.counts.lost += 1
            self.notes.append(f"no answer within {self.timeout_s:g} s")
        except ConnectionRefusedError:
            self.counts.lost += 1
            self.notes.append("connection refused")
        except (OSError, EOFError) as error:
            self.counts.reset += 1
            self.notes.append(f"{type(error).__name__}: {error}")
        else:
            self._judge(number, status, answer)
        now = time.monotonic()
        self.slowest_s = max(self.slowest_s, now - began)

    async def _exchange(self, number: int) -> tuple[int, Any]:
        """Return the HTTP status and the output, or the text of a refusal."""
        connection = self._connection()
        path = f"{self.prefix or '/' + self.name}/v2/models/{self.name}/infer"
        try:
            status, _, data = await connection.request(path, json.dumps(infer_body(number, self.work_s)).encode())
        except BaseException:
            connection.close()
            raise
        if connection.usable and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return status, output_of(data) if status == 200 else data.decode(errors="replace")

    def _connection(self) -> Connection:
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
            connection.close()
        return Connection(self.port)

    def _judge(self, number: int, status: int, answer: Any) -> None:
        if status != 200:
            self.counts.refused += 1
            self.statuses[status] += 1
            self.notes.append(f"{status} {answer}")
        elif isinstance(answer, list) and answer[0] == 2 * number + 1:
            self.counts.right += 1
            self.answers[int(answer[1])] += 1
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self._last_right)
            self._last_right = now
        else:
            self.counts.wrong += 1
            self.notes.append(f"wrong: {number} -> {answer}")

    def reasons(self) -> Iterator[str]:
        """The most frequent failures, each with its count."""
        for text, count in Counter(note[:160] for note in self.notes).most_common(3):
            yield f"{count} × {text}"


def output_of(data: bytes) -> Any:
    with suppress(ValueError, KeyError, IndexError, TypeError):
        return json.loads(data)["outputs"][0]["data"]
    return data


class RpcLoad(Load):
    """The same over gRPC; `port` is the service's own. Calls wait for the channel, as the documentation advises."""

    async def __aenter__(self) -> Self:
        import tritonclient.grpc.aio as client

        self._client = client.InferenceServerClient(f"127.0.0.1:{self.port}")
        return await super().__aenter__()

    async def __aexit__(self, *event: object) -> None:
        await super().__aexit__(*event)
        await self._client.close()

    async def _exchange(self, number: int) -> tuple[int, Any]:
        import grpc
        import numpy as np
        from tritonclient.grpc import InferInput, service_pb2

        tensor = InferInput("x", [2], "FP64")
        tensor.set_data_from_numpy(np.array([number, self.work_s]))
        request = service_pb2.ModelInferRequest(model_name=self.name, inputs=[tensor._get_tensor()])
        request.raw_input_contents.append(tensor._get_content())
        try:
            reply = await self._client._client_stub.ModelInfer(request, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise ConnectionResetError(error.details()) from None
            return 500, f"{error.code().name}: {error.details()}"
        return 200, list(np.frombuffer(reply.raw_output_contents[0]))

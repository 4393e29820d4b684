"""Attacks on framing and time through the gateway and against the predictor, with a victim beside them: smuggled
requests, half requests, and floods of HTTP/2 frames."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.onnx_models import write_identity
from tests.platform.gateway.bed import Bed, backend, play, read_answer, route
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.security.http2_client import HEAD, Http2Client, header
from tests.serving import RunningServer

from pilotlight.wire.http2 import frames

pytestmark = pytest.mark.security
POST = b"POST /iris/v2/models/iris/infer HTTP/1.1\r\nHost: localhost\r\n"
HIDDEN = b"GET /iris/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
REFUSED = {
    "CL.TE": POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "TE.CL": POST + CHUNKED + b"Content-Length: 3\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked, identity": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "coding twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "blank before colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "tab before colon": POST + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "folded": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 50\r\n\r\n{}",
    "length list": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "length +2": POST + b"Content-Length: +2\r\n\r\n{}",
    "length -1": POST + b"Content-Length: -1\r\n\r\n{}",
    "length 0x2": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "length 1_0": POST + b"Content-Length: 1_0\r\n\r\n{}",
    "length in Arabic digits": POST + "Content-Length: ٢\r\n\r\n{}".encode(),
    "length 2^64": POST + b"Content-Length: 18446744073709551618\r\n\r\n{}",
    "bare LF": (POST + b"\r\n").replace(b"\r\n", b"\n"),
    "one bare LF": POST + b"X-A: 1\nContent-Length: 2\r\n\r\n{}",
    "bare CR": POST + b"X-A: 1\rContent-Length: 2\r\n\r\n{}",
    "NUL": POST + b"X-A: \0\r\n\r\n",
    "chunk size 0x2": POST + CHUNKED + b"\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "chunk size -2": POST + CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n",
    "chunk size 0_2": POST + CHUNKED + b"\r\n0_2\r\n{}\r\n0\r\n\r\n",
    "chunk size with blanks": POST + CHUNKED + b"\r\n 2\r\n{}\r\n0\r\n\r\n",
    "chunk size overflow": POST + CHUNKED + b"\r\nffffffffffffffff2\r\n{}\r\n0\r\n\r\n",
    "LF in a chunk extension": POST + CHUNKED + b"\r\n2;a\nb\r\n{}\r\n0\r\n\r\n",
}
READ_ALIKE = {
    "underscore": POST + b"Transfer_Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    "Connection: content-length": POST + b"Connection: content-length\r\nContent-Length: 2\r\n\r\n{}",
    "Connection: transfer-encoding": POST
    + b"Connection: transfer-encoding\r\n"
    + CHUNKED
    + b"\r\n2\r\n{}\r\n0\r\n\r\n",
    "Connection: host": POST + b"Connection: host\r\nContent-Length: 2\r\n\r\n{}",
    "chunk extension": POST + CHUNKED + b"\r\n2;a=b\r\n{}\r\n0\r\n\r\n",
    "trailer with a length": POST + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n",
    "tiny chunks": POST + CHUNKED + b"\r\n" + b"1\r\n{\r\n01;x\r\n}\r\n" + b"0\r\n\r\n",
}


@pytest.fixture(scope="module")
def server(serve_module: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    folder: Path = tmp_path_factory.mktemp("models")
    write_identity(folder, "iris", "FP32")
    return serve_module(folder, "--grpc-port", "0")


def test_no_request_hides_in_another_on_its_way_through_the_gateway(server: RunningServer) -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", server.port)))
        wrong: list[str] = []
        served, attacked = 0, False

        async def victim() -> None:
            nonlocal served
            while not attacked:
                answer = await bed.ask("GET", "/iris/v2/models/iris")
                if answer.status != 200 or answer.json()["name"] != "iris":
                    wrong.append(str(answer))
                served += 1

        beside = asyncio.ensure_future(victim())
        for name, raw in {**REFUSED, **READ_ALIKE}.items():
            reader, writer = await bed.connect()
            writer.write(raw + HIDDEN)
            first = await asyncio.wait_for(read_answer(reader), 20)
            rest = b"" if name in REFUSED else await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            if name in REFUSED:
                assert first.status in {400, 501}, name
                assert await asyncio.wait_for(reader.read(), 20) == b"", f"{name}: the connection is closed"
            else:  # `{}` is no inference, and the second request is read as one of its own
                assert (first.status, rest.startswith(b"HTTP/1.1 404 ")) == (400, True), name
            writer.close()
        attacked = True
        await beside
        assert not wrong
        assert served > 10

    play(case)


def test_half_requests_are_no_errors_of_the_replica_and_the_victim_is_served(server: RunningServer) -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", server.port), timeout_s=1.0))
        halves = [await bed.connect() for _ in range(40)]
        for _, writer in halves:
            writer.write(POST + b"Content-Length: 4000\r\n\r\n{")
        for _ in range(20):
            assert (await bed.ask("GET", "/iris/v2/models/iris")).status == 200
        for reader, _ in halves:
            assert (await asyncio.wait_for(read_answer(reader), 20)).status == 408
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.requests, report.errors, report.in_flight) == (20, 0, 0)
        assert not bed.unreachable

    play(case)


def test_a_million_tiny_chunks_cost_the_gateway_little(server: RunningServer) -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", server.port)))
        reader, writer = await bed.connect()
        before = time.process_time()
        writer.write(POST + CHUNKED + b"\r\n" + b"1\r\n \r\n" * 1_000_000 + b"0\r\n\r\n")
        assert (await asyncio.wait_for(read_answer(reader), 60)).status == 400
        assert time.process_time() - before < 1.2  # of both ends: the client of this test is in it

    play(case)


def opened(block: bytes) -> Iterator[bytes]:
    return (frames.frame(frames.HEADERS, frames.END_HEADERS, number, block) for number in range(1, 60_000, 2))


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "PING": lambda: iter([frames.frame(frames.PING, 0, 0, bytes(8)) * 1000] * 20),
    "SETTINGS": lambda: iter([frames.settings({}) * 1000] * 20),
    "SETTINGS of many parameters": lambda: iter(
        [frames.frame(frames.SETTINGS, 0, 0, struct.pack(">HI", 4, 65535) * 2700)] * 2000
    ),
    "PRIORITY": lambda: iter([frames.frame(frames.PRIORITY, 0, 1, bytes(5)) * 1000] * 20),
    "empty DATA": lambda: iter([next(opened(HEAD)), *[frames.frame(frames.DATA, 0, 1) * 1000] * 20]),
    "WINDOW_UPDATE by one": lambda: iter([frames.window_update(0, 1) * 1000] * 20),
    "window overflow": lambda: iter([frames.window_update(0, frames.UINT31_MAX) * 3]),
    "unknown frames": lambda: iter([frames.frame(32, 0, 0, b"x") * 1000] * 20),
    "rapid reset": lambda: (each + frames.rst_stream(1 + 2 * at, 8) for at, each in enumerate(opened(HEAD))),
    "MadeYouReset": lambda: (each + frames.window_update(1 + 2 * at, 0) for at, each in enumerate(opened(HEAD))),
    "CONTINUATION": lambda: iter(
        [
            frames.frame(frames.HEADERS, 0, 1, HEAD),
            *[frames.frame(frames.CONTINUATION, 0, 1, header("x", "y" * 1000))] * 200,
        ]
    ),
    "empty CONTINUATION": lambda: iter(
        [frames.frame(frames.HEADERS, 0, 1, HEAD), *[frames.frame(frames.CONTINUATION, 0, 1) * 1000] * 20]
    ),
    "16 MB frame": lambda: iter([b"\xff\xff\xff\x01\x04\0\0\0\1"]),
    "bad Huffman": lambda: opened(b"\x83\x86\x00\x81\xff\xff\xff" + b"\xff" * 1000),
    "integer overflow": lambda: opened(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
    "even stream": lambda: iter([frames.frame(frames.HEADERS, frames.END_HEADERS, 2, HEAD)]),
    "PUSH_PROMISE": lambda: iter([frames.frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2" + HEAD)]),
    "many fields": lambda: opened(HEAD + b"\x82" * 3900),
    "fields without end": lambda: opened(HEAD + b"\x82" * 16_000),
    "table churn": lambda: opened(
        HEAD + b"".join(b"\x40\x02%c%c\x03yyy" % (97 + i // 26, 97 + i % 26) for i in range(300))
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_frames_ends_its_connection_and_nothing_else(server: RunningServer, flood: str) -> None:
    idle = server.rss_bytes()
    with Http2Client(grpc_address(server)) as client:
        client.socket.settimeout(10)
        received, ended = b"", False
        try:
            for part in FLOODS[flood]():
                client.socket.sendall(part)
            client.socket.shutdown(socket.SHUT_WR)
            received = client.read_until(b"no such text")
        except (BrokenPipeError, ConnectionResetError):
            ended = True
    assert ended or any(kind == frames.GOAWAY for kind in kinds(received))
    assert server.get("/v2/health/live").status == 200
    assert server.rss_bytes() - idle < 16 << 20


def kinds(data: bytes) -> Iterator[int]:
    at = 0
    while at + frames.HEAD_LENGTH <= len(data):
        word, _, _ = frames.HEAD.unpack_from(data, at)
        yield word & 0xFF
        at += frames.HEAD_LENGTH + (word >> 8)

"""h2spec against the gRPC port: whatever it sends, the port answers as RFC 9113 says, or as the tables below explain.

h2spec sends plain GET and POST requests, which the port refuses before their bodies come. So it also plays against the
same connection with each request taken for a gRPC call, where nothing is refused early.
"""

import asyncio
from pathlib import Path

import pytest
from tests.conftest import Serve
from tests.judges.gomodules import Unavailable
from tests.judges.h2spec import Case, failures, h2spec
from tests.onnx_models import write_identity
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.predictor.frontends.grpc.connection_harness import House

from pilotlight.wire.http2.hpack import HeaderField
from pilotlight_predictor.frontends.grpc.connection import GrpcConnection
from pilotlight_predictor.frontends.grpc.headers import CallHead

pytestmark = [pytest.mark.security, pytest.mark.long]

NO_BODY = "h2spec waits for DATA; an error of gRPC is a header block alone"
AT_ONCE = "each request is answered before the next is read, so that never so many are open"
NO_PRIORITY = "RFC 9113, 5.3: priority is deprecated and ignored"
EARLY = "h2spec sends no gRPC call: it is refused, and its stream reset, before the frame in question comes"
ALWAYS: dict[Case, str] = {
    ("generic/2", "Sends a WINDOW_UPDATE frame on half-closed (remote) stream"): NO_BODY,
    ("generic/2", "Sends a PRIORITY frame on half-closed (remote) stream"): NO_BODY,
    ("3.5", "Sends invalid connection preface"): "a client of HTTP/1 is told in HTTP/1 what the port speaks",
    ("4.2", "Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE"): (
        "h2spec sends 20 KB, and the port's SETTINGS_MAX_FRAME_SIZE is 256 KiB"
    ),
    ("5.1.2", "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded"): AT_ONCE,
    ("5.3.1", "Sends HEADERS frame that depend on itself"): NO_PRIORITY,
    ("5.3.1", "Sends PRIORITY frame that depend on itself"): NO_PRIORITY,
}
REFUSED_EARLY: dict[Case, str] = dict.fromkeys(
    [
        ("5.1", "closed: Sends a DATA frame after sending RST_STREAM frame"),
        ("5.1", "closed: Sends a HEADERS frame after sending RST_STREAM frame"),
        ("6.9", "Sends a WINDOW_UPDATE frame with a flow control window increment of 0 on a stream"),
        ("6.9.1", "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream"),
        ("8.1", "Sends a second HEADERS frame without the END_STREAM flag"),
        ("8.1.2.1", "Sends a HEADERS frame that contains a pseudo-header field as trailers"),
        (
            "8.1.2.6",
            'Sends a HEADERS frame with the "content-length" header field which does not equal the DATA frame payload'
            " length",
        ),
        (
            "8.1.2.6",
            'Sends a HEADERS frame with the "content-length" header field which does not equal the sum of the multiple'
            " DATA frames payload length",
        ),
    ],
    EARLY,
)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    try:
        h2spec()
    except Unavailable as reason:
        pytest.skip(str(reason))


class AnyRequest(GrpcConnection):
    """Takes every well-formed request for a call of `/t.S/Ask`."""

    def parse_head(self, fields: list[HeaderField], whole: bool) -> CallHead:
        call = {":method": "POST", ":path": "/t.S/Ask"}
        fields = [(name, call.get(name, value) if value else value) for name, value in fields]
        return super().parse_head([*fields, ("content-type", "application/grpc")], whole)


def test_the_connection_conforms() -> None:
    async def play() -> dict[Case, str]:
        house, loop = House(), asyncio.get_running_loop()
        async with await loop.create_server(lambda: AnyRequest(house.desk, 1 << 20), "127.0.0.1", 0) as server:
            found = await asyncio.to_thread(failures, server.sockets[0].getsockname()[1])
            server.close()
            for connection in list(house.desk.connections):
                connection.close()
        return found

    found = asyncio.run(play())
    assert found.keys() == ALWAYS.keys(), found


def test_the_grpc_port_conforms(serve_module: Serve, tmp_path: Path) -> None:
    write_identity(tmp_path, "identity", "FP32")
    server = serve_module(tmp_path, "--grpc-port", "0")
    port = int(grpc_address(server).rpartition(":")[2])
    found = failures(port, "/inference.GRPCInferenceService/ServerLive")
    assert found.keys() == (ALWAYS | REFUSED_EARLY).keys(), found
    assert server.get("/v2/health/live").status == 200
    assert not [line for line in server.log() if line.get("level") == "ERROR"]

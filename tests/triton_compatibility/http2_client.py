"""A gRPC client that writes its own HTTP/2 frames, for what grpcio hides: pings, GOAWAY and the encoding of responses.

`http2` of a case has the steps of one connection: `pings` [count, pause in seconds], `stream` (a call that stays
open), `listen` (seconds, `silent`: without acknowledging pings), or `accept`, the value of grpc-accept-encoding of one
ModelInfer.
"""

import struct
import time
from typing import Any

from google.protobuf.json_format import ParseDict
from tests.predictor.frontends.grpc.server.raw import Raw
from tritonclient.grpc import service_pb2

from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.hpack import Decoder, literal

SERVICE = "/inference.GRPCInferenceService"
HEADERS = ((":method", "POST"), (":scheme", "http"), (":authority", "localhost"), ("content-type", "application/grpc"))


def play_http2(steps: dict[str, Any], port: int) -> dict[str, Any]:
    client = Raw(f"127.0.0.1:{port}")
    try:
        return _encoding(client, steps) if "accept" in steps else _pings(client, steps)
    finally:
        client.socket.close()


def _pings(client: Raw, steps: dict[str, Any]) -> dict[str, Any]:
    """Return GOAWAY with its text, CLOSED, PINGED with the number of pings, or OK."""
    if steps.get("stream"):
        client.say(_head(1, "ModelStreamInfer"))
        _events(client, 0.3, silent=False)
    count, pause = steps.get("pings", (0, 0))
    pings, silent = 0, bool(steps.get("silent"))
    for seconds in [*[pause] * count, steps.get("listen", 0.5)]:
        if count:
            client.say(frames.frame(frames.PING, 0, 0, bytes(8)))
        for event in _events(client, seconds, silent=silent):
            if event != "ping":
                return {"status": event.partition(": ")[0], "error": event.partition(": ")[2]}
            pings += 1
    return {"status": f"PINGED {pings}" if pings else "OK"}


def _events(client: Raw, seconds: float, *, silent: bool) -> list[str]:
    """Return what the server does in this time: `ping`, `CLOSED`, or `GOAWAY` with its code and text."""
    events, deadline = list[str](), time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        client.socket.settimeout(left)
        try:
            kind, flags, payload = _next(client)
        except TimeoutError:
            break
        except (AssertionError, ConnectionError):
            return [*events, "CLOSED: "]
        if kind == frames.GOAWAY:
            return [*events, f"GOAWAY {int.from_bytes(payload[4:8], 'big')}: {payload[8:].decode()}"]
        if kind == frames.PING and not flags & frames.ACK:
            events.append("ping")
            if not silent:
                client.say(frames.frame(frames.PING, frames.ACK, 0, payload))
    return events


def _encoding(client: Raw, steps: dict[str, Any]) -> dict[str, Any]:
    """Return the grpc-encoding of a response and whether its message is compressed."""
    request = ParseDict(steps["infer"], service_pb2.ModelInferRequest()).SerializeToString()
    path = "ModelStreamInfer" if steps.get("stream") else "ModelInfer"
    accepted = [("grpc-accept-encoding", steps["accept"])] if steps["accept"] else []
    message = struct.pack(">BI", 0, len(request)) + request
    client.say(_head(1, path, *accepted), frames.frame(frames.DATA, frames.END_STREAM, 1, message))
    headers = dict[str, str]()
    decoder = Decoder(1 << 16)
    while True:
        kind, flags, payload = _next(client)
        if kind == frames.HEADERS:
            headers |= dict(decoder.fields(frames.header_block(flags, payload))[0])
        if kind == frames.DATA or (kind == frames.HEADERS and flags & frames.END_STREAM):
            found = {"encoding": headers.get("grpc-encoding", "identity"), "compressed": payload[0] == 1}
            return {"status": "OK", "body": found}


def _head(number: int, method: str, *more: tuple[str, str]) -> bytes:
    fields = (*HEADERS, (":path", f"{SERVICE}/{method}"), ("te", "trailers"), *more)
    ordered = sorted(fields, key=lambda field: not field[0].startswith(":"))
    block = b"".join(literal(*field) for field in ordered)
    return frames.frame(frames.HEADERS, frames.END_HEADERS, number, block)


def _next(client: Raw) -> tuple[int, int, bytes]:
    kind, flags, _, payload = client._frame()
    return kind, flags, payload

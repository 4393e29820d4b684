"""Thousands of malformed requests against the running server: no 5xx that is not meant, no hang, no growth.

Each test ends with a good request. The long variants run the same properties over many more cases and fresh seeds.
"""

import json
import re
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.predictor.fuzzing import fuzz
from tests.predictor.protocols.v2.malformed import (  # fmt: skip
    BASES,
    BLOBS,
    GOOD,
    LENGTHS,
    LOADS,
    NAMES,
    SEGMENTS,
    SIZES,
    TENSORS,
    TEXTS,
    VALUES,
    WIRE,
    mutated,
    spliced,
)
from tests.serving import RunningServer, binary_body, read_answer, rendered

MIB = 1 << 20
EXPECTED = {200, 400, 401, 403, 404, 405, 413, 417, 429, 431, 501}
MODELS = ["identity_fp32", "identity_bytes", "identity_bool", "identity_int64", "matrix", "scalar", "add_sub", "echo"]


@pytest.fixture(scope="module")
def target(zoo: Path, serve_module: Callable[..., RunningServer]) -> Iterator[RunningServer]:
    server = serve_module(zoo, "--model-control-mode", "explicit", "--load-model=*", "--allow-inline-files")
    for _ in range(300):  # what a server keeps for good is there after this
        assert server.infer("identity_fp32", GOOD, full=True).status == 200
        assert server.infer("identity_fp32", b"{").status == 400
    before = server.rss_bytes()
    yield server
    assert server.rss_bytes() - before < 32 * MIB
    assert server.process.poll() is None


@pytest.fixture(autouse=True)
def _still_serving(target: RunningServer) -> Iterator[None]:
    yield
    assert target.infer("identity_fp32", GOOD).json()["outputs"][0]["data"] == [1, 2]
    unexpected = [line for line in target.log() if line["level"] == "ERROR" and "failed to load" not in line["message"]]
    assert not unexpected


def check(server: RunningServer, raw: bytes, method: str = "POST") -> None:
    """A well-framed request gets an answer that is its sender's fault, or none's."""
    with server.connect() as connection:
        connection.sendall(raw)
        answer = read_answer(connection, method)
    timed_out = answer.status == 503 and "Request timeout expired" in answer.error  # a client may ask for 1 µs
    assert answer.status in EXPECTED or timed_out, (answer, raw[:2000])
    if answer.status >= 400 and method != "HEAD":
        assert answer.error, raw[:2000]


MODEL = st.sampled_from(MODELS)
FULL = st.booleans()


def documents(target: RunningServer, model: str, document: Any, full: bool) -> None:
    raw = json.dumps(document).encode()
    check(target, rendered("POST", f"/v2/models/{model}/infer", raw, None, target.address, chunked=full))


def texts(target: RunningServer, model: str, text: bytes, full: bool) -> None:
    check(target, rendered("POST", f"/v2/models/{model}/infer", text, None, target.address, chunked=full))


def binaries(
    target: RunningServer, model: str, tensor: dict[str, Any], size: Any, blob: bytes, length: str | None
) -> None:
    tensor["parameters"] = {"binary_data_size": size}
    body, headers = binary_body({"inputs": [tensor], "parameters": {"binary_data_output": True}}, blob)
    if length is not None:
        headers["Inference-Header-Content-Length"] = length
    check(target, rendered("POST", f"/v2/models/{model}/infer", body, headers, target.address))


def headed(target: RunningServer, model: str, headers: dict[str, str], full: bool) -> None:
    raw = rendered("POST", f"/v2/models/{model}/infer", GOOD, headers, target.address, chunked=full)
    check(
        target,
        raw.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n", 1) if "Connection" not in headers else raw,
    )


def paths(target: RunningServer, method: str, segments: list[str], encode: bool) -> None:
    path = "/" + "/".join(quote(segment, safe="" if encode else "%;:@&=+$,") for segment in segments)
    check(target, rendered(method, path, b"{}" if method == "POST" else b"", None, target.address), method)


def repository_calls(target: RunningServer, verb: str, name: str, document: Any) -> None:
    path = "/v2/repository/index" if verb == "index" else f"/v2/repository/models/{quote(name, safe='')}/{verb}"
    check(target, rendered("POST", path, document, None, target.address))


def wires(target: RunningServer, raw: bytes) -> None:
    """Bytes that need not be HTTP: no 5xx comes back, and the server closes when its client does."""
    with target.connect() as connection:
        connection.sendall(raw)
        select.select([connection], [], [], 0.01)
        received = b""
        with suppress(ConnectionError):
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                received += piece
    assert not received or received.startswith(b"HTTP/"), received[:200]
    statuses = {int(status) for status in re.findall(rb"^HTTP/[01]\.[0-9] (\d+) ", received, re.MULTILINE)}
    assert statuses <= EXPECTED | {100}, (received[:300], raw)


DOCUMENTS = {"model": MODEL, "document": mutated(BASES), "full": FULL}
SPLICED = {"model": MODEL, "text": spliced(TEXTS), "full": FULL}
BINARIES = {"model": MODEL, "tensor": TENSORS, "size": SIZES, "blob": BLOBS, "length": st.none() | LENGTHS}
HEADERS = {"model": MODEL, "headers": st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), "full": FULL}
PATHS = {
    "method": st.sampled_from(["GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE"]),
    "segments": st.lists(SEGMENTS, max_size=7),
    "encode": st.booleans(),
}
CALLS = {
    "verb": st.sampled_from(["load", "unload", "index"]),
    "name": st.sampled_from(["scalar", "sent", "..", "a/b"]) | st.text(min_size=1, max_size=5),
    "document": mutated(LOADS),
}
BYTES = {"raw": st.binary(max_size=200) | spliced(WIRE)}
PROPERTIES: list[tuple[Callable[..., None], dict[str, Any], int]] = [
    (documents, DOCUMENTS, 800),
    (texts, SPLICED, 600),
    (binaries, BINARIES, 800),
    (headed, HEADERS, 500),
    (paths, PATHS, 500),
    (wires, BYTES, 500),
    (repository_calls, CALLS, 80),
]
NAMED = [pytest.param(*row, id=row[0].__name__) for row in PROPERTIES]


@pytest.mark.parametrize(("holds", "drawn", "examples"), NAMED)
def test_nothing_malformed_is_our_mistake(
    target: RunningServer, holds: Callable[..., None], drawn: dict[str, Any], examples: int
) -> None:
    fuzz(examples)(given(**drawn)(lambda **case: holds(target, **case)))()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("holds", "drawn", "examples"), NAMED)
def test_nothing_malformed_is_our_mistake_in_many_more_cases(
    target: RunningServer, holds: Callable[..., None], drawn: dict[str, Any], examples: int
) -> None:
    fuzz(50 * examples, derandomize=False)(given(**drawn)(lambda **case: holds(target, **case)))()

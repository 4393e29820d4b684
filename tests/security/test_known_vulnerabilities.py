"""Inputs of known vulnerabilities of Triton, KServe, vLLM, TorchServe, BentoML and aiohttp, replayed: none works.

Each row has the ids, what the attack was and the function that plays it, against a running predictor and, where it is
about HTTP, through a gateway too. After each the server is the one that it was: it lives, has not grown, has logged no
error and has not worked for long. Ids are those of CVE and of GitHub's advisories, as those describe them; attacks
without an id are named by the issue of their project. Those that have nothing to meet here are in NO_COUNTERPART.
"""

import asyncio
import base64
import gzip
import io
import json
import os
import pickle
import queue
import re
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from tests.conftest import Serve
from tests.onnx_models import write_identity, write_python
from tests.platform.gateway.linked import linked
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.security.models import CHAT, CHAT_CONFIG
from tests.serving import ROOT, Answer, RunningServer, json_tensor, read_answer, rendered

from pilotlight.gateway.routing_table import Backend, Replica, Route
from pilotlight.microservices.media import Limits, MediaRefused, fetch
from pilotlight.wire.protobuf import delimited

pytestmark = pytest.mark.security

GROWTH = 64 << 20
CPU_S = 10.0  # of the predictor for one attack: each takes less than 3
FAULTS = {500, 502, 504}
INFER = "/v2/models/floats/infer"
GOOD = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}
NO_COUNTERPART = {
    "CVE-2025-59425 (vLLM: API keys by timing)": "keys are compared as SHA-256 digests; a test would measure noise",
    "CVE-2025-29783, CVE-2025-32444 (vLLM: pickles of Mooncake over ZeroMQ)": "no transport between nodes",
    "CVE-2025-48887 (vLLM: regular expression of the pythonic tool parser)": "the predictor parses no tool calls",
    "CVE-2026-33744, CVE-2026-44345 (BentoML: YAML value in a Dockerfile)": "no Dockerfile is made from a document",
    "kserve#4677 (KServe: the Hugging Face token is shown)": "credentials are no arguments; lint finds them (PL368)",
    "CVE-2026-32597 (PyJWT: unknown critical headers)": "replayed with the other JWTs of test_service_auth.py",
    "CVE-2025-69227, CVE-2025-69230, CVE-2025-69225 (aiohttp: Request.post under -O, cookies, Range)": (
        "the predictor uses none of the three"
    ),
    "CVE-2024-23334, CVE-2025-69226 (aiohttp: static files, and which exist)": (
        "no static routes of aiohttp; the console's names have no slash or dot but one (tests/security/test_console.py)"
    ),
    "CVE-2023-49081, CVE-2023-49082 (aiohttp's client: method and version with line breaks)": (
        "neither comes from a request; the gateway writes heads itself (tests/platform/gateway/test_framing.py)"
    ),
    "CVE-2022-1471 (TorchServe: SnakeYAML)": "YAML is read by a safe loader, and the predictor reads none from clients",
    "MLServer": "no published id; names of its load and unload calls are those of Triton's below",
}


class Listener:
    """A port of this machine that nobody may be made to call."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0)
        self.port = int(self._socket.getsockname()[1])

    def was_called(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


class Site(NamedTuple):
    server: RunningServer
    gateway: int  # its port
    closed: RunningServer  # a predictor with tokens
    listener: Listener
    folder: Path

    def send(self, path: str, body: Any = b"", headers: dict[str, str] | None = None) -> list[Answer]:
        """The answers of the predictor and of the gateway; none of them is a failure of the server."""
        raw = rendered("POST", path, body, headers, "localhost")
        through = rendered("POST", f"/floats{path}", body, headers, "localhost")
        return [*self.raw(raw, through)]

    def raw(self, raw: bytes, through: bytes) -> Iterator[Answer]:
        """Answers to bytes as they are; a connection that is closed without one is fine."""
        for port, data in ((self.server.port, raw), (self.gateway, through)):
            with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                with suppress(ConnectionError):  # refused before all was sent
                    connection.sendall(data)
                answer = read_answer(connection)
                assert answer.status not in FAULTS, (port, answer)
                yield answer

    def closed_after_one(self, raw: bytes, through: bytes) -> None:
        """Sent bytes get one refusal, and then the end: what follows is not read as another request."""
        for port, data in ((self.server.port, raw), (self.gateway, through)):
            received = b""
            with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(data)
                while piece := connection.recv(1 << 16):
                    received += piece
            statuses = re.findall(rb"HTTP/1\.[01] (\d+) ", received)
            assert statuses in ([b"400"], [b"501"]), (port, data, received)

    def refused(self, path: str, body: Any = b"", headers: dict[str, str] | None = None) -> None:
        answers = self.send(path, body, headers)
        assert answers
        assert {answer.status for answer in answers} <= {400, 401, 403, 404, 405, 413, 415, 422, 431, 501}, answers


class Attack(NamedTuple):
    ids: str
    product: str
    what: str
    play: Callable[[Site], None]
    imports_torch: bool = False  # which takes ten seconds and half a gigabyte


@pytest.fixture(scope="module")
def site(serve_module: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    models = folder / "models"
    write_identity(models, "floats", "FP32")
    write_python(models, "chat", CHAT, CHAT_CONFIG)
    (folder / "secret").write_text("api-secret")
    explicit = ("--model-control-mode", "explicit", "--load-model", "*", "--grpc-port", "0")
    server = serve_module(models, *explicit, "--allow-shared-memory", "--files-dir", str(folder))
    tokens = ("--api-token-file", str(folder / "secret"), "--admin-loopback=false")
    closed = serve_module(models, *explicit, *tokens)
    listener, port, ended = Listener(), queue.Queue[int](), threading.Event()

    async def run() -> None:
        async with linked(tmp_path_factory.mktemp("home")) as gateway:
            replicas = (Replica("one", server.port),)
            await gateway.publish(Route("default", "floats", (Backend("floats-1", "floats", 100, replicas),)))
            port.put(gateway.port)
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield Site(server, port.get(timeout=60), closed, listener, folder)
    finally:
        ended.set()
        thread.join()
        listener.close()


def pickled(marker: Path) -> bytes:
    """A pickle that leaves a file behind when it is read."""

    class Payload:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(marker),)

    return pickle.dumps(Payload())


def many_chunks(site: Site) -> None:
    body = b"1\r\n[\r\n" * 500_000 + b"0\r\n\r\n"
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for answer in site.raw(head % INFER.encode() + body, head % (b"/floats" + INFER.encode()) + body):
        assert answer.status in {400, 413}, answer


def shared_memory(site: Site) -> None:
    """An error told the name of an inner region, which could then be registered; offsets left the region."""
    tensor = {"name": "x", "shape": [2], "datatype": "FP32"}
    large = {"shared_memory_region": "x", "shared_memory_byte_size": 2**62}
    for answer in site.send(INFER, {"inputs": [{**tensor, "parameters": large}]}):
        assert answer.status == 400
        assert b"shm_region" not in answer.body
        assert b"/dev/shm" not in answer.body
    names = [name for name in os.listdir("/dev/shm") if str(site.server.process.pid) in name]
    for key in (
        *names,
        "../etc/passwd",
        "/../etc/passwd",
        "//etc/passwd",
        "/proc/self/mem",
        ".",
        "",
        "a\0b",
        "a" * 5000,
    ):
        site.refused("/v2/systemsharedmemory/region/r/register", {"key": key, "offset": 0, "byte_size": 8})
    file, region = Path(f"/dev/shm/pilotlight-test-{os.getpid()}"), "/v2/systemsharedmemory/region/own"
    file.write_bytes(bytes(64))
    try:
        for offset, size in ((64, 8), (-8, 8), (2**63, 8), (0, 65), (0, 2**63), (60, 2**64 - 4), (0, -1), (0, 0)):
            site.refused(f"{region}/register", {"key": f"/{file.name}", "offset": offset, "byte_size": size})
        assert (
            site.server.post(f"{region}/register", {"key": f"/{file.name}", "offset": 8, "byte_size": 16}).status == 200
        )
        for offset, size in ((16, 8), (9, 8), (-8, 8), (2**63, 8), (2**64 - 8, 16), (0, 24), (0, 4), (0, -8)):
            place = {"shared_memory_region": "own", "shared_memory_offset": offset, "shared_memory_byte_size": size}
            site.refused(INFER, {"inputs": [{**tensor, "parameters": place}]})
            site.refused(INFER, {**GOOD, "outputs": [{"name": "y", "parameters": place}]})
        place = {"shared_memory_region": "own", "shared_memory_byte_size": 8}
        assert site.server.post(INFER, {"inputs": [{**tensor, "parameters": place}]}).status == 200
    finally:
        site.server.post(f"{region}/unregister")
        file.unlink()


def large_payload(site: Site) -> None:
    head = "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    for size in (100 << 30, 2**63, 2**64 + 5):
        raw, through = ((head % (path, size)).encode() + bytes(1 << 20) for path in (INFER, f"/floats{INFER}"))
        assert {answer.status for answer in site.raw(raw, through)} <= {400, 413}
    tensor = {"name": "x", "shape": [2**40], "datatype": "FP32", "parameters": {"binary_data_size": 2**42}}
    text = json.dumps({"inputs": [tensor]}).encode()
    site.refused(INFER, text + bytes(100), {"Inference-Header-Content-Length": str(len(text))})
    site.refused(INFER, b"{}", {"Inference-Header-Content-Length": "99999999999"})


def load_names(site: Site) -> None:
    (site.folder / "models" / "link").symlink_to("/etc", target_is_directory=True)
    before = sorted(path for path in site.folder.rglob("*") if "log" not in path.name)
    names = [
        "..%2F..%2Fetc", "a%2F..%2Fb", "..", "%20..", "..%20", "%2Fetc%2Fpasswd", "model%2F", "%09", "link", "%00",
        "a" * 256, "...", "model..1", "%2e%2e", "..%5c..", "http%3A%2F%2F127.0.0.1%2Fm",
    ]  # fmt: skip
    for name in names:
        for verb in ("load", "unload") if name != "link" else ("load",):
            answer = site.server.post(f"/v2/repository/models/{name}/{verb}")
            assert answer.status in {400, 404, 405}, (name, verb, answer)
    for file in ("file:../../evil", "file:/tmp/evil", "file:1/../../evil", "file:1/model.onnx"):
        evil = {"parameters": {"config": "{}", file: base64.b64encode(b"x").decode()}}
        assert site.server.post("/v2/repository/models/evil/load", evil).status in {400, 403}
    assert sorted(path for path in site.folder.rglob("*") if "log" not in path.name) == before


def log_paths(site: Site) -> None:
    for path in ("../x", "/etc/cron.d/x", "a/../../x", "..", "models/x", "a\0b", "/dev/stdout"):
        for setting in ({"log_file": path}, {"trace_file": path}):
            route = "/v2/logging" if "log_file" in setting else "/v2/trace/setting"
            assert site.server.post(route, setting).status == 400, (path, route)


def many_outputs(site: Site) -> None:
    site.refused(INFER, {**GOOD, "outputs": [{"name": "y"}] * 100_000})
    site.refused(INFER, {**GOOD, "outputs": [{"name": f"y{at}"} for at in range(100_000)]})


def overflows(site: Site) -> None:
    for shape in ([2**4, 2**60 + 2], [2**32, 2**32], [-1], [-(2**63)], [2**64], [0, 2**62, 2**62], [1] * 100_000):
        for datatype in ("FP32", "INT8", "BYTES"):
            site.refused(INFER, {"inputs": [json_tensor("x", datatype, shape, [1, 2])]})
    for text in (b"[" * 120 + b"]" * 120, b"[" * 250_000, b'{"inputs":' * 250_000):
        site.refused(INFER, text)
    site.refused(INFER, {**GOOD, "parameters": {"triton_x": 1}})


def other_paths(site: Site) -> None:
    """Ways to inference, the repository and engines that SageMaker, Vertex and vLLM have beside the usual ones."""
    paths = [
        "/invocations", "/v1/invocations", "/pause", "/abort_requests", "/predict", "/v1/completions", "/v2/logging",
        "/v2/models/floats/generate", "/v1/models/floats:predict", "/V2/models/floats/infer", f"/{INFER}", f"{INFER}/",
        "/v2/health/../models/floats/infer", "/v2/health/live/..%2f..%2fmodels/floats/infer", f"/.{INFER}",
        f"{INFER};a", "/v2/models/floats/versions/1/infer", "/api/infer/floats", "/v2/repository/index",
        "/v2/repository/models/floats/unload",
    ]  # fmt: skip
    headers = {"X-Forwarded-For": "127.0.0.1", "X-Original-URL": "/v2/health/live", "X-HTTP-Method-Override": "GET"}
    for path in paths:
        for more in ({}, headers, {"Authorization": "Bearer api-secre"}):
            answer = site.closed.post(path, GOOD, more)
            assert answer.status in {400, 401, 403, 404, 405}, (path, answer)
    assert site.closed.infer("floats", GOOD, {"Authorization": "Bearer api-secret"}).status == 200
    with grpc.insecure_channel(grpc_address(site.closed)) as channel:
        for method in ("RepositoryModelLoad", "RepositoryIndex", "ModelInfer"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}").future(
                delimited(1, b"x"), timeout=60
            )
            assert call.code().name in {"UNAUTHENTICATED", "PERMISSION_DENIED"}, (method, call.code())


def urls_to_load(site: Site) -> None:
    """Also with `..`, which went past TorchServe's list of allowed addresses."""
    address = f"http://127.0.0.1:{site.listener.port}"
    for url in (f"{address}/evil.mar", f"{address}/../evil.mar", f"{address}/a/..%2Fevil.mar"):
        for path in (f"/models?url={url}", f"/workflows?url={url}", f"/v2/repository/models/floats2/load?url={url}"):
            site.refused(path)
        for name in ("url", "model_uri", "storage_uri", "uri"):
            load = site.server.post("/v2/repository/models/floats2/load", {"parameters": {name: url}})
            assert load.status in {400, 404}, (name, load)
    assert not site.listener.was_called()


def media_urls(site: Site) -> None:
    at = site.listener.port
    for url in (f"http://127.0.0.1:{at}/a.png", f"http://localhost:{at}\\@example.com/", f"file:///etc/passwd#{at}"):
        part = {"type": "image_url", "image_url": {"url": url}}
        site.refused("/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": [part]}]})
    allowed = Limits(domains=("example.com",), allow_http=True, seconds=5)
    spellings = (
        f"http://127.0.0.1:{at}\\@example.com/a.png", f"http://example.com\\@127.0.0.1:{at}/a.png",
        f"http://127.0.0.1:{at}#@example.com/", f"http://example.com@127.0.0.1:{at}/", f"http://127.1:{at}\\.example.com/",
        f"http://[::ffff:127.0.0.1]:{at}/?.example.com", f"http://127.0.0.1:{at}/\t@example.com",
    )  # fmt: skip
    for url in spellings:
        with pytest.raises(MediaRefused):
            fetch([url], None, allowed)
    assert not site.listener.was_called()


def counts_without_bound(site: Site) -> None:
    chat = {"model": "chat", "messages": [{"role": "user", "content": "x"}]}
    completion = {"model": "chat", "prompt": "x"}
    for more in ({"n": 10**6}, {"n": 10**9}, {"best_of": 10**6}, {"n": -1}, {"top_logprobs": 10**9, "logprobs": True}):
        site.refused("/v1/chat/completions", {**chat, **more})
        site.refused("/v1/completions", {**completion, **more})


def templates_and_embeddings(site: Site) -> None:
    """Templates of the client, embeddings that torch.load reads, and grammars that end the engine."""
    marker = site.folder / "ran"
    chat = {"model": "chat", "messages": [{"role": "user", "content": "x"}]}
    fields: list[dict[str, Any]] = [
        {"chat_template": "{% for a in range(10**9) %}x{% endfor %}"},
        {"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
        {"chat_template_kwargs": {"chat_template": "{% for a in range(10**9) %}{% endfor %}", "tokenize": True}},
        {"prompt_embeds": base64.b64encode(pickled(marker)).decode()},
        {"guided_json": '{"type": "x'}, {"guided_regex": "(a+)+$("}, {"structured_outputs": {"regex": "(" * 10_000}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "(a+)+$"}}}},
    ]  # fmt: skip
    for more in fields:
        site.refused("/v1/chat/completions", {**chat, **more})
        site.refused("/v1/completions", {"model": "chat", "prompt": "x", **more})
    assert not marker.exists()


def empty_prompts(site: Site) -> None:
    for prompt in ("", [], [""], [[]], None):
        site.send("/v1/completions", {"model": "chat", "prompt": prompt})
    site.refused("/v1/chat/completions", {"model": "chat", "messages": []})


def long_headers(site: Site) -> None:
    for header in ({"X": "a" * (1 << 20)}, {f"X-{at}": "a" for at in range(20_000)}, {"A" * 70_000: "a"}):
        assert {answer.status for answer in site.send(INFER, GOOD, header)} <= {400, 431}


def pickled_bodies(site: Site) -> None:
    marker = site.folder / "ran"
    kinds = {
        "application/vnd.bentoml+pickle": {}, "application/pickle": {}, "application/octet-stream": {},
        "application/vnd.bentoml.pickled": {"Payload-Container": "DefaultContainer", "Payload-Meta": "{}"},
        "multipart/form-data; boundary=b": {"Args-Number": "1"},
    }  # fmt: skip
    for kind, more in kinds.items():
        for path in (INFER, "/predict", "/v1/models/floats:predict", "/v2/models/floats/generate"):
            site.refused(path, pickled(marker), {"Content-Type": kind, **more})
    assert not marker.exists()


def pickled_models(site: Site) -> None:
    marker = site.folder / "ran"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:  # as torch.save writes them
        packed.writestr("archive/data.pkl", pickled(marker))
        packed.writestr("archive/version", "3")
    for name, data in (("plain", pickled(marker)), ("packed", archive.getvalue())):
        version = site.folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.pt").write_bytes(data)
        answer = site.server.post(f"/v2/repository/models/{name}/load")
        assert (answer.status, "--trust-pickle" in answer.error) == (400, True), answer
    assert not marker.exists()


def forms(site: Site) -> None:
    """A long boundary, many fields, a part that never ends, and a field that is an address to be fetched."""
    url = f"http://127.0.0.1:{site.listener.port}/"
    field = b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\nx\r\n'
    fetched = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n%b\r\n--b--\r\n' % url.encode()
    cases = [
        ("b" + "-" * 60_000, b"--b" + b"-" * 1_000_000), ("b", field * 50_000 + b"--b--\r\n"), ("b", fetched),
        ("b", b"--b\r\nContent-Disposition: form-data; name=f\r\nContent-Length: 5\r\n\r\n"), ("b\0", b""), ("", b"--"),
    ]  # fmt: skip
    for boundary, body in cases:
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        for path in (INFER, "/predict", "/v1/models/floats:predict"):
            site.refused(path, body, kind)
    assert not site.listener.was_called()


def framing(site: Site) -> None:
    """Requests that two readers take for different ones: none may be read as two."""
    start, hidden = "POST {} HTTP/1.1\r\n", "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    length, chunked = "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"
    heads = [
        "Host: a\r\nHost: b\r\n" + length, "Host: a\r\nContent-Length: ５\r\n", "Host: a\r\nContent-Length: 1_0\r\n",
        "Host: a\r\nContent-Length: +5\r\n", f"Host: a\r\n{length}{chunked}", f"Host: a\r\n{chunked}{chunked}",
        "Host: a\r\nTransfer-Encoding: \x0bchunked\r\n", "Host: a\r\nX: a\nContent-Length: 5\r\n",
    ]  # fmt: skip
    for head in heads:
        raw, through = ((start.format(p) + head + "\r\n" + hidden).encode() for p in (INFER, f"/floats{INFER}"))
        site.closed_after_one(raw, through)
    bodies = [f"5;a\nb\r\n{{}}   \r\n0\r\n\r\n{hidden}", f"0\r\n{length}{hidden}\r\n", f"0\r\nX: a\nb\r\n\r\n{hidden}"]
    for body in bodies:
        head = f"Host: localhost\r\n{chunked}\r\n"
        raw, through = ((start.format(p) + head + body).encode() for p in (INFER, f"/floats{INFER}"))
        site.closed_after_one(raw, through)


def trailers(site: Site) -> None:
    text = json.dumps(GOOD)
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = f"{len(text):x}\r\n{text}\r\n0\r\n" + "".join(f"X-{at}: {'a' * 100}\r\n" for at in range(200_000)) + "\r\n"
    raw, through = ((head.format(path) + body).encode() for path in (INFER, f"/floats{INFER}"))
    assert {answer.status for answer in site.raw(raw, through)} <= {400, 413, 431}


def bombs(site: Site) -> None:
    bomb = gzip.compress(bytes(100 << 20), 1)
    for body, encoding in ((bomb, "gzip"), (gzip.compress(bomb, 1), "gzip"), (gzip.compress(bomb, 1), "gzip, gzip")):
        site.refused(INFER, body, {"Content-Encoding": encoding})
    site.refused("/v1/models/floats:predict", bomb, {"Content-Encoding": "gzip"})


def archives(site: Site) -> None:
    """Members that leave the folder, by their names and through a link that came before them."""
    link = tarfile.TarInfo("d")
    link.type, link.linkname = tarfile.SYMTYPE, str(site.folder)
    for at, members in enumerate(
        ([tarfile.TarInfo("../evil")], [link, tarfile.TarInfo("d/evil")], [tarfile.TarInfo("/evil")])
    ):
        archive = site.folder / f"{at}.tar"
        with tarfile.open(archive, "w") as packed:
            for member in members:
                packed.addfile(member, io.BytesIO())
        command = [
            sys.executable,
            "-m",
            "pilotlight_predictor",
            "fetch",
            archive.as_uri(),
            str(site.folder / f"out{at}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
        assert "is outside of it" in done.stderr, done
        assert not [path for path in site.folder.rglob("evil") if path.is_file()]
        archive.unlink()


ATTACKS = [
    Attack("CVE-2025-23310 CVE-2025-23311 CVE-2025-69229", "Triton, aiohttp",
           "500,000 chunks of a byte: stack overflow, CPU", many_chunks),
    Attack("CVE-2025-23319 CVE-2025-23320 CVE-2025-23334 CVE-2024-0088", "Triton",
           "names of inner regions, offsets beyond a region", shared_memory),
    Attack("CVE-2025-33201", "Triton", "payload beyond what memory holds", large_payload),
    Attack("CVE-2023-31036 CVE-2026-24208 CVE-2026-24209", "Triton", "names that leave the repository", load_names),
    Attack("CVE-2024-0087", "Triton", "log file at a path of the client", log_paths),
    Attack("CVE-2026-24146", "Triton", "100,000 outputs", many_outputs),
    Attack("CVE-2026-24173", "Triton", "shapes that overflow, nesting of 250,000, reserved keys", overflows),
    Attack("CVE-2026-24207 CVE-2026-24206 CVE-2024-35199", "Triton, TorchServe",
           "other paths and the gRPC port, around the token", other_paths),
    Attack("kserve#4796 kserve#4975 CVE-2026-27905", "KServe, BentoML", "archives that write outside", archives),
    Attack("CVE-2023-43654 CVE-2024-35198", "TorchServe", "a model from any address", urls_to_load),
    Attack("CVE-2025-6242 GHSA-3f6c-7fw2-ppm4 CVE-2026-24779", "vLLM", "media from inside, `\\` in URLs", media_urls),
    Attack("CVE-2026-34756 CVE-2024-8939", "vLLM", "n, best_of of 10^9", counts_without_bound),
    Attack("CVE-2025-61620 CVE-2025-62426 CVE-2025-62164 CVE-2025-48942 CVE-2025-48943", "vLLM",
           "templates, pickled embeddings, grammars", templates_and_embeddings),
    Attack("CVE-2024-8768", "vLLM", "an empty prompt", empty_prompts),
    Attack("CVE-2025-48956", "vLLM", "a header of a megabyte", long_headers),
    Attack("CVE-2024-2912 CVE-2025-27520 CVE-2025-32375", "BentoML", "pickles as bodies", pickled_bodies),
    Attack("CVE-2025-32434 CVE-2026-24747 CVE-2025-24357", "PyTorch, vLLM", "pickles as models",
           pickled_models, imports_torch=True),
    Attack("CVE-2024-9056 CVE-2025-54381 CVE-2025-69228 CVE-2024-30251", "BentoML, aiohttp",
           "forms: boundary, fields, addresses", forms),
    Attack("CVE-2023-47627 CVE-2023-47641 CVE-2024-23829 CVE-2024-52304 CVE-2025-53643 CVE-2025-69224 CVE-2026-34525",
           "aiohttp", "Host twice, digits, line breaks, trailers: smuggling", framing),
    Attack("CVE-2026-22815", "aiohttp", "20 MB of trailers", trailers),
    Attack("CVE-2025-69223", "aiohttp", "100 MiB that come as 0.5 MB", bombs),
]  # fmt: skip


def case(attack: Attack) -> Any:
    return pytest.param(attack, marks=[pytest.mark.long] if attack.imports_torch else [], id=attack.ids.split()[0])


@pytest.mark.parametrize("attack", [case(attack) for attack in ATTACKS])
def test_the_attack_does_not_work(site: Site, attack: Attack) -> None:
    before, worked, errors = site.server.rss_bytes(), cpu_seconds(site), len(error_lines(site))
    attack.play(site)
    assert site.server.infer("floats", GOOD).json()["outputs"][0]["data"] == [1, 2]
    assert attack.imports_torch or site.server.rss_bytes() - before < GROWTH
    assert attack.imports_torch or cpu_seconds(site) - worked < CPU_S
    assert error_lines(site)[errors:] == []


def cpu_seconds(site: Site) -> float:
    user, system = Path(f"/proc/{site.server.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def error_lines(site: Site) -> list[Any]:
    """What went wrong, but for models that could not be loaded."""
    return [each for each in site.server.log() if each.get("level") == "ERROR" and each.get("event") != "model.failed"]

"""What is sent: the tensors of requests, and paths that a real wrk asks in turn."""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from bench.cases import json_load
from bench.embedded.services import write
from bench.environments import Environment, own_environment
from bench.growth.rendering import rendered
from bench.load import BenchError, Target, send
from bench.machine import Cores
from bench.models import NO_ID, Payload, iris_payload, payload_of, wide_payload, write_models
from bench.own_cases import imports_s
from bench.servers import SERVERS
from bench.subject import Subject

SECONDS = 3  # a busy machine may answer nothing for a while


class Counting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: ClassVar[Counter[str]] = Counter()
    bodies: ClassVar[Counter[bytes]] = Counter()

    def do_POST(self) -> None:
        self.bodies[self.rfile.read(int(self.headers["Content-Length"]))] += 1
        self.seen[self.path] += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        Counting.seen.clear()
        Counting.bodies.clear()
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server.server_address[1]
        server.shutdown()
        serving.join()


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
@pytest.mark.parametrize("paths", [(), ("/a", "/b", "/c")])
def test_paths_are_asked_in_turn_where_there_are_several(port: int, paths: tuple[str, ...], tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"{}")
    load = send(Target(f"http://127.0.0.1:{port}/one", Payload(b"{}", ()), body, paths), 1, SECONDS, Cores(None, None))
    assert load.errors == 0
    assert set(Counting.seen) == set(paths or ["/one"])
    assert max(Counting.seen.values()) - min(Counting.seen.values()) <= 1


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_numbered_requests_have_an_id_of_their_own_and_are_alike_but_for_it(port: int, tmp_path: Path) -> None:
    payload = iris_payload(write_models(tmp_path)["iris"], numbered=True)
    body = tmp_path / "body"
    body.write_bytes(payload.body)
    load = send(Target(f"http://127.0.0.1:{port}/one", payload, body), 2, SECONDS, Cores(None, None))
    assert load.errors == 0
    assert load.answers > 1
    assert set(Counting.bodies.values()) == {1}
    sent = [json.loads(body) for body in list(Counting.bodies)]  # the last ones may still arrive
    assert all(request["id"].isdigit() and len(request.pop("id")) == len(NO_ID) for request in sent)
    assert all({"id": NO_ID, **request} == json.loads(payload.body) for request in sent)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_other_requests_are_repeated_byte_for_byte(port: int, tmp_path: Path) -> None:
    payload = iris_payload(write_models(tmp_path)["iris"])
    body = tmp_path / "body"
    body.write_bytes(payload.body)
    send(Target(f"http://127.0.0.1:{port}/one", payload, body), 1, SECONDS, Cores(None, None))
    assert set(Counting.bodies) == {payload.body}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_the_json_case_asks_a_real_server_with_and_without_ids(tmp_path: Path) -> None:
    models = write_models(tmp_path)
    payloads = {"iris": payload_of(models["iris"])}
    figures = json_load(Subject(SERVERS[0], own_environment(), models, payloads, tmp_path, Cores(None, None)), 1.0)
    for name in ("c1", "c32", "c256", "id"):
        assert figures[f"json.{name}.rps"] > 0
        assert figures[f"json.{name}.errors"] == 0


def test_rows_of_a_request_have_one_answer_each(tmp_path: Path) -> None:
    model = write_models(tmp_path)["iris"]
    one, three = iris_payload(model), iris_payload(model, 3)
    assert json.loads(three.body)["inputs"][0]["shape"] == [3, 4]
    assert np.allclose(three.answer, one.answer * 3)


def test_a_wide_row_is_as_long_as_asked_and_answered_by_its_first_numbers(tmp_path: Path) -> None:
    payload = wide_payload(write_models(tmp_path)["wide"], 1000)
    tensor = np.frombuffer(payload.body[int(payload.headers["Inference-Header-Content-Length"]) :], np.float32)
    assert tensor.shape == (1000,)
    assert payload.answer == tuple(float(value) for value in tensor[:3])


def test_rendering_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    document = write(tmp_path / "one.yaml", ["one"], write_models(tmp_path)["iris"])
    with pytest.raises(BenchError, match=r"render of one\.yaml did not end within 0\.001 s"):
        rendered(document, limit_s=0.001)


@pytest.mark.parametrize(("does", "told"), [("exec sleep 60", "did not end within 0.1 s"), ("exit 3", "ended with 3")])
def test_imports_that_do_not_end_or_fail_are_no_figure(does: str, told: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    subject = Subject(SERVERS[0], Environment(python), {}, {}, tmp_path, Cores(None, None))
    with pytest.raises(BenchError, match=f"import numpy, onnxruntime {told}"):
        imports_s(subject, limit_s=0.1 if "sleep" in does else 60)


def test_rendering_tells_the_peak_of_its_own_process(tmp_path: Path) -> None:
    ours = np.ones(200 << 20, np.uint8)
    figures = rendered(write(tmp_path / "one.yaml", ["one"], write_models(tmp_path)["iris"]))
    assert 1 < figures["peak_mb"] < ours.nbytes >> 20
    assert figures["cpu_s"] > 0

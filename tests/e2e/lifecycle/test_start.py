"""From exec to ready, and every way to get no further."""

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.e2e.lifecycle.models import HELD, SLOW_LOAD, body, write_signed
from tests.eventually import eventually
from tests.onnx_models import write_add_sub
from tests.ports import free_port
from tests.serving import RunningServer, rendered

from pilotlight_predictor.bootstrap.application import GRPC_DELAY_S

Serve = Callable[..., RunningServer]
PHASES = {"boot", "listen", "import", "fetch", "load", "warmup", "total"}

# numpy cannot be imported before the file `numpy` exists.
SLOW_IMPORT = """
import pathlib
import sys
import time

SIGNS = pathlib.Path({signs!r})


class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            while not (SIGNS / "numpy").exists():
                time.sleep(0.005)


sys.meta_path.insert(0, Slow())
"""

# Leaves a sign when onnxruntime is imported.
TELLING_IMPORT = """
import pathlib
import sys


class Tells:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            pathlib.Path({signs!r}, "imported").touch()


sys.meta_path.insert(0, Tells())
"""


def slow_import(folder: Path) -> dict[str, str]:
    (folder / "site").mkdir()
    (folder / "site/sitecustomize.py").write_text(SLOW_IMPORT.format(signs=str(folder)))
    return {"PYTHONPATH": str(folder / "site")}


def ended(server: RunningServer, number: int = signal.SIGTERM, within_s: float = 60.0) -> int:
    """The exit code; fails when the process takes longer to go."""
    server.process.send_signal(number)
    return server.process.wait(within_s)


@pytest.mark.parametrize(("flags", "not_ready"), [((), 503), (("--compat", "triton", "--http-port", "0"), 400)])
def test_it_answers_before_anything_heavy_is_imported(
    tmp_path: Path, serve: Serve, flags: tuple[str, ...], not_ready: int
) -> None:
    repository = write_signed(tmp_path, HELD)
    (tmp_path / "go").touch()
    server = serve(
        repository, *flags, "--grpc-port", "-1", "--metrics-port", "0", env=slow_import(tmp_path), ready=False
    )
    assert server.get("/v2/health/live").json() == {"live": True}
    ready = server.get("/v2/health/ready")
    assert (ready.status, ready.headers["retry-after"]) == (not_ready, "1")
    assert ready.json()["state"] == "initializing"
    assert server.get("/v2/models/m/ready").status == not_ready
    assert server.get("/status").json()["state"] == "initializing"
    assert server.infer("m", body(1)).status == 503
    (tmp_path / "numpy").touch()
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready")
    assert server.infer("m", body(2)).json()["outputs"][0]["data"] == [4]


def test_it_ends_at_once_when_told_so_before_it_was_imported(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD), env=slow_import(tmp_path), ready=False)
    with server.connect() as connection:  # what only aiohttp can read waits for it, and must not hold the exit up
        connection.sendall(rendered("POST", "/v2/models/m/infer", body(1), None, server.address, chunked=True))
        assert ended(server) == 0


def test_while_a_model_loads_everything_says_so_and_then_how_long_it_took(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, SLOW_LOAD), ready=False)
    eventually((tmp_path / "loading").exists, "the load")
    ready = server.get("/v2/health/ready")
    assert (ready.status, ready.json()["state"]) == (503, "loading")
    status = server.get("/status").json()
    assert (status["state"], status["models"][0]["state"]) == ("loading", "LOADING")
    answer = server.infer("m", body(1))
    assert (answer.status, answer.headers["retry-after"], answer.error) == (503, "1", "'m' is loading")
    assert server.get("/v2/models/m/ready").status == 503
    (tmp_path / "go").touch()
    line = server.wait_for_event("ready")
    assert set(line["phases"]) == PHASES
    assert line["phases"]["total"] >= line["phases"]["load"] > 0
    assert set(server.get("/status").json()["phases"]) == PHASES
    metrics = server.get("/metrics").body.decode()
    for phase in PHASES:
        assert f'pilotlight_cold_start_seconds{{phase="{phase}"}}' in metrics
    for phase in ("import", "load", "warmup", "total"):
        assert f'pilotlight_model_load_seconds{{model="m",version="1",phase="{phase}"}}' in metrics


def test_garbage_is_collected_once_the_models_are_loaded(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, COLLECTING))
    assert server.infer("m", body(1)).json()["outputs"][0]["data"] == [False, True]


def test_a_start_that_failed_collects_its_garbage_too(tmp_path: Path, serve: Serve) -> None:
    """It stays up and heals: what is loaded later finds the collector at work."""
    repository = write_signed(tmp_path, "no python\n", "broken")
    flags = ("--model-control-mode", "explicit", "--load-model", "broken")
    server = serve(repository, *flags, ready=False)
    server.wait_for_event("failed")
    write_signed(tmp_path, COLLECTING)
    assert server.post("/v2/repository/models/m/load").status == 200
    assert server.infer("m", body(1)).json()["outputs"][0]["data"] == [True, True]


def test_in_a_knative_pod_grpc_comes_after_the_first_moments_and_comes(tmp_path: Path, serve: Serve) -> None:
    port = str(free_port())
    env = {"K_SERVICE": "iris", "PORT": port}
    server = serve(write_signed(tmp_path, HELD), "--http-port", port, "--grpc-port", "0", env=env)
    ready, listening = (server.wait_for_event(name) for name in ("ready", "grpc.listening"))
    apart = datetime.fromisoformat(listening["ts"]) - datetime.fromisoformat(ready["ts"])
    slow = ready["phases"]["total"] > GRPC_DELAY_S  # then gRPC does not wait for the load any more
    assert slow or apart > timedelta(seconds=0.9)


def test_it_ends_at_once_while_a_model_loads(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, SLOW_LOAD), ready=False)
    eventually((tmp_path / "loading").exists, "the load")
    assert ended(server) == 0


def test_a_load_that_hangs_becomes_a_failure_with_its_reason_and_holds_no_exit_up(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, SLOW_LOAD), "--load-timeout", "0.2", ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").json()["state"] == "failed", "failed")
    told = server.get("/v2/health/ready").json()
    assert told == {
        "ready": False,
        "state": "failed",
        "reason": "model 'm': loading took longer than 0.2 s (--load-timeout)",
    }
    assert server.get("/status").json()["reason"] == told["reason"]
    assert server.get("/v2/health/live").status == 200
    assert ended(server) == 1


def test_with_exit_on_error_a_failed_start_ends_the_process(tmp_path: Path, serve: Serve) -> None:
    repository = write_signed(tmp_path, "no python\n")
    server = serve(repository, "--exit-on-error", ready=False)
    assert server.process.wait(60) == 1
    assert any(line["event"] == "failed" and "model 'm'" in line["message"] for line in server.log())


def test_as_triton_a_model_to_load_that_is_not_there_ends_the_process(tmp_path: Path, serve: Serve) -> None:
    flags = ("--compat=triton", "--grpc-port=0", "--metrics-port=0", "--model-control-mode=explicit")
    server = serve(write_signed(tmp_path, HELD), *flags, "--load-model=m", "--load-model=ghost", ready=False)
    assert server.process.wait(60) == 1
    reason = "model 'ghost': 'ghost' is not in the repository"
    assert any(line["event"] == "failed" and line["message"] == reason for line in server.log())


def test_an_extra_model_that_loads_or_fails_later_leaves_the_server_ready(tmp_path: Path, serve: Serve) -> None:
    repository = write_signed(tmp_path, HELD)
    (tmp_path / "extra").mkdir()
    write_signed(tmp_path / "extra", SLOW_LOAD, "extra")
    flags = ("--model-repository", str(tmp_path / "extra/models"), "--load-model", "m")
    server = serve(repository, "--model-control-mode", "explicit", *flags)
    with server.connect(60) as connection:
        connection.sendall(f"POST /v2/repository/models/extra/load HTTP/1.1\r\nHost: {server.address}\r\n\r\n".encode())
        eventually((tmp_path / "extra/loading").exists, "the extra load")
        assert server.get("/v2/health/ready").status == 200
        assert server.get("/v2/models/extra/ready").status == 503
        (tmp_path / "extra/go").touch()
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    assert server.get("/v2/models/extra/ready").status == 200


def test_a_port_that_is_taken_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flag in ("--http-port", "--metrics-port"):
            with pytest.raises(AssertionError) as refused:
                RunningServer(tmp_path, flag, str(port), "--model-repository", str(tmp_path), ready=False)
            assert "exit code 1" in str(refused.value)
            lines = [json.loads(line) for line in (tmp_path / "predictor.log").read_text().splitlines()]
            assert [line["event"] for line in lines] == ["failed"]
            assert lines[0]["message"].startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use; choose")


def test_a_token_file_that_is_not_there_is_one_sentence_and_exit_code_1(tmp_path: Path, serve: Serve) -> None:
    server = serve(tmp_path, "--api-token-file", str(tmp_path / "none"), ready=False)
    assert server.process.wait(60) == 1
    told = server.log()[-1]
    assert (told["event"], "traceback" in told) == ("failed", False)
    assert (
        told["message"] == f"api_token_file = {tmp_path / 'none'}, must be a readable file: No such file or directory"
    )


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (("--service-name", "s", "--service-namespace", "n", "--service-revision", "r"), {}),
        ((), {"INFERENCE_SERVICE_NAME": "s", "INFERENCE_SERVICE_NAMESPACE": "n", "INFERENCE_SERVICE_REVISION": "r"}),
        ((), {"K_SERVICE": "s", "PILOTLIGHT_NAMESPACE": "n", "K_REVISION": "r"}),
    ],
)
def test_the_service_it_is_part_of_labels_its_metrics_however_it_was_told(
    tmp_path: Path, serve: Serve, flags: tuple[str, ...], env: dict[str, str]
) -> None:
    server = serve(tmp_path, "--model-control-mode", "explicit", *flags, env=env)
    labels = 'inference_service="s",namespace="n",revision="r"'
    assert f"pilotlight_requests_in_flight{{{labels}}} 0" in server.get("/metrics").body.decode()


def test_the_metrics_port_serves_metrics_alone(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "go").touch()
    server = serve(write_signed(tmp_path, HELD))
    assert server.metrics_port != server.port
    server.port = server.metrics_port
    assert b"pilotlight_cold_start_seconds" in server.get("/metrics").body
    assert server.get("/v2").status == 404
    assert server.infer("m", body(1)).status == 404


def test_the_runtime_is_imported_while_the_model_is_fetched(tmp_path: Path, serve: Serve) -> None:
    """The model's bytes are held back until onnxruntime is being imported: one after the other would never end."""
    folder = write_add_sub(tmp_path / "models", "m")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(TELLING_IMPORT.format(signs=str(tmp_path)))
    with held_files(folder / "1", (tmp_path / "imported").exists) as url:
        flags = ("--model-path", f"{url}/model.onnx", "--model-name", "m", "--cache-dir", str(tmp_path / "cache"))
        server = serve(None, *flags, env={"PYTHONPATH": str(tmp_path / "site")})
    phases = server.wait_for_event("ready")["phases"]
    assert min(phases["fetch"], phases["import"], phases["load"]) > 0
    assert server.get("/status").json()["progress"]["done_bytes"] == (folder / "1/model.onnx").stat().st_size


# Says whether the collector of garbage worked while it was loaded, and whether it does while it answers.
COLLECTING = """
import gc

import numpy as np

INPUTS = {{"x": ("FP32", [-1])}}
OUTPUTS = {{"y": ("BOOL", [2])}}
AT_LOAD = gc.isenabled()


def predict(x):
    return np.array([AT_LOAD, gc.isenabled()])
"""


@contextmanager
def held_files(folder: Path, may_send: Callable[[], bool]) -> Iterator[str]:
    class Held(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            eventually(may_send, "the import")
            super().do_GET()

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Held, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

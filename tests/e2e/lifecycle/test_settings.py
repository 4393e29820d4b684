"""Settings of the process seen from outside: where it listens, what it logs, what it calls itself."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.lifecycle.models import HELD, body, write_signed
from tests.ports import free_port
from tests.serving import ROOT, RunningServer

Serve = Callable[..., RunningServer]
EXPLICIT = ("--model-control-mode", "explicit")


def reached(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is no address of its own")
def test_each_port_listens_on_its_own_address(tmp_path: Path, serve: Serve) -> None:
    # A port that the kernel chose for 127.0.0.2 could be another test's on 127.0.0.1.
    ports = ("--http-port", str(free_port()), "--metrics-port", str(free_port()))
    near = serve(tmp_path, *EXPLICIT, *ports, "--metrics-address", "127.0.0.2")
    assert [reached(host, near.port) for host in ("127.0.0.1", "127.0.0.2")] == [True, False]
    assert [reached(host, near.metrics_port) for host in ("127.0.0.1", "127.0.0.2")] == [False, True]
    far = serve(tmp_path, *EXPLICIT, "--http-address", "0.0.0.0")
    assert [reached("127.0.0.2", port) for port in (far.port, far.metrics_port)] == [True, True]


def test_it_calls_itself_what_it_was_told_to(tmp_path: Path, serve: Serve) -> None:
    assert serve(tmp_path, *EXPLICIT, "--id", "mine").get("/v2").json()["name"] == "mine"
    triton = serve(tmp_path, *EXPLICIT, "--compat", "triton", "--http-port", "0", "--metrics-port", "0")
    assert triton.get("/v2").json()["name"] == "triton"


def test_the_access_log_has_a_line_per_request_when_asked_for(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "go").touch()
    server = serve(write_signed(tmp_path, HELD), "--access-log")
    assert server.infer("m", body(1), {"X-Request-Id": "r-1"}).status == 200
    found: list[dict[str, object]] = []  # a line is written after the answer is sent

    def written() -> bool:
        found[:] = [line for line in server.log() if line["event"] == "request" and line.get("request_id") == "r-1"]
        return bool(found)

    server.wait_until(written, "told of the request")
    line = found[0]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v2/models/m/infer", 200)


@pytest.mark.parametrize(("shape", "starts"), [("json", "{"), ("text", "20")])
def test_logs_have_the_level_and_the_format_asked_for(tmp_path: Path, shape: str, starts: str) -> None:
    flags = ["--model-repository", str(write_signed(tmp_path, "no python")), "--exit-on-error", "--http-port", "0"]
    flags += ["--metrics-port", "-1", "--grpc-port", "-1", "--log-format", shape]
    said = {}
    for level in ("info", "error"):
        command = [sys.executable, "-m", "pilotlight_predictor", *flags, "--log-level", level]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        said[level] = done.stderr.splitlines()
    assert ["listening" in "".join(said[level]) for level in ("info", "error")] == [True, False]
    assert all(line.startswith(starts) and "ERROR" in line for line in said["error"])
    assert said["error"]

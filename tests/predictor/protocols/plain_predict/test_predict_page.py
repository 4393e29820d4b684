"""docs/reference/http-api.md says what is so: its clients run against a server, and every route and limit is on it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.serving import ROOT, RunningServer

from pilotlight_predictor.config import parse
from pilotlight_predictor.protocols.plain_predict.batch_and_stream import MAX_IN_FLIGHT
from pilotlight_predictor.protocols.plain_predict.codec import MAX_NUMBERS
from pilotlight_predictor.protocols.plain_predict.routes import PROTOCOL

PAGE = page_section("docs/reference/http-api.md", "/predict")
HOST = "127.0.0.1:8080"
DIRECT = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="module")
def iris(serve_module: Callable[..., RunningServer]) -> RunningServer:
    flags = ("--model-path", str(ROOT / "examples/iris/model.onnx"), "--model-name", "iris", "--grpc-port", "0")
    return serve_module(None, *flags)


def run(*words: str, **variables: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env={**DIRECT, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_commands_run(iris: RunningServer) -> None:
    (script,) = (block for block in blocks("bash") if "curl" in block)
    assert '"predictions"' in run("bash", "-euo", "pipefail", "-c", script.replace(HOST, iris.address))


def test_the_program_runs(iris: RunningServer, tmp_path: Path) -> None:
    (text,) = (block for block in blocks("python") if "requests" in block and "grpc" not in block)
    program = tmp_path / "client.py"
    program.write_text(text.replace(HOST, iris.address))
    assert run(sys.executable, str(program)).count("predictions") == 2


def test_the_generated_client_runs(iris: RunningServer, tmp_path: Path) -> None:
    (command,) = (block for block in blocks("bash") if "protoc" in block)
    words = command.replace("-I protos", f"-I {ROOT / 'protos'}").replace("_out=.", f"_out={tmp_path}").split()
    run(sys.executable, *words[1:])
    (text,) = (block for block in blocks("python") if "grpc" in block)
    program = tmp_path / "client.py"
    port = iris.wait_for_event("grpc.listening")["grpc_port"]
    program.write_text(text.replace("127.0.0.1:8081", f"127.0.0.1:{port}"))
    assert len(run(sys.executable, str(program)).splitlines()) == 3


def test_the_example_runs(iris: RunningServer) -> None:
    told = run(sys.executable, str(ROOT / "examples/clients/predict_client.py"), PREDICTOR_URL=iris.url)
    assert (told.count("predictions"), "422 {'detail': 'inputs cannot be empty'}" in told) == (4, True)


def test_the_flags_of_a_split_are_taken() -> None:
    (command,) = (block for block in blocks("bash") if "--version-weight" in block)
    words = command.replace("\\\n", " ").split()
    settings = parse(words[words.index("serve") + 1 :], {})
    assert settings.model.version_weights == {"v1.2.0": 10, "v1.1.0": 90}


def test_routes_and_limits_are_on_the_page() -> None:
    for route in PROTOCOL.routes:
        assert f"`{route.method} {route.pattern}`" in PAGE
    assert PROTOCOL.limits is not None
    bound = PROTOCOL.limits(parse(["--model-path", "x"], {}))
    assert f"larger than {bound.max_bytes >> 20} MB" in PAGE
    assert f"more than {bound.requests_per_minute} requests a minute" in PAGE
    assert f"a sequence longer than {bound.max_sequence_length}" in PAGE
    assert f"longer than {bound.timeout_s:g} s" in PAGE
    assert f"More than {bound.messages_per_second} messages a second" in PAGE
    assert f"more than {MAX_NUMBERS:,} numbers" in PAGE
    assert f"Up to {MAX_IN_FLIGHT} messages" in PAGE

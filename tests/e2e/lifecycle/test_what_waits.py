"""What a start does not wait for: modules that its model does not need, other dialects."""

from pathlib import Path

import pytest
from tests.conftest import Serve
from tests.e2e.lifecycle.models import body, write_signed
from tests.onnx_models import write_add_sub
from tests.serving import RunningServer

PROFILED = {"PYTHONPROFILEIMPORTTIME": "1"}  # Python names each module on stderr, between the lines of the log
# What only `import_module` asks for is not named, but what that module imports in turn is.
WAITING = {
    "aiohttp", "argparse", "bz2", "email", "grpc", "hashlib", "hmac", "http.client", "importlib.metadata", "lzma",
    "multiprocessing", "numpy.ma", "numpy.random", "numpy.testing", "opentelemetry",
    "pilotlight_predictor.metrics.gpu_readings", "pilotlight_predictor.frontends.http.aiohttp_server",
    "pilotlight_predictor.protocols.generate", "pilotlight_predictor.protocols.v1_codec",
    "pilotlight_predictor.protocols.openai.completions",
    "pilotlight_predictor.protocols.plain_predict.batch_and_stream",
    "pilotlight_predictor.frontends.grpc.dispatcher", "pilotlight_predictor.storage.store_interface",
    "pilotlight_predictor.observability.tracing",
    "pilotlight_predictor.frontends.http.access_log", "pynvml", "random", "shutil", "tempfile", "unittest", "yaml",
}  # fmt: skip
HEAVY = {"msgspec", "numpy", "onnxruntime", "orjson"}

# Its load leaves a circle behind that only the collector can free; the answer says whether it is still there.
LITTERING = """
import weakref

import numpy as np

INPUTS = {{"x": ("FP32", [1])}}
OUTPUTS = {{"y": ("BOOL", [1])}}


class Litter:
    pass


litter = Litter()
litter.itself = litter
left = weakref.ref(litter)
del litter


def predict(x):
    return np.array([left() is not None])
"""


def imported(log: str) -> list[str]:
    return [line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time:")]


def before(event: str, server: RunningServer) -> set[str]:
    server.wait_for_event(event)
    return set(imported(server._log.read_text().partition(f'"event":"{event}"')[0]))


@pytest.fixture
def profiled(tmp_path: Path, serve: Serve) -> RunningServer:
    write_add_sub(tmp_path, "m")
    return serve(None, "--model-path", str(tmp_path / "m/1/model.onnx"), "--model-name", "m", env=PROFILED, ready=False)


def test_nothing_is_imported_before_ready_that_the_model_does_not_need(profiled: RunningServer) -> None:
    seen = before("ready", profiled)
    assert seen >= HEAVY
    assert sorted(seen & WAITING) == []


def test_the_port_is_open_before_anything_heavy_is_imported(profiled: RunningServer) -> None:
    seen = before("listening", profiled)
    assert "pilotlight_predictor.frontends.http.server" in seen
    assert sorted(seen & (HEAVY - {"orjson"} | WAITING)) == []  # orjson writes the line that says so


def test_a_dialect_that_the_start_did_not_wait_for_answers_its_first_request(profiled: RunningServer) -> None:
    profiled.wait_for_event("ready")
    assert profiled.get("/v1/models").json()["models"] == ["m"]
    assert "pilotlight_predictor.protocols.v1_codec" in imported(profiled._log.read_text())


def test_other_dialects_come_unasked_too(profiled: RunningServer) -> None:
    profiled.wait_for_event("ready")
    profiled.wait_until(
        lambda: (
            {"pilotlight_predictor.protocols.openai.completions", "aiohttp"} <= set(imported(profiled._log.read_text()))
        ),
        "done importing",
    )


def test_what_a_load_left_as_garbage_is_freed_all_the_same(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, LITTERING))
    server.wait_until(lambda: server.infer("m", body(1)).json()["outputs"][0]["data"] == [False], "freed")

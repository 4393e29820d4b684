"""Predictors that were forked: they are what a fresh process would have been, only sooner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.eventually import eventually
from tests.onnx_models import write_add_sub, write_python
from tests.predictor.bootstrap.forkservers import Forked, RunningPilotLight
from tests.predictor.zoo import GATE
from tests.serving import read_answer

WITNESS = """
import os, random, sys
import numpy as np
from pilotlight_predictor.core.threads import mapped_library

INPUTS = {"x": ("BYTES", [1])}
OUTPUTS = {"y": ("BYTES", [-1])}


def predict(x):
    print("asked", os.environ.get("WHO", ""))
    facts = [os.environ.get("WHO", ""), os.getcwd(), sys.path[0], random.random(), np.random.random(), sys.argv[-1]]
    facts.append(mapped_library("libscipy_openblas64_").scipy_openblas_get_num_threads64_())
    return {"y": np.array([str(fact).encode() for fact in facts], dtype=object)}
"""

DOUBLE = """
import torch

INPUTS = {"x": ("FP32", [-1])}
OUTPUTS = {"y": ("FP32", [-1])}


class Double(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * self.weight


def build():
    return Double()
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("repository")
    write_add_sub(folder, "add_sub", config="max_batch_size: 8")
    write_python(folder, "witness", WITNESS)
    write_python(folder, "gate", GATE)
    return str(folder)


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPilotLight]:
    """Python writes every import of its own and of its children to stderr, which is a child's log."""
    with RunningPilotLight(tmp_path_factory.mktemp("pilot"), "onnxruntime", interpreter=("-X", "importtime")) as made:
        yield made


def test_it_serves_and_imports_nothing_on_the_way(pilot: RunningPilotLight, repository: str) -> None:
    asked = time.monotonic()
    words = ("--load-model", "add_sub", "--model-control-mode", "explicit", "--grpc-port", "0")
    child = pilot.fork("--model-repository", repository, *words)
    ready = child.event("ready")
    assert ready["phases"]["total"] < time.monotonic() - asked + 0.1, "its time began with the fork"  # told in ticks
    tensors = [{"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]} for name in "ab"]
    answer = child.request("POST", "/v2/models/add_sub/infer", {"inputs": tensors})
    assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 8]
    child.event("grpc.listening")
    assert not imported(child)


def imported(child: Forked) -> list[str]:
    return [line.split("|")[-1].strip() for line in child.text().splitlines() if line.startswith("import time:")]


@pytest.mark.long
@pytest.mark.parametrize("family", ["torch-export", "skops"])
def test_a_family_has_imported_what_reading_its_files_takes(family: str, tmp_path: Path) -> None:
    model = tmp_path / "model.skops"
    if family == "torch-export":
        torch = pytest.importorskip("torch")
        model = tmp_path / "model.pt2"
        torch.export.save(torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.zeros(2, 4),)), model)
    else:
        from sklearn.linear_model import LogisticRegression
        from skops.io import dump

        dump(LogisticRegression().fit([[1.0], [2.0]], [0, 1]), model)
    with RunningPilotLight(tmp_path, family, interpreter=("-X", "importtime")) as pilot:
        child = pilot.fork("--model-path", str(model))
        child.event("ready")
        assert len(imported(child)) < 40, imported(child)


def test_both_frontends_and_the_metrics_answer(pilot: RunningPilotLight, repository: str) -> None:
    child = pilot.fork("--model-repository", repository)
    child.event("ready")
    tensors = [{"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]} for name in "ab"]
    assert child.request("POST", "/v2/models/add_sub/infer", {"inputs": tensors}, chunked=True).status == 200
    metrics = child.request("GET", "/metrics", port=child.event("listening")["metrics_port"])
    assert b'pilotlight_cold_start_seconds{phase="total"' in metrics.body


def test_commands_other_than_serving_run_in_a_fork(pilot: RunningPilotLight, repository: str, tmp_path: Path) -> None:
    fetched, missing = pilot.fork("fetch", f"{repository}/add_sub", str(tmp_path)), pilot.fork("compile", "missing.pt2")
    assert (fetched.exit_status(), missing.exit_status()) == ("0\n", "1\n")
    assert (tmp_path / "config.pbtxt").is_file()
    assert "missing.pt2: there is no such file or folder" in missing.text()


def test_two_at_once_keep_their_environments_and_draw_different_numbers(
    pilot: RunningPilotLight, repository: str
) -> None:
    children = [pilot.fork("--model-repository", repository, WHO=who, TZ="UTC") for who in ("first", "second")]
    facts = [child.infer("witness", "x", "BYTES", ["?"]) for child in children if child.event("ready")]
    assert [found[0] for found in facts] == ["first", "second"]
    assert {found[1] for found in facts} == {found[2] for found in facts} == {str(pilot.folder)}
    assert facts[0][3] != facts[1][3]
    assert facts[0][4] != facts[1][4]
    assert facts[0][5] == repository
    assert "asked second" in children[1].text(), "what a model prints is in the log"


def test_sigterm_lets_it_answer_what_is_in_flight(pilot: RunningPilotLight, repository: str, tmp_path: Path) -> None:
    child, gate = pilot.fork("--model-repository", repository), tmp_path / "open"
    child.event("ready")
    tensor = {"name": "path", "datatype": "BYTES", "shape": [1], "data": [str(gate)]}
    with child.send("POST", "/v2/models/gate/infer", {"inputs": [tensor]}) as connection:
        in_flight = b"pilotlight_requests_in_flight"
        eventually(lambda: _value(child.request("GET", "/metrics").body, in_flight) == 1, "the request to be in flight")
        os.kill(child.pid, signal.SIGTERM)
        child.event("stopping")
        gate.touch()
        assert read_answer(connection).status == 200
    assert child.exit_status() == "0\n"


def test_it_has_a_session_of_its_own_and_nothing_of_its_parents(pilot: RunningPilotLight, repository: str) -> None:
    child = pilot.fork("--model-repository", repository)
    child.event("ready")
    assert os.getsid(child.pid) == child.pid
    command = Path(f"/proc/{child.pid}/cmdline").read_text().split("\0")
    assert command[1:4] == ["-m", "pilotlight_predictor", "--host"], "`ps` shows a predictor"
    parents = {_inode(path) for path in Path(f"/proc/{pilot.process.pid}/fd").iterdir()}
    shared = parents & {_inode(path) for path in Path(f"/proc/{child.pid}/fd").iterdir()}
    assert not {name for name in shared if name.startswith(("socket:", "pipe:"))}
    assert os.readlink(f"/proc/{child.pid}/fd/0") == os.devnull
    status = Path(f"/proc/{child.pid}/status")  # starting a thread blocks signals for a moment
    eventually(lambda: "SigBlk:\t0000000000000000" in status.read_text(), "signals to reach it")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="numpy takes no more threads than there are cores")
def test_numpy_gets_the_threads_that_the_environment_asks_for(pilot: RunningPilotLight, repository: str) -> None:
    counts = []
    for wish in ({}, {"OPENBLAS_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}):
        child = pilot.fork("--model-repository", repository, WHO="?", **wish)
        child.event("ready")
        counts.append(child.infer("witness", "x", "BYTES", ["?"])[6])
    assert counts == [str(len(os.sched_getaffinity(0))), "1", "2"]


def test_a_torchscript_model_is_served_by_a_fork(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    _write_torchscript(tmp_path / "repository" / "double")
    with RunningPilotLight(tmp_path, "torch") as pilot:
        assert "OMP_NUM_THREADS" in pilot.try_fork(OMP_NUM_THREADS="1")["error"]
        child = pilot.fork("--model-repository", str(tmp_path / "repository"), "--device", "cpu")
        assert child.event("ready")["models"] == ["double"]
        assert child.infer("double", "x", "FP32", [1.0, 2.0]) == [2.0, 4.0]


def test_a_model_of_safetensors_is_served_by_a_fork_that_imports_nothing_of_it(tmp_path: Path) -> None:
    """Neither on the way to its first answer nor beside it, where an import would hold the answer up."""
    pytest.importorskip("torch")
    from safetensors.numpy import save_file

    folder = tmp_path / "double"
    folder.mkdir()
    (folder / "model.py").write_text(DOUBLE)
    save_file({"weight": np.array([2.0], np.float32)}, folder / "model.safetensors")
    with RunningPilotLight(tmp_path, "torch", interpreter=("-X", "importtime")) as pilot:
        child = pilot.fork("--model-path", str(folder), "--model-name", "m", "--device", "cpu", "--grpc-port", "0")
        child.event("ready")
        assert child.infer("m", "x", "FP32", [1.0, 2.0]) == [2.0, 4.0]
        child.event("grpc.listening")
        assert not imported(child)


def test_python_models_are_served_by_a_fork(tmp_path: Path, repository: str) -> None:
    with RunningPilotLight(tmp_path, "python") as pilot:
        child = pilot.fork("--model-repository", repository, WHO="python")
        child.event("ready")
        assert child.infer("witness", "x", "BYTES", ["?"])[0] == "python"


def _write_torchscript(folder: Path) -> None:
    """By a process of its own: torch warns as it traces, and is not needed here."""
    code = "import sys, torch; torch.jit.trace(lambda x: x * 2, torch.ones(2)).save(sys.argv[1])"
    (folder / "1").mkdir(parents=True)
    vector = "data_type: TYPE_FP32 dims: -1"
    (folder / "config.pbtxt").write_text(f'input {{ name: "x" {vector} }} output {{ name: "y" {vector} }}')
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(folder / "1" / "model.pt")], check=True)


def _value(metrics: bytes, name: bytes) -> float:
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name))


def _inode(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""

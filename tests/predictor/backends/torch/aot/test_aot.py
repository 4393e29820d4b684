"""Compiled models: made for this machine, answering as torch does, in a process that never imports torch."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from tests.serving import ROOT, RunningServer, json_tensor

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.torch.aot import backend
from pilotlight_predictor.backends.torch.aot.device_memory import aligned_offsets
from pilotlight_predictor.backends.torch.aot.package_lookup import find_package, sha256
from pilotlight_predictor.core.tensors import tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.gpu.safetensors_header import TensorInfo
from pilotlight_predictor.repository.model_config import ModelConfig

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # a minute of compiling, far more on a busy machine
if shutil.which("g++") is None:
    pytest.skip("AOTInductor needs g++", allow_module_level=True)

SOURCES = ROOT / "predictor/pilotlight_predictor/backends/torch"
MODULE = """
import torch

INPUTS = {"x": ("FP32", [-1, 4])}
OUTPUTS = {"y": ("FP32", [-1, 3]), "largest": ("INT64", [-1])}


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 16)
        self.second = torch.nn.Linear(16, 3)
        self.norm = torch.nn.Parameter(torch.ones(16))
        self.register_buffer("gain", torch.ones(16), persistent=False)  # equal to another tensor, by chance
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]), persistent=False)

    def forward(self, x):
        y = self.second(torch.relu(self.first(x)) * self.norm * self.gain) * self.scale
        return y, y.argmax(1)


def build():
    return Small()
"""


@pytest.fixture(scope="module")
def model(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of one with its package, compiled once for these sources: later runs on this machine find it again."""
    sources = b"".join(path.read_bytes() for path in (Path(__file__), *sorted(SOURCES.rglob("*.py"))))
    machine = f"{torch.__version__} {sys.version} {torch.backends.cpu.get_cpu_capability()}"
    key = hashlib.sha256(sources + machine.encode()).hexdigest()[:16]
    kept, folder = pytestconfig.cache.mkdir("compiled-models"), tmp_path_factory.mktemp("compiled") / "model"
    if not (kept / key).exists():
        made = Path(mkdtemp(dir=kept))
        compile_model(made, tmp_path_factory)
        with suppress(OSError):  # another process was faster
            made.rename(kept / key)
    return shutil.copytree(kept / key, folder)


def compile_model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "model.py").write_text(MODULE)
    torch.manual_seed(3)
    shapes = {"first.weight": (16, 4), "first.bias": (16,), "second.weight": (3, 16), "second.bias": (3,)}
    drawn = {name: torch.randn(shape) for name, shape in shapes.items()}
    safetensors.save_file(drawn | {"norm": torch.ones(16)}, folder / "model.safetensors")
    command = [sys.executable, "-m", "pilotlight_predictor", "compile", str(folder), "--device", "cpu", "-o", "json"]
    environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=900)
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)["path"]).parent == folder / "aot"


@pytest.fixture(scope="module")
def both(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunningServer]]:
    """The same model, compiled and run by torch."""
    flags = ("--model-path", str(model), "--model-name", "small", "--device", "cpu")
    compiled = RunningServer(tmp_path_factory.mktemp("compiled-log"), *flags, "--trust-compiled", str(model))
    plain = RunningServer(tmp_path_factory.mktemp("plain-log"), *flags)
    yield compiled, plain
    compiled.stop()
    plain.stop()


def answers(server: RunningServer, rows: list[list[float]]) -> tuple[np.ndarray, list[int]]:
    flat = [value for row in rows for value in row]
    answer = server.infer("small", {"inputs": [json_tensor("x", "FP32", [len(rows), 4], flat)]})
    assert answer.status == 200, answer.body
    outputs = {each["name"]: each for each in answer.json()["outputs"]}
    return np.reshape(outputs["y"]["data"], outputs["y"]["shape"]), outputs["largest"]["data"]


def libraries(server: RunningServer) -> str:
    return Path(f"/proc/{server.process.pid}/maps").read_text()


@pytest.mark.parametrize("rows", [1, 2, 7, 32])
def test_a_compiled_model_answers_as_torch_does(both: tuple[RunningServer, RunningServer], rows: int) -> None:
    asked = np.random.default_rng(rows).normal(size=(rows, 4)).round(3).tolist()
    (ours, best), (theirs, wanted) = (answers(server, asked) for server in both)
    assert best == wanted
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_nobody_imports_torch_for_it(both: tuple[RunningServer, RunningServer]) -> None:
    compiled, plain = both
    answers(compiled, [[1, 2, 3, 4]])
    assert "libtorch_cpu.so" in libraries(compiled)
    assert "libtorch_python.so" not in libraries(compiled)
    assert "libtorch_python.so" in libraries(plain)


def test_a_package_that_nobody_vouched_for_is_not_run(both: tuple[RunningServer, RunningServer]) -> None:
    said = both[1].wait_for_event("compiled.unused")["message"]
    assert "native code that is not trusted" in said
    assert "--trust-compiled" in said
    assert said.endswith("torch runs the model")


def test_native_code_is_given_only_what_it_was_compiled_for(model: Path) -> None:
    spec = LoadSpec(ModelConfig(name="small"), 1, model / "model.safetensors", model, trusted_compiled=(str(model),))
    instance = backend.load(spec)
    try:
        for array, words in (
            (np.zeros((2, 5), np.float32), "must be FP32 of shape [-1, 4]"),
            (np.zeros((2, 4), np.float64), "is FP64"),
            (np.zeros((4,), np.float32), "of shape [4]"),
            (np.zeros((65, 4), np.float32), "compiled for 1 to 64"),
            (np.zeros((0, 4), np.float32), "has 0 rows"),
        ):
            with pytest.raises(BadRequest, match=re.escape(words)):
                instance.run({"x": tensor(array)})
        twin = instance.clone()
        instance.close()
        assert twin.run({"x": tensor(np.ones((64, 4), np.float32))})["y"].array.shape == (64, 3)
    finally:
        twin.close()


def test_a_configuration_cannot_ask_for_larger_batches_than_were_compiled(model: Path) -> None:
    config = ModelConfig(name="small", max_batch_size=128)
    with pytest.raises(LoadFailed, match="--largest-batch 128"):
        backend.load(LoadSpec(config, 1, model / "model.safetensors", model, trusted_compiled=(str(model),)))


def retrained(model: Path, folder: Path, *names: str) -> Path:
    """The model with twice the values of these tensors."""
    shutil.copytree(model, folder)
    found = safetensors.load_file(model / "model.safetensors")
    doubled = {name: value * 2 if name in names else value.clone() for name, value in found.items()}
    safetensors.save_file(doubled, folder / "model.safetensors")
    return folder


def test_weights_that_were_trained_further_need_no_new_package(model: Path, tmp_path: Path) -> None:
    folder = retrained(model, tmp_path / "m", "first.weight", "first.bias", "second.weight", "norm")
    instance = backend.load(LoadSpec(ModelConfig(name="m"), 1, folder, folder, trusted_compiled=(str(tmp_path),)))
    try:
        found = instance.run({"x": tensor(np.array([[1, 2, 3, 4]], np.float32))})["y"].array
    finally:
        instance.close()
    weights, x = safetensors.load_file(folder / "model.safetensors"), torch.tensor([[1.0, 2, 3, 4]])
    hidden = torch.relu(x @ weights["first.weight"].T + weights["first.bias"]) * weights["norm"]
    wanted = (hidden @ weights["second.weight"].T + weights["second.bias"]) * torch.tensor([1.0, 2, 3])
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-4)


def test_tensors_that_the_compiler_wrote_into_the_code_must_stay_as_they_are(model: Path, tmp_path: Path) -> None:
    folder = retrained(model, tmp_path / "m", "second.bias")
    found = find_package(folder, "cpu", 0, [str(tmp_path)])
    assert "the values of second.bias differ" in str(found)


def changed(folder: Path, **fields: object) -> None:
    file = next(folder.glob("aot/*/package.json"))
    document = json.loads(file.read_text())
    document["machine"] |= fields
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"torch": "1.0.0"}, "compiled for torch 1.0.0, this machine has"),
        ({"isa": "avx1024"}, "compiled for avx1024, and this processor has no"),
        ({"glibc": "9.99"}, "compiled with glibc 9.99"),
        ({"arch": "riscv64"}, "compiled for processor riscv64"),
        ({"device": "cuda", "sm": "9.0"}, "compiled for device cuda"),
    ],
)
def test_a_package_for_another_machine_says_so(
    model: Path, tmp_path: Path, fields: dict[str, object], words: str
) -> None:
    shutil.copytree(model, tmp_path / "m")
    changed(tmp_path / "m", **fields)
    found = find_package(tmp_path / "m" / "model.safetensors", "cpu", 0, [str(tmp_path)])
    assert isinstance(found, str)
    assert words in found


def test_a_package_is_not_used_for_another_module(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "m")
    (tmp_path / "m" / "model.py").write_text(MODULE.replace("relu", "tanh"))
    found = find_package(tmp_path / "m" / "model.safetensors", "cpu", 0, [str(tmp_path)])
    assert "model.py differs" in str(found)


def test_trust_by_hash_is_of_the_file_itself(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "m")
    weights, library = tmp_path / "m" / "model.safetensors", next((tmp_path / "m").glob("aot/*/model.so"))
    pinned = sha256(library)
    assert isinstance(find_package(weights, "cpu", 0, [pinned]), tuple)
    library.write_bytes(library.read_bytes() + b"x")
    assert "differs from its manifest" in str(find_package(weights, "cpu", 0, [pinned]))
    assert "not trusted" in str(find_package(weights, "cpu", 0, ["0" * 64, str(tmp_path / "elsewhere")]))


def test_a_model_that_says_nothing_of_its_inputs_is_told_what_to_add(model: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODULE.partition("INPUTS")[0] + "class" + MODULE.partition("class")[2])
    shutil.copy(model / "model.safetensors", tmp_path)
    command = [sys.executable, "-m", "pilotlight_predictor", "compile", str(tmp_path), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "add INPUTS = " in done.stderr


def test_tensors_that_lie_crooked_in_their_file_get_places_that_kernels_may_read() -> None:
    places = {
        "a": TensorInfo("F32", (10,), 0, 40),
        "b": TensorInfo("F32", (3,), 40, 52),
        "c": TensorInfo("F32", (4,), 52, 68),
    }
    offsets, size = aligned_offsets(places)
    assert offsets == {"a": 0, "b": 48, "c": 64}
    assert size == 80

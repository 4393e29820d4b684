"""What is begun ahead of a load is found by that load, once, and by no other."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pilotlight_predictor.backends.torch.aot import early_start
from pilotlight_predictor.config import ModelSettings
from pilotlight_predictor.errors import PredictorError


@pytest.fixture
def early() -> Iterator[ModuleType]:
    """As a fresh process has it: the module keeps what was begun."""
    found = importlib.util.spec_from_file_location("early", early_start.__file__)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    yield module
    module.take_transfer(Path("/nowhere"), 0)  # what is under way ends with the test


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    """The file by which a GPU is known to be there. That it is none shows when the weights are waited for."""
    path = tmp_path / "nvidia0"
    path.touch()
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def settings(path: Path, device: str = "auto") -> ModelSettings:
    return ModelSettings(name="m", path=str(path), device=device)


@pytest.mark.parametrize("asked", ["", "model.safetensors"])
def test_a_load_finds_the_weights_that_are_on_their_way_once(
    early: ModuleType, model: Path, gpu: Path, asked: str
) -> None:
    assert early.start(settings(model), gpu)
    moving = early.take_transfer(model / asked, 0)
    assert (moving.path, moving.device) == (model / "model.safetensors", 0)
    assert early.take_transfer(model / asked, 0) is None


def test_what_goes_wrong_ahead_of_a_load_is_told_by_the_load(early: ModuleType, model: Path, gpu: Path) -> None:
    (model / "model.safetensors").write_bytes(b"no weights")
    early.start(settings(model), gpu)
    moving = early.take_transfer(model, 0)
    if moving is not None:
        with pytest.raises((PredictorError, OSError, RuntimeError)):
            moving.wait()


def test_another_device_and_another_model_get_nothing_of_it(early: ModuleType, model: Path, gpu: Path) -> None:
    early.start(settings(model, "cuda:1"), gpu)
    assert early.take_transfer(model, 0) is None
    assert early.take_transfer(model.parent, 1) is None
    assert early.take_transfer(model, 1) is not None


def test_nothing_travels_where_there_is_no_gpu_or_none_is_wanted(early: ModuleType, model: Path, gpu: Path) -> None:
    early.start(settings(model), gpu.with_name("nvidia1"))
    early.start(settings(model, "cpu"), gpu)
    assert early.take_transfer(model, 0) is None


def test_after_the_first_load_nothing_is_kept_any_more(early: ModuleType, model: Path, gpu: Path) -> None:
    early.start(settings(model), gpu)
    early.take_transfer(model.parent, 0)  # until it has begun
    early.discard_unused()
    assert early.take_transfer(model, 0) is None
    early.start(settings(model), gpu)
    assert early.take_transfer(model, 0) is None, "a reload moves its weights itself"


def test_onnxruntimes_library_is_asked_of_the_disk_before_it_is_imported(
    early: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    asked: list[str] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, *_: asked.append(os.readlink(f"/proc/self/fd/{file}")))
    monkeypatch.delitem(sys.modules, "onnxruntime")
    assert not early.start(settings(tmp_path / "model.onnx"))
    early.take_transfer(tmp_path, 0)
    assert ["onnxruntime_pybind11_state" in path for path in asked] == [True]


def test_a_library_that_is_in_memory_is_not_asked_for(
    early: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: pytest.fail("asked for what is there"))
    early.start(settings(tmp_path / "model.onnx"))
    assert early.take_transfer(tmp_path, 0) is None


def test_torchs_libraries_are_loaded_after_extension_modules_and_without_torch(model: Path) -> None:
    """In a process of its own, which has none of them yet."""
    pytest.importorskip("torch")
    script = f"""
import sys
from pathlib import Path
from pilotlight_predictor.backends.torch.aot import early_start as early
from pilotlight_predictor.config import ModelSettings

assert early.start(ModelSettings(name="m", path={str(model)!r}, device="cpu"))
early.take_transfer(Path("/nowhere"), 0)
maps = Path("/proc/self/maps").read_text()
print("libtorch_cpu" in maps, "numpy" in sys.modules)
early.load_libraries()
for thread in __import__("threading").enumerate():
    if thread.name == "pilotlight-early":
        thread.join()
maps = Path("/proc/self/maps").read_text()
print("libtorch_cpu" in maps, "libtorch_python" in maps, "numpy" in sys.modules, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["False False", "True True True False"], done.stderr

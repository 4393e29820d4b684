"""Backends whose runtime is missing say so, and looking one up imports nothing heavy."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pilotlight_predictor.backends import caffe2, tensorflow, tensorrt
from pilotlight_predictor.core.backend_table import TABLE, find_backend, module
from pilotlight_predictor.errors import LoadFailed


@pytest.mark.skipif(find_spec("tensorflow") is not None, reason="the tensorflow extra is installed")
def test_tensorflow_names_its_extra(tmp_path: Path, spec: Any) -> None:
    with pytest.raises(LoadFailed, match=r"need the tensorflow extra: .* install .*\[tensorflow\]'"):
        tensorflow.load(spec(tmp_path))


@pytest.mark.skipif(find_spec("tensorrt") is not None, reason="the tensorrt extra is installed")
def test_tensorrt_names_its_extra(tmp_path: Path, spec: Any) -> None:
    with pytest.raises(LoadFailed, match=r"needs the tensorrt extra: .* install .*\[tensorrt\]'"):
        tensorrt.load(spec(tmp_path / "model.plan"))


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ([], r"two files: model\.netdef and init_model\.netdef are not in version 1"),
        (["model.netdef"], r"two files: init_model\.netdef is not in version 1"),
        (["model.netdef", "init_model.netdef"], "no Caffe2 runtime exists to install: convert it to ONNX"),
    ],
)
def test_caffe2_says_what_is_missing_or_how_to_convert(
    tmp_path: Path, spec: Any, there: list[str], message: str
) -> None:
    for name in there:
        (tmp_path / name).touch()
    with pytest.raises(LoadFailed, match=message):
        caffe2.load(spec(tmp_path / "model.netdef"))


def test_each_row_of_the_table_is_a_module() -> None:
    for name in ("torch", "python", "tensorflow_savedmodel", "tensorrt_plan", "caffe2_netdef"):
        found = find_backend(name)
        assert found is not None
        assert callable(module(found).load)


def test_looking_backends_up_imports_no_runtime() -> None:
    modules = sorted({found.module for found in TABLE} - {"pilotlight_predictor.scheduling.ensemble"})
    code = f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "tensorflow", "tensorrt", "onnxruntime", "kserve", "safetensors"}
    assert not heavy & set(done.stdout.split())

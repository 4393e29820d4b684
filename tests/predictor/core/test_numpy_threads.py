"""numpy's BLAS: one thread while a server starts, all of them for models that compute by numpy."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.conftest import Serve
from tests.onnx_models import write_python
from tests.serving import json_tensor

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor has one thread anyway")

START = """
import os, sys
from pilotlight_predictor.core import threads as numpy_threads
with numpy_threads.single_blas_thread():
    import numpy
count = numpy_threads.mapped_library("libscipy_openblas64_").scipy_openblas_get_num_threads64_
print(count(), os.environ.get("OPENBLAS_NUM_THREADS"))
numpy_threads.ensure_blas_threads()
print(count())
"""
COUNTING = """
import os

import numpy as np
from pilotlight_predictor.core.threads import mapped_library

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("INT64", [2])}


def predict(x):
    left = "OPENBLAS_NUM_THREADS" in os.environ
    return np.array([mapped_library("libscipy_openblas64_").scipy_openblas_get_num_threads64_(), left], dtype=np.int64)
"""


def printed(env: Mapping[str, str]) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", START], env={**clean, **env}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_start_has_one_and_gives_the_others_back() -> None:
    assert printed({}) == ["1 None", str(len(os.sched_getaffinity(0)))]


def test_a_number_that_somebody_set_stands() -> None:
    assert printed({"OPENBLAS_NUM_THREADS": "2"}) == ["2 2", "2"]


def test_a_python_model_finds_all_of_them(tmp_path: Path, serve: Serve) -> None:
    write_python(tmp_path, "m", COUNTING)
    server = serve(tmp_path)
    answer = server.infer("m", {"inputs": [json_tensor("x", "FP32", [1], [1.0])]})
    assert answer.json()["outputs"][0]["data"] == [len(os.sched_getaffinity(0)), 0]

"""Importing onnxruntime for a predictor starts no thread that tells its maker what runs here."""

import os
import subprocess
import sys

import pytest

CODE = """
import os
from pilotlight_predictor.backends.onnxruntime import prepare
prepare()
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_onnxruntime_sends_nothing_to_anybody_unless_asked_to() -> None:
    env = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    env["OPENBLAS_NUM_THREADS"] = "1"  # numpy's own pool apart
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.split() == ["1"]

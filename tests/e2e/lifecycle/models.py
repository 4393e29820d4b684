"""Models that the tests of the server's life steer by files in a folder of signs."""

from pathlib import Path
from typing import Any

from tests.onnx_models import write_python
from tests.serving import json_tensor

# Holds each request until `go` exists, but answers zeros (the warm-up) at once. Leaves a sign for each that began.
HELD = """
import pathlib
import time

SIGNS = pathlib.Path({signs!r})
INPUTS = {{"x": ("FP32", [1])}}
OUTPUTS = {{"y": ("FP32", [1])}}


def predict(x):
    value = float(x[0])
    if value < 0:
        raise ValueError("a secret of the model")
    if value:
        with (SIGNS / "order").open("a") as order:  # times of files are too coarse to tell who was first
            order.write(f"{{value:g}} ")
        (SIGNS / f"began {{value:g}}").touch()
        while not (SIGNS / "go").exists():
            time.sleep(0.005)
    return {{"y": x * 2}}
"""
# Says that its load began, and goes on with it when told to.
SLOW_LOAD = """
import pathlib
import time

SIGNS = pathlib.Path({signs!r})
(SIGNS / "loading").touch()
while not (SIGNS / "go").exists():
    time.sleep(0.005)
INPUTS = {{"x": ("FP32", [1])}}
OUTPUTS = {{"y": ("FP32", [1])}}


def predict(x):
    return {{"y": x * 2}}
"""


def write_signed(folder: Path, source: str, name: str = "m", config: str = "") -> Path:
    """The repository; its signs lie in `folder`."""
    write_python(folder / "models", name, source.format(signs=str(folder)), config)
    return folder / "models"


def body(value: float, **fields: Any) -> dict[str, Any]:
    return {"inputs": [json_tensor("x", "FP32", [1], [value])], **fields}

"""Models that the tests of the predictor's dialects ask."""

from pathlib import Path

from tests.onnx_models import ONNX_TYPES, Dims, write_add_sub, write_identity, write_model, write_python

LABELS = "zero\none\ntwo\n"
LABELLED = """
max_batch_size: 8
output [ { name: "sum" label_filename: "labels.txt" }, { name: "difference" } ]
"""
# ONNX strings are UTF-8; bytes that are not need a model that only passes them on.
ECHO = """
INPUTS = {"x": ("BYTES", [-1])}
OUTPUTS = {"y": ("BYTES", [-1])}


def predict(x):
    return {"y": x}
"""
# Sleeps as long as it is told to, or fails when told so.
MOODY = """
import time

INPUTS = {"seconds": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


def predict(seconds):
    if seconds[0] < 0:
        raise RuntimeError("secret: the model's own words")
    time.sleep(float(seconds[0]))
    return {"y": seconds}
"""

# Answers once the file that the client names is there.
GATE = """
import os
import time

INPUTS = {"path": ("BYTES", [1])}
OUTPUTS = {"path": ("BYTES", [1])}


def predict(path):
    while path[0] and not os.path.exists(path[0]):  # the warm-up has no path
        time.sleep(0.005)
    return {"path": path}
"""


def write_zoo(repository: Path) -> Path:
    """identity_<datatype> of one variable dimension, and a few with a shape of their own."""
    for datatype in ONNX_TYPES:
        write_identity(repository, f"identity_{datatype.lower()}", datatype)
    write_identity(repository, "matrix", "FP32", ("rows", "columns"))
    write_identity(repository, "scalar", "FP32", ())
    write_identity(repository, "image", "FP32", ("batch", 3, 224, 224), "max_batch_size: 4")
    write_identity(repository, "ümläut & co", "FP32", ("batch", 2), "")
    folder = write_add_sub(repository, "add_sub", config=LABELLED)
    (folder / "labels.txt").write_text(LABELS)
    write_add_sub(repository, "plain_add_sub", "INT32", "max_batch_size: 0")
    write_identity(repository, "two_versions", "INT32", ("n",), "max_batch_size: 0 version_policy { all {} }")
    negated = [("Neg", ["x"], ["y"])]
    write_model(repository, "two_versions", negated, {"x": ("INT32", ("n",))}, {"y": ("INT32", ("n",))}, version=2)
    loose = [("Add", ["a", "b"], ["y"])]
    inputs: dict[str, tuple[str, Dims]] = {"a": ("FP32", ("n",)), "b": ("FP32", ("m",))}
    write_model(repository, "loose", loose, inputs, {"y": ("FP32", ("k",))}, "max_batch_size: 0")
    write_python(repository, "echo", ECHO)
    write_python(repository, "moody", MOODY)
    return repository

"""A predictor with a model of each kind that the pages describe, and one whose names attack them."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.onnx_models import write_add_sub, write_identity, write_model, write_python
from tests.predictor.backends.text.tiny import text_model
from tests.predictor.in_process_server import write_ensemble, write_times
from tests.serving import RunningServer

START_S = 240.0  # transformers takes ten seconds of a core to import, and on a busy machine far longer
EXAMPLE = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}]}'
ATTACK = "<img src=x onerror=alert(1)>'; echo $(id) #"
EVIL_TENSOR = "</code></pre><script>alert(2)</script>'"
ECHO = 'INPUTS = {"x": ("BYTES", [-1])}\nOUTPUTS = {"y": ("BYTES", [-1])}\n\n\ndef predict(x):\n    return {"y": x}\n'
COUNTS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("i", np.array([i], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTS_CONFIG = """
backend: "python"
input [ { name: "n" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "i" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
LENGTHS = """
import numpy as np


def predict(text):
    return {"embedding": np.array([[len(item), 1.5] for item in text.ravel()], dtype=np.float32)}
"""
LENGTHS_CONFIG = """
backend: "python"
max_batch_size: 2
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def write_models(folder: Path, texts: Path) -> str:
    """Write the repository. Return the SHA-256 of its pickle."""
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    write_add_sub(folder, "add_sub")
    (write_identity(folder, "example", "FP32", ("batch", 4)) / "example.json").write_text(EXAMPLE)
    write_identity(folder, "image", "FP32", ("batch", 3, 224, 224), "max_batch_size: 4")
    write_identity(folder, "sequence", "FP32", ("batch", 2), "max_batch_size: 4 sequence_batching { }")
    evil = [("Identity", [EVIL_TENSOR], ["y"])]
    write_model(folder, ATTACK, evil, {EVIL_TENSOR: ("FP32", ("n",))}, {"y": ("FP32", ("n",))}, "max_batch_size: 0")
    write_python(folder, "echo", ECHO)
    write_python(folder, "counts", COUNTS, COUNTS_CONFIG)
    write_python(folder, "lengths", LENGTHS, LENGTHS_CONFIG)
    write_times(folder, "doubles", 2)
    write_ensemble(folder, "twice", "doubles", "doubles")
    for name, text in (("tiny", text_model(texts)), ("plain", text_model(texts, steps=1, chats=False))):
        (folder / name).mkdir()
        (folder / name / "1").symlink_to(text, target_is_directory=True)
    pickled = folder / "flowers" / "1" / "model.joblib"
    pickled.parent.mkdir(parents=True)
    joblib.dump(LogisticRegression(max_iter=300).fit(*load_iris(return_X_y=True)), pickled)
    return hashlib.sha256(pickled.read_bytes()).hexdigest()


@pytest.fixture(scope="package")
def pages(
    tmp_path_factory: pytest.TempPathFactory, text_models: Path, serve_session: Callable[..., RunningServer]
) -> RunningServer:
    """No test may change its models."""
    folder = tmp_path_factory.mktemp("pages")
    digest = write_models(folder, text_models)
    server = serve_session(folder, "--threads", "1", "--trust-pickle", f"model.joblib={digest}", ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready", START_S)
    return server

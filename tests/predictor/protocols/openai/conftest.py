"""A predictor with models that speak OpenAI's dialect, and OpenAI's own client as a judge."""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from tests.predictor.backends.text.tiny import text_model
from tests.serving import RunningServer

START_S = 240.0  # transformers takes ten seconds of a core to import, and on a busy machine far longer
# Says what it was given: how a vision-language model sees a chat.
LOOKS = """
import json
import numpy as np

INPUTS = {"messages": ("BYTES", [1]), "prompt": ("BYTES", [1]), "images": ("BYTES", [-1]), "videos": ("BYTES", [-1]),
          "sampling_parameters": ("BYTES", [1])}
OUTPUTS = {"text_output": ("BYTES", [1])}


class Model:
    def execute(self, inputs):
        told = {
            "prompt": inputs["prompt"][0].decode(),
            "images": [len(item) for item in inputs.get("images", [])],
            "videos": [item.decode(errors="replace") for item in inputs.get("videos", [])],
            "messages": json.loads(inputs["messages"][0]),
            "sampling": json.loads(inputs["sampling_parameters"][0]),
        }
        return {"text_output": np.array([json.dumps(told)], dtype=object)}
"""
LOOKS_CONFIG = """
backend: "python"
input [
  { name: "messages" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "images" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "videos" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
# Vectors that tell which text they are of.
LENGTHS = """
import numpy as np


def predict(text):
    rows = [[len(item), item[0] if item else 0, 1.5] for item in text.ravel()]
    return {"embedding": np.array(rows, dtype=np.float32), "prompt_tokens": np.array([[len(r)] for r in text.ravel()])}
"""
LENGTHS_CONFIG = """
backend: "python"
max_batch_size: 2
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "embedding" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "prompt_tokens" data_type: TYPE_INT64 dims: [ 1 ] }
]
"""
ADDS = 'INPUTS = {"x": ("FP32", [-1])}\nOUTPUTS = {"y": ("FP32", [-1])}\n\n\ndef predict(x):\n    return x + 1\n'

ROWS = "def predict(texts: list[str]):\n    return [[1.5] for _ in texts]\n"


def write_speakers(folder: Path, kept: Path) -> Path:
    for name, source, config in (("looks", LOOKS, LOOKS_CONFIG), ("lengths", LENGTHS, LENGTHS_CONFIG)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(source)
        (folder / name / "config.pbtxt").write_text(config)
    for name, source in (("adds", ADDS), ("rows", ROWS), ("rows_of_any", ROWS.replace(": list[str]", ""))):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(source)
    for name, made in (("tiny", text_model(kept)), ("plain", text_model(kept, steps=1, chats=False))):
        (folder / name).mkdir()
        (folder / name / "1").symlink_to(made, target_is_directory=True)
    return folder


@pytest.fixture(scope="session")
def speakers(tmp_path_factory: pytest.TempPathFactory, text_models: Path) -> Path:
    return write_speakers(tmp_path_factory.mktemp("speakers"), text_models)


@pytest.fixture(scope="session")
def speaking(speakers: Path, serve_session: Callable[..., RunningServer]) -> RunningServer:
    """No test may change its models."""
    server = serve_session(speakers, "--threads", "1", "--warmup", "none", ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready", START_S)
    return server


def client_of(server: RunningServer, path: str = "/v1") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}{path}", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="session")
def client(speaking: RunningServer) -> Iterator[openai.OpenAI]:
    with client_of(speaking) as made:
        yield made

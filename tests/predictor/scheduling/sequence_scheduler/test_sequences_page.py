"""The client and the configurations on the page work as they stand there."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.onnx_models import write_python
from tests.predictor.scheduling.sequence_scheduler.sequence_models import PATIENT, SUMS, TENSORS, write_sums
from tests.serving import RunningServer

from pilotlight_predictor.repository.config_reader import config_from_pbtxt
from pilotlight_predictor.repository.model_config import sequence_batching

PAGE = page_section("docs/reference/model-repository.md", "Sequences")
CONFIGS = re.findall(r"^```proto\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(CLIENT,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_client_of_the_page_is_answered_by_the_model_of_the_page(
    serve: Callable[..., RunningServer], tmp_path: Path
) -> None:
    config = CONFIGS[0].replace("output [ {", 'output [ { name: "BATCH" data_type: TYPE_STRING dims: [ 1 ] }, {')
    config = re.sub(r"max_sequence_idle_microseconds: \d+", PATIENT, config)
    write_python(tmp_path, "sums", SUMS, 'backend: "python"\n' + config)
    server = serve(tmp_path)
    command = [sys.executable, "-c", CLIENT.replace("127.0.0.1:8080", server.address)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["[[2]]", "[[5]]", "[[10]]"], done.stderr[-3000:]


@pytest.mark.parametrize("text", CONFIGS)
def test_a_configuration_of_the_page_is_read(text: str) -> None:
    found = sequence_batching(config_from_pbtxt(text, "config.pbtxt"))
    assert found.controls or found.states


def test_an_ensemble_hands_the_sequence_on(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    write_sums(tmp_path, "sums", f"direct {{ }} {PATIENT}")
    steps = """
        step { model_name: "sums" model_version: -1 input_map { key: "INPUT" value: "INPUT" }
               output_map { key: "OUTPUT" value: "OUTPUT" } output_map { key: "BATCH" value: "BATCH" } }
    """
    (tmp_path / "whole" / "1").mkdir(parents=True)
    text = f'platform: "ensemble" max_batch_size: 4 {TENSORS} ensemble_scheduling {{ {steps} }}'
    (tmp_path / "whole" / "config.pbtxt").write_text(text)
    server = serve(tmp_path)
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [4]}
    marks = [{"sequence_start": True}, {}, {"sequence_end": True}]
    documents = [{"inputs": [tensor], "parameters": {"sequence_id": 3, **mark}} for mark in marks]
    answers = [server.infer("whole", document).json() for document in documents]
    assert [answer["outputs"][0]["data"] for answer in answers] == [[4], [8], [12]]

"""The same requests of sequences to NVIDIA's own Triton and to ours: the same answers, down to who shares a batch."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.differential.triton import running_triton
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.predictor.scheduling.sequence_scheduler.sequence_models import PATIENT, write_sums
from tests.serving import RunningServer, read_answer, rendered

MODELS = {"direct": f"direct {{ }} {PATIENT}", "oldest": f"oldest {{ max_candidate_sequences: 4 }} {PATIENT}"}
JUDGED = 'import os, sys\nsys.path.append(os.environ.get("JUDGE_SITE_PACKAGES", ""))\n'
# number, id, marks (s START, e END)
STEPS = [
    (1, 1, "s"), (2, 2, "s"), (2, 3, "s"), (3, 2, ""), (3, 1, "e"), (3, 3, ""), (5, 1, ""), (9, 2, "s"), (9, 2, "e"),
    (9, 3, "e"), (7, 0, "s"), (7, 8, "se"), (7, 8, ""),
]  # fmt: skip
FIRST_SENTENCES = ("must specify the START flag", "non-zero or non-empty correlation ID")


def write_models(folder: Path) -> Path:
    for name, strategy in MODELS.items():
        model = write_sums(folder, name, strategy) / "1" / "model.py"
        model.write_text(JUDGED + model.read_text())
    return folder


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Triton's, and ours."""
    folder = tmp_path_factory.mktemp("both")
    with ExitStack() as stack:
        try:
            triton = stack.enter_context(running_triton(write_models(folder / "theirs"), list(MODELS), folder))
        except Unavailable as reason:
            absent(reason)
        ours = stack.enter_context(RunningServer(folder, "--model-repository", str(write_models(folder / "ours"))))
        yield triton.port, ours.port


def ask(port: int, model: str, number: int, sequence: int, marks: str) -> tuple[int, Any]:
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [number]}
    parameters = {"sequence_id": sequence, "sequence_start": "s" in marks, "sequence_end": "e" in marks}
    path, document = f"/v2/models/{model}/infer", {"inputs": [tensor], "parameters": parameters}
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(rendered("POST", path, document, None, f"127.0.0.1:{port}"))
        answer = read_answer(connection)
    return answer.status, answer.json()


@pytest.mark.parametrize("model", MODELS)
def test_both_give_the_same_answers(ports: tuple[int, int], model: str) -> None:
    theirs, ours = ([ask(port, model, *step) for step in STEPS] for port in ports)
    assert ours == theirs
    refused = [document["error"] for status, document in ours if status == 400]
    assert len(refused) == 3
    assert all(any(sentence in error for sentence in FIRST_SENTENCES) for error in refused)

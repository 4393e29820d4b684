"""Threads of ONNX models: they take no processor while there is nothing to compute, unless a model asks for it."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.onnx_models import write_identity

from pilotlight_predictor.backends import onnxruntime
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig

MODELS = 30
LITTLE_S = 1.0  # of the processor; threads that spin use a tenth for each model, and to begin takes a little
PATIENCE_S = 60.0
SPINNING = "session.intra_op.allow_spinning"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_identity(tmp_path, "m", "FP32") / "1/model.onnx"


def threads() -> dict[str, tuple[str, float]]:
    """State and processor time of each thread of this process."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has already ended
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[task.name] = fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def used_until_asleep(others: set[str]) -> float:
    """Processor time that all but the others have used when the last of them has nothing to do any more."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        ours = [seen for name, seen in threads().items() if name not in others]
        if all(state != "R" for state, _ in ours):
            return sum(used for _, used in ours)
        assert time.monotonic() < deadline, "they never slept"


def test_many_models_with_threads_of_their_own_leave_the_processor_to_others(model: Path, spec: Any, ask: Any) -> None:
    before = set(threads())
    instances = [onnxruntime.load(spec(model, threads=3)) for _ in range(MODELS)]
    for instance in instances:
        instance.execute([ask(x=np.array([1.0], "f4"))])
    assert len(threads().keys() - before) >= 2 * MODELS
    assert used_until_asleep(before) < LITTLE_S


def options_of(instance: Any) -> Any:
    return instance._session.get_session_options()


def test_a_model_may_ask_for_threads_that_spin(model: Path, spec: Any) -> None:
    quiet = onnxruntime.load(spec(model))
    spinning = onnxruntime.load(spec(model, ModelConfig("m", parameters={SPINNING: "1"}), threads=1))
    assert options_of(quiet).get_session_config_entry(SPINNING) == "0"
    assert options_of(spinning).get_session_config_entry(SPINNING) == "1"


def test_a_configuration_says_how_many_threads_by_tritons_name(model: Path, spec: Any) -> None:
    instance = onnxruntime.load(spec(model, ModelConfig("m", parameters={"intra_op_thread_count": "4"})))
    assert options_of(instance).intra_op_num_threads == 4


def test_the_servers_number_of_threads_stands_over_that_of_a_configuration(model: Path, spec: Any) -> None:
    config = ModelConfig("m", parameters={"intra_op_thread_count": "4"})
    assert options_of(onnxruntime.load(spec(model, config, threads=2))).intra_op_num_threads == 2


@pytest.mark.parametrize(
    ("name", "text", "most"), [(SPINNING, "yes", 1), (SPINNING, "2", 1), ("intra_op_thread_count", "-1", 4096)]
)
def test_a_parameter_that_says_nothing_sensible_is_refused(
    model: Path, spec: Any, name: str, text: str, most: int
) -> None:
    with pytest.raises(LoadFailed, match=f"m: parameters {name} = '{text}', must be a whole number from 0 to {most}"):
        onnxruntime.load(spec(model, ModelConfig("m", parameters={name: text})))

"""With input validation set, values and lengths are refused that V2 otherwise takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serving import RunningServer, binary_body, json_tensor


@pytest.fixture(scope="module")
def strict(zoo: Path, serve_module: Callable[..., RunningServer]) -> RunningServer:
    return serve_module(zoo, "--input-validation-enabled=true", "--max-sequence-length", "5")


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_values_that_are_no_numbers_are_refused(strict: RunningServer, datatype: str, value: str) -> None:
    answer = strict.infer(f"identity_{datatype.lower()}", {"inputs": [json_tensor("x", datatype, [2], [1.0, value])]})
    assert (answer.status, "input 'x' has NaN or an infinity" in answer.error) == (400, True)


def test_they_are_refused_as_binary_too(strict: RunningServer) -> None:
    described = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    for values, status in (([1, 2], 200), ([1, np.nan], 400)):
        body, headers = binary_body({"inputs": [described]}, np.array(values, "<f4").tobytes())
        assert strict.infer("identity_fp32", body, headers).status == status


@pytest.mark.parametrize(
    ("model", "shape", "status"),
    [("identity_fp32", [5], 200), ("identity_fp32", [6], 400), ("matrix", [2, 6], 400), ("add_sub", [8, 4], 200)],
)
def test_a_sequence_has_a_longest_length_and_a_batch_has_not(
    strict: RunningServer, model: str, shape: list[int], status: int
) -> None:
    names = "ab" if model == "add_sub" else "x"
    inputs: list[Any] = [json_tensor(name, "FP32", shape, [1.0] * int(np.prod(shape))) for name in names]
    answer = strict.infer(model, {"inputs": inputs})
    assert answer.status == status
    assert status == 200 or "max_sequence_length" in answer.error


def test_without_the_setting_both_are_taken(server: RunningServer) -> None:
    document = {"inputs": [json_tensor("x", "FP32", [600], ["NaN"] * 600)]}
    assert server.infer("identity_fp32", document).status == 200

"""With input validation set, values and lengths are refused that V2 otherwise takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.in_process_server import House, play, write_times
from tests.serving import RunningServer, binary_body, json_tensor

from pilotlight_predictor.config import Limits
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.models.input_validation import sequence_length


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
    [
        ("identity_fp32", [5], 200), ("identity_fp32", [6], 400), ("matrix", [2, 6], 400), ("matrix", [6, 2], 200),
        ("add_sub", [8, 4], 200), ("image", [1, 3, 224, 224], 200),
    ],
)  # fmt: skip
def test_a_sequence_has_a_longest_length_and_a_batch_or_an_image_has_not(
    strict: RunningServer, model: str, shape: list[int], status: int
) -> None:
    names = "ab" if model == "add_sub" else "x"
    inputs: list[Any] = [json_tensor(name, "FP32", shape, [1.0] * int(np.prod(shape))) for name in names]
    answer = strict.infer(model, {"inputs": inputs})
    assert answer.status == status
    assert status == 200 or "max_sequence_length" in answer.error


def test_what_does_not_fit_the_model_is_told_first(strict: RunningServer) -> None:
    answer = strict.infer("identity_int32", {"inputs": [json_tensor("x", "FP32", [6], ["NaN"] * 6)]})
    assert (answer.status, "data-type is 'FP32'" in answer.error) == (400, True)


@pytest.mark.parametrize(
    ("shape", "batched", "expected"),
    [((), False, 0), ((9,), False, 9), ((9,), True, 0), ((2, 9), False, 9), ((2, 9), True, 9), ((3, 9, 9), False, 0),
     ((1, 3, 9), True, 0)],
)  # fmt: skip
def test_what_counts_as_a_sequence(shape: tuple[int, ...], batched: bool, expected: int) -> None:
    assert sequence_length(shape, batched) == expected


def test_the_limits_bind_whoever_hands_them_over_whatever_the_dialect(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        house = await House(tmp_path).start()
        limits = Limits(max_bytes=1, timeout_s=0.0, requests_per_minute=None, max_sequence_length=1)
        request = InferRequest("m", {"x": Tensor("FP32", np.array([[np.nan]], dtype="f4"))})
        with pytest.raises(BadRequest, match="input 'x' has NaN"):
            house.registry.find("m").infer(request, lambda answer: None, limits)

    play(scene())


def test_without_the_setting_both_are_taken(server: RunningServer) -> None:
    document = {"inputs": [json_tensor("x", "FP32", [600], ["NaN"] * 600)]}
    assert server.infer("identity_fp32", document).status == 200

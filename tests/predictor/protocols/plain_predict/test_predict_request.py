"""Bodies of /predict become requests that fit the model, or a sentence that names the field and its place."""

import json
from typing import Any

import numpy as np
import pytest

from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.core.tensors import Tensor, TensorSpec
from pilotlight_predictor.protocols.plain_predict.codec import (
    InvalidInput,
    PredictPart,
    encode_predictions,
    read_body,
    split_request,
)


def work(
    document: Any, shape: tuple[int, ...] = (-1, 2), datatype: str = "FP32", max_rows: int = 2
) -> list[PredictPart]:
    return split_request(read_body(json.dumps(document).encode()), "m", 1, TensorSpec("x", datatype, shape), max_rows)


def values(part: PredictPart) -> Any:
    return part.request.inputs["x"].array.tolist()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "Missing inputs"),
        ({"inputs": None}, "Missing inputs"),
        ([], "must be a JSON object"),
        ({"inputs": [1], "batch": [[1]]}, "inputs and batch are both set"),
        ({"inputs": []}, "inputs cannot be empty"),
        ({"inputs": 3}, "inputs = 3, must be a list of numbers"),
        ({"inputs": [1, "2"]}, 'inputs[1] = "2", must be a number'),
        ({"inputs": [1, None]}, "inputs[1] = null, must be a number"),
        ({"inputs": [True]}, "inputs[0] = True, must be a number"),
        ({"inputs": [[1]]}, "inputs[0] = [1], must be a number"),
        ({"inputs": [0, float("nan")]}, "inputs[1] = nan, must be a finite number"),
        ({"inputs": [float("-inf")]}, "inputs[0] = -inf, must be a finite number"),
        ({"inputs": [10**400]}, "must be a finite number"),
        ({"inputs": [0.0] * 10_001}, "inputs has 10001 numbers, the limit is 10000"),
        ({"batch": []}, "batch cannot be empty"),
        ({"batch": [1]}, "batch[0] = 1, must be a list of numbers"),
        ({"batch": [[1], []]}, "batch[1] cannot be empty"),
        ({"batch": [[1], [1, "a"]]}, 'batch[1][1] = "a", must be a number'),
        ({"batch": [[0.0] * 10_001]}, "batch[0] has 10001 numbers"),
        ({"batch": [[1]] * 10_001}, "batch has 10001 lists"),
        ({"inputs": [1], "model_version": 1}, "model_version = 1, must be text"),
        ({"inputs": [1], "sticky_key": []}, "sticky_key = [], must be text"),
    ],
)
def test_what_is_wrong_is_422_and_named(body: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_body(json.dumps(body).encode())
    assert sentence in str(caught.value)
    assert caught.value.status == 422


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b"\xff", b"[" * 100_000, b'{"inputs":[1' + b"1" * 5000 + b"]}x"])
def test_what_is_no_json_is_422_too(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="the body is not valid JSON"):
        read_body(body)


def test_one_list_is_one_row_and_a_batch_is_cut_where_the_models_ends() -> None:
    (one,) = work({"inputs": [1, 2]})
    assert (values(one), one.rows, one.lead) == ([[1, 2]], 1, True)
    cut = work({"batch": [[1, 2], [3, 4], [5, 6]]})
    assert [values(part) for part in cut] == [[[1, 2], [3, 4]], [[5, 6]]]


@pytest.mark.parametrize(
    ("shape", "max_rows", "count", "expected"),
    [
        ((-1, 2, 3), 4, 6, (1, 2, 3)),
        ((-1, -1), 4, 5, (1, 5)),
        ((-1, -1, 3), 4, 6, (1, 2, 3)),
        ((-1,), 4, 1, (1,)),
        ((-1,), 0, 3, (3,)),
        ((-1, 4), 0, 4, (1, 4)),
        ((-1, -1), 0, 4, (1, 4)),
        ((1, 3, 2), 0, 6, (1, 3, 2)),
        ((), 0, 1, ()),
    ],
)
def test_numbers_fill_the_models_shape(
    shape: tuple[int, ...], max_rows: int, count: int, expected: tuple[int, ...]
) -> None:
    (part,) = work({"inputs": [1.0] * count}, shape, max_rows=max_rows)
    assert part.request.inputs["x"].array.shape == expected


def test_lists_of_different_lengths_go_to_the_model_apart() -> None:
    cut = work({"batch": [[1], [2, 3]]}, (-1, -1), max_rows=8)
    assert [values(part) for part in cut] == [[[1]], [[2, 3]]]


@pytest.mark.parametrize(("shape", "must"), [((-1, 3), "must have 3"), ((-1, -1, 3), "must have a multiple of 3")])
def test_too_few_numbers_are_counted(shape: tuple[int, ...], must: str) -> None:
    with pytest.raises(InvalidInput, match=rf"batch\[1\] has 2 numbers, {must}: model 'm' takes"):
        work({"batch": [[1, 2, 3], [1, 2]]}, shape)


@pytest.mark.parametrize(
    ("datatype", "value", "expected"),
    [("INT64", 2**60 + 1, 2**60 + 1), ("INT8", 3.0, 3), ("BOOL", 1, True), ("FP16", 0.5, 0.5), ("BF16", 1.0, 0x3F80)],
)
def test_numbers_take_the_models_type(datatype: str, value: float, expected: float) -> None:
    (part,) = work({"inputs": [value]}, (-1, 1), datatype)
    assert values(part) == [[expected]]


@pytest.mark.parametrize(
    ("datatype", "value", "sentence"),
    [
        ("INT8", 128, r"inputs\[0\] = 128, must be a whole number from -128 to 127"),
        ("UINT8", -1, "must be a whole number from 0 to 255"),
        ("INT32", 1.5, "must be a whole number"),
        ("BOOL", 2, "must be a whole number from 0 to 1"),
        ("FP32", 1e39, r"inputs\[0\] = 1e\+39, is too large"),
        ("FP16", 70000, "is too large"),
        ("BF16", 1e39, "is too large"),
        ("BYTES", 1, r"inputs = \[1\], must be text: model 'm' takes text in its input 'x'"),
    ],
)
def test_numbers_that_the_type_cannot_hold_are_refused(datatype: str, value: float, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        work({"inputs": [value]}, (-1, 1), datatype)


def test_a_text_is_a_row_of_a_model_that_takes_text() -> None:
    (one,) = work({"inputs": "Köln"}, (-1,), "BYTES")
    assert values(one) == ["Köln".encode()]
    assert [values(part) for part in work({"batch": ["a", "", "c"]}, (-1, 1), "BYTES")] == [[[b"a"], [b""]], [[b"c"]]]
    with pytest.raises(InvalidInput, match=r"batch\[1\] = \"a\", must be a list of numbers: model 'm' takes FP32"):
        work({"batch": [[1, 2], "a"]})


def answer(tensor: Tensor) -> InferResponse:
    return InferResponse("m", 1, {"y": tensor})


@pytest.mark.parametrize(
    ("array", "expected"), [([[1.0, 2.0]], [1, 2]), ([3.0], [3]), (4.0, [4]), ([[[1.0], [2.0]]], [[1], [2]])]
)
def test_one_list_has_its_own_predictions(array: Any, expected: Any) -> None:
    (part,) = work({"inputs": [1, 2]})
    response = answer(Tensor("FP32", np.array(array, "f4")))
    made = json.loads(b"".join(encode_predictions([part], [response], batch=False, version="v1", seconds=0.0123)))
    assert np.array_equal(made["predictions"], expected)
    assert (made["model_version"], made["latency_ms"]) == ("v1", 12.3)


def test_a_batch_has_a_list_for_each_of_its_lists_and_text_stays_text() -> None:
    cut = work({"batch": [[1, 2], [3, 4], [5, 6]]})
    answers = [answer(Tensor("BYTES", np.array(texts, dtype=object))) for texts in ([b"a", b"b"], [b"\xff"])]
    made = json.loads(b"".join(encode_predictions(cut, answers, batch=True, version="1", seconds=0)))
    assert made["predictions"] == [["a"], ["b"], ["\ufffd"]]

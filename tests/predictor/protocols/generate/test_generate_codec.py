"""The generate extension's JSON: names of inputs become tensors, the rest parameters."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.core.tensors import Tensor, TensorSpec
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.generate import decode_generate, encode_generate

TEXT, COUNT = TensorSpec("text_input", "BYTES", (1,)), TensorSpec("count", "INT32", (-1,), optional=True)


def read(document: Any, *specs: TensorSpec, batched: bool = False) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_generate("m", -1, body, specs or (TEXT, COUNT), batched)


def test_keys_that_name_inputs_are_tensors_and_all_others_parameters() -> None:
    request = read({"text_input": "hé", "count": [1, 2], "temperature": 0.5, "stream": True, "id": 7, "mood": "good"})
    assert request.inputs["text_input"].array.tolist() == ["hé".encode()]
    assert request.inputs["count"] == Tensor("INT32", request.inputs["count"].array)
    assert request.inputs["count"].array.tolist() == [1, 2]
    assert request.parameters == {"temperature": 0.5, "stream": True, "mood": "good"}
    assert request.id == "7"


def test_parameters_may_be_nested_and_may_name_inputs() -> None:
    request = read({"text_input": "x", "parameters": {"count": 3, "top_k": 5, "priority": 2, "timeout": 1000}})
    assert request.inputs["count"].array.tolist() == [3]
    assert request.parameters == {"top_k": 5, "priority": 2, "timeout": 1000}
    assert (request.priority, request.timeout_us) == (2, 1000)


@pytest.mark.parametrize(
    ("value", "shape", "batched", "expected"),
    [
        (5, (1,), False, (1,)),
        (5, (-1, 1), True, (1, 1)),
        (5, (-1,), True, (1,)),
        ([1, 2, 3], (-1, -1), True, (1, 3)),
        ([1, 2, 3], (-1, 1), True, (3, 1)),
        ([1, 2, 3, 4], (-1, 2, 1), True, (2, 2, 1)),
        ([1, 2, 3], (-1, 2), True, (1, 3)),  # no rows of 2: refused for its shape later
        ([[1, 2], [3, 4]], (-1, -1), True, (2, 2)),
        ([[1, 2], [3, 4]], (2, 2), False, (2, 2)),
        ([], (-1,), False, (0,)),
    ],
)
def test_a_batch_of_one_is_put_in_front(value: Any, shape: Any, batched: bool, expected: Any) -> None:
    request = read({"x": value}, TensorSpec("x", "INT32", shape), batched=batched)
    assert request.inputs["x"].array.shape == expected


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"a": ' * 100_000, "nested too deep|not valid JSON"),
        ({"text_input": 5}, "text_input has 5, must be text"),
        ({"count": "many"}, "count has 'many', must be an integer"),
        ({"count": 1 << 40}, "count has a number that does not fit INT32"),
        ({"count": [[1], [1, 2]]}, "count is not a regular array"),
        ({"mood": ["a"]}, "mood is a list, must be text, a number, true or false"),
        ({"parameters": {"mood": None}}, "parameters.mood is null"),
        ({"count": 1, "parameters": {"count": 2}}, "parameters.count is set twice"),
        (b'{"count": 1, "count": 2}', "^count is set twice"),
        (b'{"count": 1, "\\u0063ount": NaN}', "^count is set twice"),
        (b'{"parameters": {"count": 1, "count": 2}}', "parameters.count is set twice"),
        (b'{"parameters": {"count": 1}, "parameters": {"count": 2}}', "parameters.count is set twice"),
        (b'{"count": 1, "\\u0061": 1' + b', "a": 1' * 1024 + b"}", "more than 1024 fields"),
        ({"id": True}, "id must be a string or a number"),
        ({"priority": -1}, "parameters.priority = -1, must be an integer of 0 or more"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_field(document: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        read(document)


def test_every_depth_is_read_or_refused() -> None:
    for depth in range(900, 1010):  # around what the stack has left
        nested = b"[" * depth + b"]" * depth
        with pytest.raises(BadRequest, match=r"nested|count"):
            read(b'{"count": %b, "\\u0061": 1}' % nested)


def test_outputs_of_one_element_are_scalars_and_others_flat_lists() -> None:
    outputs = {
        "text_output": Tensor("BYTES", np.array([[b"hi"]], object)),
        "scores": Tensor("FP32", np.array([[0.5, np.nan]], "f4")),
        "flag": Tensor("BOOL", np.array([True])),
        "none": Tensor("INT32", np.zeros((0,), "i4")),
    }
    told = json.loads(encode_generate(InferResponse("m", 3, outputs, "r", {"cost": 2})))
    assert told == {
        "id": "r", "model_name": "m", "model_version": "3", "cost": 2, "text_output": "hi", "scores": [0.5, "NaN"],
        "flag": True, "none": [],
    }  # fmt: skip


def test_the_last_value_of_a_repeated_parameter_counts() -> None:
    request = read(b'{"text_input": "count", "mood": "count", "mood": "calm", "parameters": {"k": 1, "k": 2}}')
    assert request.parameters == {"mood": "calm", "k": 2}


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
documents = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["text_input", "count", "id", "parameters", "mood"]), documents))
def test_no_document_fails_otherwise(document: Any) -> None:
    body = json.dumps(document).encode()
    try:
        request = read(body)
    except BadRequest:
        return
    assert set(request.inputs) <= {"text_input", "count"}

"""The parts of triton_python_backend_utils that need no server: configurations, tensors, senders."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pilotlight_predictor.backends.python.triton.bls import ModelConfig
from pilotlight_predictor.backends.python.triton.pb_utils import deserialize_bytes_tensor, serialize_byte_tensor
from pilotlight_predictor.backends.python.triton.requests import ResponseSender
from pilotlight_predictor.backends.python.triton.types import (
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
)
from pilotlight_predictor.backends.response_collector import ResponseCollector
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import BackendFailed, BadRequest

X = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}


def test_a_model_fills_in_what_its_author_left_out() -> None:
    config = ModelConfig({"name": "m", "max_batch_size": 2, "input": [{"name": "x", "data_type": "TYPE_FP32"}]})
    config.set_max_batch_size(8)
    config.add_input(X)
    config.add_output({**X, "name": "y"})
    config.set_dynamic_batching()
    config.set_model_transaction_policy({"decoupled": True})
    assert config.as_dict() == {
        "name": "m", "max_batch_size": 8, "input": [X], "output": [{**X, "name": "y"}], "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "change", "words"),
    [
        ({"max_batch_size": 9}, lambda c: c.set_max_batch_size(8), "max_batch_size is 9"),
        ({"input": [X]}, lambda c: c.add_input({**X, "dims": [5]}), r"has dims \[4\] in the configuration"),
        ({"input": [X]}, lambda c: c.add_input({**X, "data_type": "TYPE_INT8"}), "has data_type TYPE_FP32"),
        ({}, lambda c: c.add_input({"name": "x", "dims": [1]}), "lacks the property 'data_type'"),
        ({}, lambda c: c.add_output({**X, "optional": True}), "unknown property 'optional'"),
        ({"sequence_batching": {}}, lambda c: c.set_dynamic_batching(), "has sequence_batching"),
        ({}, lambda c: c.set_model_transaction_policy({"coupled": True}), "'coupled' is unknown"),
        (
            {"model_transaction_policy": {"decoupled": True}},
            lambda c: c.set_model_transaction_policy({"decoupled": False}),
            "decoupled is true in the configuration",
        ),
    ],
)
def test_a_model_that_contradicts_its_author_fails(
    written: dict[str, Any], change: Callable[[ModelConfig], None], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        change(ModelConfig(written))


def test_tensors_go_by_dlpack_both_ways() -> None:
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    given.flags.writeable = False  # as what came with a request
    again = Tensor.from_dlpack("y", Tensor("x", given))
    assert (again.name(), again.shape(), again.triton_dtype()) == ("y", (2, 3), 11)
    np.testing.assert_array_equal(Tensor.from_dlpack("z", Tensor("x", given).to_dlpack()).as_numpy(), given)
    with pytest.raises(TritonModelException, match="holds strings"):
        Tensor("s", np.array(["a"], np.object_)).to_dlpack()


def test_strings_are_written_and_read_as_triton_does() -> None:
    strings = np.array([b"a", "é", b""], np.object_)
    encoded = serialize_byte_tensor(strings).item()
    assert encoded == b"\x01\0\0\0a\x02\0\0\0\xc3\xa9\0\0\0\0"
    assert deserialize_bytes_tensor(encoded).tolist() == [b"a", "é".encode(), b""]


def sender() -> tuple[ResponseSender, ResponseCollector]:
    asked = ResponseCollector(InferRequest("m", {}))

    def convert(response: InferenceResponse) -> Any:
        error = response.error()
        return {} if error is None else BadRequest(str(error))

    return ResponseSender(asked, convert), asked


def test_a_sender_refuses_what_has_no_meaning() -> None:
    made, asked = sender()
    with pytest.raises(TritonModelException, match="flags = 2"):
        made.send(flags=2)
    with pytest.raises(TritonModelException, match="needs an InferenceResponse"):
        made.send()
    made.send(InferenceResponse(), flags=1)
    with pytest.raises(TritonModelException, match="closed"):
        made.send(InferenceResponse())
    assert asked.answers == [{}]


def test_an_error_is_the_last_answer_only_with_the_flag() -> None:
    made, asked = sender()
    made.send(InferenceResponse(error=TritonError("no")))
    assert not asked.ended.is_set()
    made.send(InferenceResponse(error=TritonError("never")), flags=1)
    assert asked.ended.is_set()
    assert [str(answer) for answer in asked.answers] == ["no", "never"]


def test_a_sender_that_is_dropped_has_ended_its_request() -> None:
    made, asked = sender()
    del made
    assert asked.ended.is_set()
    assert isinstance(asked.answers[0], BackendFailed)

"""Requests in a known form are joined where they lie, and whatever else is in a batch changes nothing of its rows."""

from collections.abc import Iterable

import numpy as np
import pytest

from pilotlight_predictor.core.batch import SplitOutputs, merge, split
from pilotlight_predictor.core.request_parameters import no_shared_memory
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import BackendFailed
from pilotlight_predictor.protocols.v2.request_codec import decode_request
from pilotlight_predictor.protocols.v2.request_templates import BLOCK, TemplateCache

ONE_ROW = b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [%d, 0.5]}]}'
TWO_ROWS = b'{"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [%d, 0.5, 7, 8]}]}'
IN_A_BLOCK = BLOCK // 8


def known(numbers: Iterable[int], form: bytes = ONE_ROW, forms: TemplateCache | None = None) -> list[InferRequest]:
    forms = forms or TemplateCache()
    decode_request("m", 1, form % 99, None, no_shared_memory, forms)
    found = [forms.read("m", 1, form % number) for number in numbers]
    assert all(request is not None and request.tensors is None for request in found)
    return [request for request in found if request is not None]


def plain(number: int) -> InferRequest:
    return decode_request("m", 1, ONE_ROW % number, None, no_shared_memory)


def joined(batch: list[InferRequest]) -> list[list[float]]:
    inputs, rows = merge(batch)
    assert list(inputs) == ["x"]
    assert inputs["x"].datatype == "FP32"
    assert sum(rows) == len(inputs["x"].array)
    values: list[list[float]] = inputs["x"].array.tolist()
    return values


def test_requests_in_one_form_are_joined_without_a_copy() -> None:
    batch = known(range(5))
    inputs, rows = merge(batch)
    assert np.shares_memory(inputs["x"].array, batch[0].block)
    assert inputs["x"].array.tolist() == [[n, 0.5] for n in range(5)]
    assert list(rows) == [1] * 5
    batch = known(range(3), TWO_ROWS)
    assert joined(batch) == [row for n in range(3) for row in ([n, 0.5], [7, 8])]
    assert list(merge(batch)[1]) == [2] * 3


def test_a_batch_may_lie_in_several_blocks() -> None:
    batch = known(range(IN_A_BLOCK + 3))
    assert joined(batch) == [[n, 0.5] for n in range(IN_A_BLOCK + 3)]
    assert joined(batch[-5:]) == [[n, 0.5] for n in range(IN_A_BLOCK - 2, IN_A_BLOCK + 3)]


@pytest.mark.parametrize("order", [(0, 1, 3, 4), (2, 0, 1), (4, 3), (1, 1)], ids=str)
def test_some_may_have_left_or_passed_others(order: tuple[int, ...]) -> None:
    """By a time-out, a cancellation or a priority."""
    batch = known(range(5))
    assert joined([batch[n] for n in order]) == [[n, 0.5] for n in order]


def test_others_in_the_batch_keep_their_rows() -> None:
    forms = TemplateCache()
    one, two = known(range(2), ONE_ROW, forms), known(range(2, 4), TWO_ROWS, forms)
    assert joined([*one, *two]) == [[0, 0.5], [1, 0.5], [2, 0.5], [7, 8], [3, 0.5], [7, 8]]
    assert joined([*one, plain(5)]) == joined([plain(0), plain(1), plain(5)])
    assert joined([plain(5), *one]) == [[5, 0.5], [0, 0.5], [1, 0.5]]


def test_inputs_that_somebody_has_changed_are_taken_as_they_are_now() -> None:
    batch = known(range(3))
    batch[1].inputs["x"] = Tensor("FP32", batch[1].inputs["x"].array * 2)
    assert joined(batch) == [[0, 0.5], [2, 1], [2, 0.5]]


def test_each_request_gets_its_own_rows() -> None:
    shares = split({"y": Tensor("INT32", np.arange(8).reshape(4, 2)), "z": Tensor("INT32", np.arange(4))}, [1, 2, 1])
    expected = [([[0, 1]], [0]), ([[2, 3], [4, 5]], [1, 2]), ([[6, 7]], [3])]
    assert [(share["y"].array.tolist(), share["z"].array.tolist()) for share in shares] == expected
    assert (len(shares), shares[1]["z"].array.tolist(), len(shares[1:])) == (3, [1, 2], 2)


def test_what_is_no_batch_cannot_be_shared() -> None:
    with pytest.raises(BackendFailed, match="its first dimension is not a batch dimension"):
        split({"y": Tensor("INT32", np.arange(3))}, [1, 1])
    assert isinstance(split({"y": Tensor("INT32", np.arange(3))}, [1, 2]), SplitOutputs)

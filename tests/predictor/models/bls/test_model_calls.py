"""Models that call other models of the server, as Triton's do; judged by Triton's own client."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.predictor.models.bls.conftest import numbers_in
from tests.serving import RunningServer
from tritonclient.utils import InferenceServerException

Client = triton.InferenceServerClient
A, B = np.array([3, 5], np.float32), np.array([1, 2], np.float32)


def pair(model: str = "", a: Any = A, b: Any = B) -> list[triton.InferInput]:
    made = []
    for name, array in (("INPUT0", a), ("INPUT1", b)):
        made.append(triton.InferInput(name, list(array.shape), "FP32"))
        made[-1].set_data_from_numpy(array)
    if model:
        made.append(triton.InferInput("MODEL", [1], "BYTES"))
        made[-1].set_data_from_numpy(np.array([model.encode()], np.object_))
    return made


def count(client: Client, model: str, number: int) -> int:
    return int(client.infer(model, [numbers_in([number])], client_timeout=20).as_numpy("OUT")[0])


@pytest.mark.parametrize("caller", ["caller", "async_caller"])
@pytest.mark.parametrize("called", ["add_sub", "later"])
def test_a_model_answers_with_what_another_one_said(triton_client: Client, caller: str, called: str) -> None:
    result = triton_client.infer(caller, pair(called))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


def test_a_model_may_answer_later_through_its_sender(triton_client: Client) -> None:
    np.testing.assert_array_equal(triton_client.infer("later", pair()).as_numpy("OUTPUT1"), A - B)


@pytest.mark.parametrize(
    ("called", "words"),
    [
        ("nobody", "2 Request for unknown model: 'nobody' is not found"),
        ("square", "3 model 'square' is decoupled: call it by exec(decoupled=True)"),
        ("auto", "3 unexpected inference input 'INPUT0' for model 'auto'"),
    ],
)
def test_a_call_that_fails_is_a_response_with_tritons_code(triton_client: Client, called: str, words: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        triton_client.infer("caller", pair(called))
    assert caught.value.message().startswith(words)


@pytest.mark.parametrize("model", ["sum_of_parts", "async_sum"])
@pytest.mark.parametrize("number", [0, 1, 100])
def test_the_answers_of_a_decoupled_model_are_iterated_over(triton_client: Client, model: str, number: int) -> None:
    assert count(triton_client, model, number) == number * number


def test_a_model_that_calls_itself_is_refused_where_it_would_wait_for_ever(triton_client: Client) -> None:
    assert count(triton_client, "itself", 0) == 0
    with pytest.raises(InferenceServerException) as caught:
        count(triton_client, "itself", 1)
    assert "model 'itself' calls 'itself', all instances of which wait for 'itself' itself" in caught.value.message()
    assert count(triton_client, "itself", 0) == 0


def test_a_model_calls_itself_where_another_instance_is_free(triton_client: Client) -> None:
    assert count(triton_client, "itself_twice", 1) == 1
    with pytest.raises(InferenceServerException, match="would deadlock"):
        count(triton_client, "itself_twice", 2)


def test_models_that_call_each_other_never_hang(triton_address: str, triton_client: Client) -> None:
    """Asked from both sides at once, each may find the other waiting for it: answered or refused, but in time."""

    def ask(number: int) -> str:
        with triton.InferenceServerClient(triton_address) as client:
            try:
                return str(count(client, ("ping", "pong")[number % 2], 1))
            except InferenceServerException as error:
                return error.message()

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(ask, range(60)))
    assert {answer for answer in told if "would deadlock" not in answer} <= {"1"}
    assert count(triton_client, "ping", 1) == 1
    with pytest.raises(InferenceServerException, match="would deadlock"):
        count(triton_client, "ping", 2)


def test_many_calls_at_once_are_all_answered(triton_address: str) -> None:
    def ask(number: int) -> float:
        with triton.InferenceServerClient(triton_address) as client:
            result = client.infer("caller", pair("add_sub", A * number, B))
            return float(result.as_numpy("OUTPUT0")[0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(40))) == [3.0 * number + 1 for number in range(40)]


def test_a_request_tells_the_model_all_that_was_asked(triton_client: Client, triton_repository: Path) -> None:
    result = triton_client.infer(
        "told", [numbers_in([1, 2, 3])], request_id="r7", sequence_id=5, sequence_start=True, sequence_end=True,
        priority=0, timeout=90_000_000, parameters={"mood": "good", "share": 0.5},
    )  # fmt: skip
    told = json.loads(result.as_numpy("TOLD")[0])
    assert told.pop("dir") == str(triton_repository / "told/1")
    assert {"mood": "good", "share": 0.5}.items() <= told.pop("parameters").items()
    assert told == {
        "id": "r7", "correlation": 5, "flags": 3, "priority": 0, "timeout": 90_000_000, "outputs": ["TOLD"],
        "model": "told", "cancelled": False, "memory": 0, "cpu": True, "shape": [3], "type": 8, "same": True,
    }  # fmt: skip


def test_a_model_completes_its_own_configuration(triton_client: Client, triton_server: RunningServer) -> None:
    config = triton_server.get("/v2/models/auto/config").json()
    assert config["max_batch_size"] == 4
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"]] == [
        ("x", "TYPE_FP32", [2]),
        ("w", "TYPE_FP32", [1]),
    ]
    assert "dynamic_batching" in config
    body = {"inputs": [{"name": "x", "shape": [3, 2], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}]}
    assert triton_server.infer("auto", body).json()["outputs"][0]["data"] == [2, 4, 6, 8, 10, 12]

"""ModelStreamInfer of decoupled models, judged by Triton's own client."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tests.predictor.models.bls.conftest import Stream, number_of, numbers_in
from tests.serving import RunningServer
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException


def final(response: Any) -> bool:
    return bool(response.parameters["triton_final_response"].bool_param)


@pytest.mark.parametrize("model", ["repeat", "square", "async_square", "auto_decoupled"])
def test_every_answer_comes_and_the_end_is_told_to_who_asks_for_it(stream: Stream, model: str) -> None:
    numbers = [4, 2, 0, 1] if model == "repeat" else [4]
    stream.ask(model, numbers, "a", enable_empty_final_response=True)
    answers = stream.until_final()
    told = [number_of(answer) for answer in answers if answer.outputs]
    assert told == (numbers if model == "repeat" else [4] * 4)
    assert {answer.id for answer in answers} == {"a"}
    assert {(answer.model_name, answer.model_version) for answer in answers} == {(model, "1")}
    assert [final(answer) for answer in answers] == [False] * (len(answers) - 1) + [True]
    ends_with_an_answer = model in ("square", "auto_decoupled")
    assert bool(answers[-1].outputs) is ends_with_an_answer


def test_an_end_without_an_answer_is_not_told_unless_asked_for(stream: Stream) -> None:
    stream.ask("repeat", [1, 2], "first")
    assert [number_of(stream.next()) for _ in range(2)] == [1, 2]
    stream.ask("square", [1], "second")
    assert stream.next().id == "second"


def test_no_answer_at_all_is_an_answer_for_who_asks_for_the_end(stream: Stream) -> None:
    stream.ask("square", [0], "none", enable_empty_final_response=True)
    (only,) = stream.until_final()
    assert not only.outputs
    assert only.id == "none"


def test_answers_of_many_requests_interleave_and_none_is_lost(stream: Stream) -> None:
    for number in range(40):
        stream.ask("repeat", list(range(30)), str(number), enable_empty_final_response=True)
    told: dict[str, list[int]] = {}
    ended = 0
    while ended < 40:
        answer = stream.next()
        told.setdefault(answer.id, [])
        if answer.outputs:
            told[answer.id].append(number_of(answer))
        ended += final(answer)
    assert told == {str(number): list(range(30)) for number in range(40)}


def test_a_request_with_no_end_in_sight_keeps_no_other_from_its_answer(stream: Stream) -> None:
    stream.ask("endless", [0], "endless")
    stream.ask("square", [1], "short")
    while stream.next().id != "short":
        pass


def test_an_error_amid_the_answers_goes_out_and_the_answers_go_on(stream: Stream) -> None:
    stream.ask("repeat", [5, -1, 6], "r", enable_empty_final_response=True)
    first, error, second, last = (stream.next() for _ in range(4))
    assert (number_of(first), number_of(second), final(last)) == (5, 6, True)
    assert error.message() == "-1 is negative"


def test_a_model_that_raises_ends_its_request_and_not_the_stream(stream: Stream) -> None:
    stream.ask("async_square", [13])
    assert "secret" not in stream.next().message()
    stream.ask("async_square", [1])
    assert number_of(stream.next()) == 1


def test_a_model_that_forgets_a_request_has_ended_it(stream: Stream) -> None:
    stream.ask("forgetful", [1])
    assert number_of(stream.next()) == 1
    assert "failed" in stream.next().message()


def test_ordinary_models_answer_once_and_finally(stream: Stream) -> None:
    stream.ask("sum_of_parts", [3], enable_empty_final_response=True)
    (only,) = stream.until_final()
    assert number_of(only) == 9


def test_a_request_that_does_not_fit_is_refused_in_the_stream(stream: Stream) -> None:
    stream.ask("square", [1, 2])
    assert "unexpected shape for input 'IN'" in stream.next().message()


def test_the_unary_call_is_refused_as_triton_refuses_it(triton_client: triton.InferenceServerClient) -> None:
    with pytest.raises(
        InferenceServerException, match="ModelInfer RPC doesn't support models with decoupled"
    ) as caught:
        triton_client.infer("square", [numbers_in([1])])
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_http_infer_is_refused_as_triton_refuses_it(triton_server: RunningServer) -> None:
    body = {"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}]}
    answer = triton_server.post("/v2/models/square/infer", body)
    assert answer.status == 501
    assert answer.error == "HTTP end point doesn't support models with decoupled transaction policy"


def test_the_configuration_tells_that_a_model_is_decoupled(triton_client: triton.InferenceServerClient) -> None:
    for name in ("square", "auto_decoupled"):
        assert triton_client.get_model_config(name).config.model_transaction_policy.decoupled


def endless(address: str) -> tuple[grpc.Channel, Any]:
    request = service_pb2.ModelInferRequest(model_name="endless")
    request.inputs.add(name="IN", datatype="INT32", shape=[1]).contents.int_contents.append(1)
    channel = grpc.insecure_channel(address)
    return channel, service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))


@pytest.mark.parametrize("how", ["cancelled", "broken"])
def test_a_client_that_leaves_stops_the_model(
    triton_server: RunningServer, triton_address: str, triton_repository: Path, how: str
) -> None:
    noted = triton_repository / "endless/1/cancelled"
    channel, call = endless(triton_address)
    next(call)
    noted.unlink(missing_ok=True)
    if how == "cancelled":
        call.cancel()
    channel.close()
    triton_server.wait_until(noted.exists, "the model stops")


def test_a_client_that_reads_slowly_holds_the_model_back_and_loses_nothing(
    triton_server: RunningServer, triton_address: str, triton_repository: Path
) -> None:
    noted = triton_repository / "endless/1/cancelled"
    channel, call = endless(triton_address)
    numbers = [next(call).infer_response.outputs[0].contents.int_contents[0] for _ in range(2000)]
    assert numbers == list(range(2000))
    noted.unlink(missing_ok=True)
    time.sleep(4.0)  # not a synchronisation: time in which an unbounded model would run away
    call.cancel()
    channel.close()
    triton_server.wait_until(noted.exists, "the model stops")
    assert int(noted.read_text()) < 100_000  # buffers on the way, the client's among them, hold 60,000 to 70,000


def test_the_asynchronous_client_iterates_over_the_answers(triton_address: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in (3, 1):
            yield {
                "model_name": "square", "inputs": [numbers_in([number])], "request_id": str(number),
                "enable_empty_final_response": True,
            }  # fmt: skip

    async def scene() -> list[tuple[str, int]]:
        told = []
        async with triton_aio.InferenceServerClient(triton_address) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                response = result.get_response()
                told.append((response.id, number_of(response)))
        return told

    assert sorted(asyncio.run(scene())) == [("1", 1), ("3", 3), ("3", 3), ("3", 3)]

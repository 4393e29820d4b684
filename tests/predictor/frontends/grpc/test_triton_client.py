"""Triton's own client, blocking and asyncio, against the real server."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tests.onnx_models import write_identity
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.serving import RunningServer
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

VALUES = {
    "bool": np.array([True, False]),
    "uint8": np.array([0, 255], np.uint8),
    "uint16": np.array([0, 65535], np.uint16),
    "uint32": np.array([1, 1 << 31], np.uint32),
    "uint64": np.array([1, 1 << 63], np.uint64),
    "int8": np.array([-128, 127], np.int8),
    "int16": np.array([-5, 5], np.int16),
    "int32": np.array([-5, 5], np.int32),
    "int64": np.array([-5, 5], np.int64),
    "fp16": np.array([1.5, -2], np.float16),
    "fp32": np.array([1.5, np.nan], np.float32),
    "fp64": np.array([1.5, -np.inf], np.float64),
    "bytes": np.array([b"a", "é".encode()], np.object_),
}


def tensor(name: str, array: Any) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


def moody(seconds: float) -> list[triton.InferInput]:
    return [tensor("seconds", np.array([seconds], np.float32))]


def add_sub(rows: int = 1) -> list[triton.InferInput]:
    values = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    return [tensor("a", values), tensor("b", np.ones((rows, 4), np.float32))]


@pytest.mark.parametrize("name", VALUES)
def test_every_datatype_comes_back_as_it_went(client: triton.InferenceServerClient, name: str) -> None:
    answer = client.infer(f"identity_{name}", [tensor("x", VALUES[name])]).as_numpy("y")
    assert answer is not None
    assert answer.dtype == VALUES[name].dtype
    assert answer.tobytes() == VALUES[name].tobytes() or answer.tolist() == VALUES[name].tolist()


def test_bf16_comes_back_as_it_went(client: triton.InferenceServerClient) -> None:
    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    answer = client.infer("identity_bf16", [tensor("x", values)])
    assert answer.get_output("y").datatype == "BF16"
    assert answer.as_numpy("y").tolist() == [1.5, -2.0]


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
def test_an_answer_has_the_outputs_asked_for_in_that_order(
    client: triton.InferenceServerClient, algorithm: str | None
) -> None:
    wanted = [triton.InferRequestedOutput("difference"), triton.InferRequestedOutput("sum", class_count=2)]
    answer = client.infer("add_sub", add_sub(), outputs=wanted, request_id="mine", compression_algorithm=algorithm)
    told = answer.get_response()
    assert (told.id, told.model_name, told.model_version) == ("mine", "add_sub", "1")
    assert [output.name for output in told.outputs] == ["difference", "sum"]
    assert answer.as_numpy("sum").tolist() == [[b"4.000000:3", b"3.000000:2:two"]]


def test_versions_parameters_and_deadlines_are_taken(client: triton.InferenceServerClient) -> None:
    values = [tensor("x", np.array([3], np.int32))]
    how = {"priority": 1, "timeout": 60_000_000, "client_timeout": 60.0, "parameters": {"mine": 1, "word": "w"}}
    assert client.infer("two_versions", values, "1", **how).as_numpy("y").tolist() == [3]
    assert client.infer("two_versions", values, **how).as_numpy("y").tolist() == [-3]


def test_what_it_asks_of_server_and_models_is_answered(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_sub")
    assert client.is_model_ready("two_versions", "2")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata(as_json=True)["name"] == "pilotlight"
    metadata = client.get_model_metadata("add_sub")
    assert [(each.name, each.datatype, list(each.shape)) for each in metadata.outputs] == [
        ("sum", "FP32", [-1, 4]), ("difference", "FP32", [-1, 4]),
    ]  # fmt: skip
    config = client.get_model_config("add_sub").config
    assert (config.max_batch_size, config.input[0].dims, config.output[0].label_filename) == (8, [4], "labels.txt")
    client.infer("matrix", [tensor("x", np.ones((1, 1), np.float32))])
    (stats,) = client.get_inference_statistics("matrix").model_stats
    assert stats.inference_stats.success.count == stats.execution_count == 1
    names = {each.name for each in client.get_inference_statistics().model_stats}
    assert {"add_sub", "matrix"} <= names
    index = {(each.name, each.version): each.state for each in client.get_model_repository_index().models}
    assert index["add_sub", "1"] == "READY"


@pytest.mark.parametrize(
    ("model", "inputs", "code", "words"),
    [
        ("nobody", [], "NOT_FOUND", "nobody"),
        ("moody", [], "INVALID_ARGUMENT", "seconds"),
        ("moody", moody(-1), "INTERNAL", ""),
    ],
)
def test_an_error_has_its_status_and_one_sentence(
    client: triton.InferenceServerClient, model: str, inputs: Any, code: str, words: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, inputs)
    assert caught.value.status() == f"StatusCode.{code}"
    assert words in caught.value.message()
    assert "secret" not in caught.value.message()


def test_a_stream_answers_in_order_and_survives_a_bad_request(client: triton.InferenceServerClient) -> None:
    heard: Queue[tuple[Any, Any]] = Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    for number in range(20):
        model = "nobody" if number == 7 else "identity_int32"
        how = {"request_id": str(number), "enable_empty_final_response": True}
        client.async_stream_infer(model, [tensor("x", np.array([number], np.int32))], **how)
    answers = [heard.get(timeout=60) for _ in range(20)]
    client.stop_stream()
    for number, (result, error) in enumerate(answers):
        if number == 7:
            assert "nobody" in error.message()
            continue
        assert error is None
        told = result.get_response()
        assert (told.id, result.as_numpy("y").tolist()) == (str(number), [number])
        assert told.parameters["triton_final_response"].bool_param


def test_requests_of_one_stream_share_a_batch(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    batching = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 50000000 preferred_batch_size: 4 }"
    write_identity(tmp_path, "batched", "FP32", ("batch", 2), batching)
    heard: Queue[tuple[Any, Any]] = Queue()
    with triton.InferenceServerClient(grpc_address(serve(tmp_path, "--grpc-port", "0"))) as client:
        client.start_stream(lambda result, error: heard.put((result, error)))
        for _ in range(4):
            client.async_stream_infer("batched", [tensor("x", np.ones((1, 2), np.float32))])
        assert all(heard.get(timeout=60)[1] is None for _ in range(4))
        client.stop_stream()
        (stats,) = client.get_inference_statistics("batched").model_stats
    assert (stats.inference_count, stats.execution_count) == (4, 1)


def test_the_asyncio_client_is_served_too(address: str) -> None:
    async def requests() -> Any:
        for number in range(3):
            yield {"model_name": "identity_int32", "inputs": [tensor("x", np.array([number], np.int32))]}

    async def ask() -> tuple[list[Any], list[Any]]:
        async with triton_aio.InferenceServerClient(address) as client:
            several = await asyncio.gather(*(client.infer("add_sub", add_sub(rows)) for rows in (1, 2, 3)))
            streamed = [result async for result, error in client.stream_infer(requests()) if error is None]
            return list(several), streamed

    several, streamed = asyncio.run(ask())
    assert [answer.as_numpy("sum").shape for answer in several] == [(1, 4), (2, 4), (3, 4)]
    assert [answer.as_numpy("y").tolist() for answer in streamed] == [[0], [1], [2]]


def test_megabytes_go_both_ways(client: triton.InferenceServerClient) -> None:
    values = np.arange(8 << 20, dtype=np.float32)
    answer = client.infer("identity_fp32", [tensor("x", values)], compression_algorithm=None).as_numpy("y")
    assert np.array_equal(answer, values)


def test_models_are_loaded_and_unloaded_by_call(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    write_identity(tmp_path, "late", "FP32", ("batch", 2), "max_batch_size: 2")
    server = serve(tmp_path, "--grpc-port", "0", "--model-control-mode", "explicit", "--allow-inline-files")
    with triton.InferenceServerClient(grpc_address(server)) as client:
        assert not client.is_model_ready("late")
        client.load_model("late", config=json.dumps({"max_batch_size": 3}))
        assert client.get_model_config("late").config.max_batch_size == 3
        file = (tmp_path / "late" / "1" / "model.onnx").read_bytes()
        config = json.dumps({"max_batch_size": 0, "backend": "onnxruntime"})
        client.load_model("sent", config=config, files={"file:1/model.onnx": file})
        assert client.is_model_ready("sent")
        client.unload_model("late", unload_dependents=True)
        assert not client.is_model_ready("late")
        with pytest.raises(InferenceServerException) as caught:
            client.load_model("nobody")
        assert caught.value.status() == "StatusCode.NOT_FOUND"
        assert "failed to load" in caught.value.message()

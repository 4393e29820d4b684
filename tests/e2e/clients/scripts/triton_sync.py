"""NVIDIA's synchronous HTTP client, unchanged: everything of it that this server offers."""

import json

import ml_dtypes
import numpy as np
import tritonclient.http as triton
from checks import refused, run

TYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip


def given(name, array, datatype, binary=True):
    tensor = triton.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def ab(rows=1, binary=True):
    a = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    return a, [given("a", a, "FP32", binary), given("b", np.ones_like(a), "FP32", binary)]


def check_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_sub")
    assert client.is_model_ready("add_sub", "1")
    assert not client.is_model_ready("nope")
    assert not client.is_model_ready("add_sub", "9")


def check_metadata(client):
    server = client.get_server_metadata()
    assert {"name", "version", "extensions"} <= server.keys()
    model = client.get_model_metadata("add_sub")
    assert [tensor["name"] for tensor in model["inputs"]] == ["a", "b"]
    assert model["outputs"][0]["shape"] == [-1, 4]
    refused(lambda: client.get_model_metadata("nope"), "Request for unknown model", "[404]")


def check_configuration(client):
    assert client.get_model_config("add_sub")["max_batch_size"] == 8


def check_statistics(client):
    client.infer("add_sub", ab()[1])
    (row,) = client.get_inference_statistics("add_sub")["model_stats"]
    assert row["inference_stats"]["success"]["count"] >= 1
    assert len(client.get_inference_statistics()["model_stats"]) > 5


def check_repository(client):
    names = {row["name"] for row in client.get_model_repository_index()}
    assert {"matrix", "add_sub"} <= names
    client.unload_model("matrix")
    assert not client.is_model_ready("matrix")
    refused(
        lambda: client.infer("matrix", [given("x", np.ones((1, 1), np.float32), "FP32")]), "Request for unknown model"
    )
    client.load_model("matrix")
    assert client.is_model_ready("matrix")
    client.load_model("matrix", config=json.dumps({"max_batch_size": 0, "parameters": {"k": {"string_value": "v"}}}))
    assert client.get_model_config("matrix")["parameters"] == {"k": {"string_value": "v"}}


def check_a_load_that_fails(client):
    refused(lambda: client.load_model("broken"), "failed to load")
    refused(lambda: client.load_model("nowhere"), "failed to load")


def check_a_model_within_a_request_is_refused(client):
    config = json.dumps({"backend": "onnxruntime"})
    refused(lambda: client.load_model("mine", config=config, files={"file:1/model.onnx": b"x"}), "--allow-inline-files")


def check_every_datatype_as_binary_and_json(client):
    for datatype, kind in TYPES.items():
        array = np.array([0, 1, 1], kind)
        for binary in (True, False) if datatype != "FP16" else (True,):
            for binary_out in (True, False):
                outputs = [triton.InferRequestedOutput("y", binary_data=binary_out)]
                result = client.infer(
                    f"identity_{datatype.lower()}", [given("x", array, datatype, binary)], outputs=outputs
                )
                got = result.as_numpy("y")
                assert got.dtype == array.dtype
                np.testing.assert_array_equal(got, array)


def check_values_that_are_no_numbers(client):
    array = np.array([np.nan, np.inf, -np.inf, 1.5], np.float32)
    for binary in (True, False):
        for binary_out in (True, False):
            outputs = [triton.InferRequestedOutput("y", binary_data=binary_out)]
            result = client.infer("identity_fp32", [given("x", array, "FP32", binary)], outputs=outputs)
            np.testing.assert_array_equal(result.as_numpy("y"), array)


def check_bf16(client):
    values = np.array([1.5, -2.0, 3.25], ml_dtypes.bfloat16)
    result = client.infer("identity_bf16", [given("x", values, "BF16")])
    np.testing.assert_array_equal(result.as_numpy("y"), values)


def check_bytes(client):
    texts = np.array([b"", "grüße".encode(), b"a\0b"], dtype=object)
    for binary in (True, False):
        np.testing.assert_array_equal(
            client.infer("identity_bytes", [given("x", texts, "BYTES", binary)]).as_numpy("y"), texts
        )
    odd = np.array([b"\xff\xfe", b"\x00"], dtype=object)
    np.testing.assert_array_equal(client.infer("echo", [given("x", odd, "BYTES")]).as_numpy("y"), odd)


def check_outputs_in_the_order_asked_for(client):
    a, inputs = ab()
    outputs = [triton.InferRequestedOutput("difference"), triton.InferRequestedOutput("sum", binary_data=False)]
    result = client.infer("add_sub", inputs, outputs=outputs, request_id="7")
    np.testing.assert_array_equal(result.as_numpy("sum"), a + 1)
    np.testing.assert_array_equal(result.as_numpy("difference"), a - 1)
    assert [output["name"] for output in result.get_response()["outputs"]] == ["difference", "sum"]
    assert result.get_response()["id"] == "7"


def check_no_outputs_listed_gives_all(client):
    a, inputs = ab(2)
    result = client.infer("add_sub", inputs, model_version="1")
    np.testing.assert_array_equal(result.as_numpy("difference"), a - 1)


def check_classification(client):
    result = client.infer("add_sub", ab(2)[1], outputs=[triton.InferRequestedOutput("sum", class_count=2)])
    assert result.as_numpy("sum").tolist() == [[b"4.000000:3", b"3.000000:2:two"], [b"8.000000:3", b"7.000000:2:two"]]


def check_compression(client):
    array = np.arange(5000, dtype=np.float32)
    for request in ("gzip", "deflate", None):
        for response in ("gzip", "deflate", None):
            result = client.infer(
                "identity_fp32", [given("x", array, "FP32")],
                request_compression_algorithm=request, response_compression_algorithm=response,
            )  # fmt: skip
            np.testing.assert_array_equal(result.as_numpy("y"), array)


def check_priority_timeout_and_parameters(client):
    a, inputs = ab()
    result = client.infer("add_sub", inputs, priority=1, timeout=5_000_000, parameters={"mine": "x"}, sequence_id=0)
    np.testing.assert_array_equal(result.as_numpy("sum"), a + 1)


def check_async_infer(client):
    a, inputs = ab()
    waiting = [client.async_infer("add_sub", inputs) for _ in range(8)]
    for each in waiting:
        np.testing.assert_array_equal(each.get_result().as_numpy("sum"), a + 1)


def check_large_tensor(client):
    image = np.random.default_rng(0).random((2, 3, 224, 224), dtype=np.float32)
    np.testing.assert_array_equal(client.infer("image", [given("x", image, "FP32")]).as_numpy("y"), image)


def check_errors(client):
    refused(lambda: client.infer("nope", ab()[1]), "Request for unknown model", "[404]")
    refused(
        lambda: client.infer("add_sub", ab()[1][:1]), "expected 2 inputs but got 1 inputs for model 'add_sub'", "[400]"
    )
    wide = np.ones((1, 5), np.float32)
    refused(lambda: client.infer("add_sub", [given("a", wide, "FP32"), given("b", wide, "FP32")]), "unexpected shape")
    wrong = np.ones((1, 4), np.int32)
    refused(
        lambda: client.infer("add_sub", [given("a", wrong, "INT32"), given("b", wrong, "INT32")]),
        "data-type is 'INT32'",
    )
    refused(lambda: client.infer("add_sub", ab(9)[1]), "batch-size must be <= 8")
    refused(lambda: client.infer("add_sub", ab()[1], outputs=[triton.InferRequestedOutput("z")]), "output 'z'")


if __name__ == "__main__":
    run(globals(), lambda url: triton.InferenceServerClient(url.removeprefix("http://"), concurrency=4))

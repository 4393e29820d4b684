"""KServe's REST client, unchanged, with V2."""

import numpy as np
from checks import refused_later, run
from kserve import InferenceRESTClient, InferInput, InferOutput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput


class Client(InferenceRESTClient):
    """Remembers the address, which KServe's client wants in each call."""

    def __init__(self, url):
        super().__init__(RESTConfig(protocol="v2"))
        self.url = url


def given(name, array, datatype, binary):
    tensor = InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


async def ask(client, model, inputs, **more):
    request = InferRequest(model_name=model, infer_inputs=inputs, **more)
    return await client.infer(client.url, request, model_name=model)


async def check_health(client):
    assert await client.is_server_live(client.url) is True
    assert await client.is_server_ready(client.url) is True
    assert await client.is_model_ready(client.url, "add_sub") is True
    assert await client.is_model_ready(client.url, "nope") is False


async def check_infer_by_json(client):
    response = await ask(client, "identity_fp32", [InferInput("x", [2], "FP32", [1.5, 2.5])])
    assert response.model_name == "identity_fp32"
    (output,) = response.outputs
    assert isinstance(output, InferOutput)
    np.testing.assert_array_equal(output.as_numpy(), np.array([1.5, 2.5], np.float32))


async def check_nested_data(client):
    response = await ask(client, "matrix", [InferInput("x", [2, 2], "FP32", [[1.0, 2.0], [3.0, 4.0]])])
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), np.array([[1, 2], [3, 4]], np.float32))


async def check_datatypes_by_json_and_binary(client):
    kinds = {"BOOL": np.bool_, "UINT8": np.uint8, "INT8": np.int8, "INT32": np.int32, "INT64": np.int64,
             "UINT64": np.uint64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}  # fmt: skip
    for datatype, kind in kinds.items():
        array = np.array([0, 1, 1], kind)
        for binary in (True, False) if datatype != "FP16" else (True,):
            outputs = [RequestedOutput("y", {"binary_data": binary})]
            inputs = [given("x", array, datatype, binary)]
            response = await ask(client, f"identity_{datatype.lower()}", inputs, request_outputs=outputs)
            np.testing.assert_array_equal(response.outputs[0].as_numpy(), array)


async def check_bytes(client):
    texts = np.array([b"a", "ü".encode()], dtype=object)
    for binary in (True, False):
        outputs = [RequestedOutput("y", {"binary_data": binary})]
        response = await ask(client, "identity_bytes", [given("x", texts, "BYTES", binary)], request_outputs=outputs)
        items = response.outputs[0].as_numpy().ravel()
        assert [item.encode() if isinstance(item, str) else item for item in items] == texts.tolist()


async def check_values_that_are_no_numbers(client):
    array = np.array([np.nan, np.inf, -np.inf, 1.5], np.float32)
    for binary_out in (True, False):
        outputs = [RequestedOutput("y", {"binary_data": binary_out})]
        inputs = [given("x", array, "FP32", True)]
        response = await ask(client, "identity_fp32", inputs, request_outputs=outputs)
        np.testing.assert_array_equal(response.outputs[0].as_numpy(), array)
    written_as_null = InferInput("x", [2], "FP32", [float("nan"), 1.5])
    response = await ask(client, "identity_fp32", [written_as_null])
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), np.array([np.nan, 1.5], np.float32))


async def check_all_outputs_as_binary(client):
    array = np.arange(3000, dtype=np.float32)
    inputs = [given("x", array, "FP32", True)]
    response = await ask(client, "identity_fp32", inputs, parameters={"binary_data_output": True})
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), array)


async def check_id_and_parameters(client):
    inputs = [InferInput("x", [1], "FP32", [1.0])]
    response = await ask(client, "identity_fp32", inputs, request_id="abc", parameters={"mine": "x"})
    assert response.id == "abc"


async def check_an_error_is_read_from_its_body(client):
    x = [InferInput("x", [1], "FP32", [1.0])]
    await refused_later(ask(client, "nope", x), "Request for unknown model", "404")
    await refused_later(ask(client, "add_sub", x), "unexpected inference input 'x'", "400")


if __name__ == "__main__":
    run(globals(), Client)

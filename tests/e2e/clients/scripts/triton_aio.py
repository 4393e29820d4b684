"""NVIDIA's asyncio HTTP client, unchanged."""

import asyncio

import numpy as np
import tritonclient.http.aio as triton
from checks import refused_later, run


def given(name, array, datatype, binary=True):
    tensor = triton.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


async def check_health_and_metadata(client):
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("add_sub")
    assert not await client.is_model_ready("nope")
    assert (await client.get_model_metadata("add_sub"))["name"] == "add_sub"
    assert (await client.get_model_config("add_sub"))["max_batch_size"] == 8
    assert (await client.get_inference_statistics("add_sub"))["model_stats"]
    assert (await client.get_server_metadata())["name"]


async def check_repository(client):
    assert any(row["name"] == "scalar" for row in await client.get_model_repository_index())
    await client.unload_model("scalar")
    assert not await client.is_model_ready("scalar")
    await client.load_model("scalar")
    assert await client.is_model_ready("scalar")


async def check_infer_json_binary_and_bytes(client):
    array = np.arange(6, dtype=np.float32)
    texts = np.array([b"a", "ü".encode()], dtype=object)
    for binary in (True, False):
        result = await client.infer("identity_fp32", [given("x", array, "FP32", binary)])
        np.testing.assert_array_equal(result.as_numpy("y"), array)
        result = await client.infer("identity_bytes", [given("x", texts, "BYTES", binary)])
        np.testing.assert_array_equal(result.as_numpy("y"), texts)


async def check_many_at_once(client):
    async def ask(number):
        array = np.full(3, number, np.float32)
        result = await client.infer("identity_fp32", [given("x", array, "FP32")], request_id=str(number))
        assert result.get_response()["id"] == str(number)
        np.testing.assert_array_equal(result.as_numpy("y"), array)

    await asyncio.gather(*(ask(number) for number in range(200)))


async def check_compression(client):
    array = np.arange(5000, dtype=np.float32)
    for algorithm in ("gzip", "deflate"):
        result = await client.infer(
            "identity_fp32", [given("x", array, "FP32")],
            request_compression_algorithm=algorithm, response_compression_algorithm=algorithm,
        )  # fmt: skip
        np.testing.assert_array_equal(result.as_numpy("y"), array)


async def check_errors(client):
    x = given("x", np.ones(1, np.float32), "FP32")
    await refused_later(client.infer("nope", [x]), "Request for unknown model", "404")
    await refused_later(client.load_model("broken"), "failed to load")


if __name__ == "__main__":
    run(globals(), lambda url: triton.InferenceServerClient(url.removeprefix("http://")))

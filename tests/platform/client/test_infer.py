"""Arrays reach the model as they are, come back as they were, and are refused before anything is sent."""

import json
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pandas
import pytest
from tests.platform.client.conftest import Ask
from tests.platform.client.scripted_server import METADATA, RESULT, reply, scripted
from tests.serving import RunningServer

from pilotlight.client import Client, InvalidInput, ResponseError
from pilotlight.contract import NUMPY_TYPES
from pilotlight.errors import UsageError

RNG = np.random.default_rng(0)


def values(kind: str) -> Any:
    if kind == "?":
        return np.array([True, False, True])
    if kind[-2] == "f":
        return np.array([0.5, -1.25, np.inf, 0.0], kind)
    limits = np.iinfo(kind)
    return np.array([limits.min, 0, 7, limits.max], kind)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", NUMPY_TYPES)
def test_every_datatype_returns_as_it_was_sent(served: RunningServer, ask: Ask, datatype: str, binary: bool) -> None:
    array = values(NUMPY_TYPES[datatype])
    if not binary and datatype.startswith("FP"):
        array = array[np.isfinite(array)]  # JSON has no infinity
    model = f"identity_{datatype.lower()}"
    result = ask(served.url, "infer", model, {"x": array}, client={"binary": binary})
    assert result["y"].dtype == array.dtype
    np.testing.assert_array_equal(result["y"], array)
    assert (result.model_name, result.cold_start_s) == (model, 0.0)


def test_bfloat16_is_sent_as_it_is_or_rounded_and_returns_as_float32(served: RunningServer, ask: Ask) -> None:
    given = np.array([1.0, -2.5, 3.140625, np.nan], np.float32)
    for array in (given, given.astype(ml_dtypes.bfloat16), given.astype(np.float64)):
        result = ask(served.url, "infer", "identity_bf16", array)["y"]
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, given)


def test_rounding_to_bfloat16_is_that_of_ml_dtypes(served: RunningServer) -> None:
    array = RNG.normal(size=4000).astype(np.float32)
    with Client(served.url) as client:
        result = client.infer("identity_bf16", array)["y"]
    np.testing.assert_array_equal(result, array.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(
    "value", [["a", "grüß"], [b"a", "grüß".encode()], np.array(["a", "grüß"]), np.array(["a", "grüß"], object)]
)
def test_text_and_bytes_become_bytes(served: RunningServer, ask: Ask, value: Any) -> None:
    result = ask(served.url, "infer", "identity_bytes", value)
    assert list(result["y"]) == [b"a", "grüß".encode()]
    assert result.strings("y") == ["a", "grüß"]
    assert repr(result) == f"InferResult(identity_bytes, y: BYTES[2] {result['y']})"


def test_bytes_that_are_no_text_pass(served: RunningServer, ask: Ask) -> None:
    assert list(ask(served.url, "infer", "echo", {"x": [b"\xff\x00", b""]})["y"]) == [b"\xff\x00", b""]


@pytest.mark.parametrize(
    ("model", "value", "expected"),
    [
        ("rows", [5.1, 3.5, 1.4, 0.2], np.array([[5.1, 3.5, 1.4, 0.2]], np.float32)),  # batch of one, from a list
        ("rows", np.array([[5.1, 3.5, 1.4, 0.2]]), np.array([[5.1, 3.5, 1.4, 0.2]], np.float32)),  # float64
        ("rows", np.ones((4, 2), np.float32).T, np.ones((2, 4), np.float32)),  # not contiguous
        ("rows", np.arange(16, dtype=np.float32).reshape(2, 8)[:, ::2], np.array([[0, 2, 4, 6], [8, 10, 12, 14]])),
        ("identity_fp32", np.array([1.5, 2.5], ">f4"), np.array([1.5, 2.5], np.float32)),  # the other byte order
        ("identity_fp32", np.array([1, 2, 3]), np.array([1, 2, 3], np.float32)),
        ("identity_int32", np.array([1, -2]), np.array([1, -2], np.int32)),
        ("identity_int64", np.array([1, 2], np.uint8), np.array([1, 2])),
        ("identity_uint8", [1, 255], np.array([1, 255], np.uint8)),
        ("identity_fp32", [True, False], np.array([1, 0], np.float32)),
        ("identity_fp32", np.zeros(0), np.zeros(0, np.float32)),
        ("scalar", 2.5, np.float32(2.5)),
        ("matrix", RNG.random((300, 400), np.float32), None),  # sent in pieces
    ],
)
def test_what_keeps_its_values_is_converted(
    served: RunningServer, ask: Ask, model: str, value: Any, expected: Any
) -> None:
    result = ask(served.url, "infer", model, value)["y"]
    np.testing.assert_array_equal(result, value if expected is None else expected)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        ("rows", {"x": [1.0, 2.0, 3.0]}, "input 'x' has shape [3], expected [-1, 4]; 3 values do not fit"),
        ("rows", np.zeros((2, 2, 4)), "input 'x' has shape [2, 2, 4], expected [-1, 4]; reshape it to [-1, 4]"),
        ("rows", np.zeros((2, 3)), "input 'x' has shape [2, 3], expected [-1, 4]; the sizes must be equal"),
        ("rows", [[1, 2, 3, 4], [1]], "input 'x' is nested unevenly"),
        ("rows", {"z": [1]}, "model 'rows' has no input 'z'; its inputs are 'x'"),
        ("rows", ["a", "b", "c", "d"], "input 'x' has datatype BYTES, expected FP32; convert it: .astype('float32')"),
        ("add_sub", np.zeros(4), "model 'add_sub' has the inputs 'a', 'b'; give arrays by name: {'a': array}"),
        ("identity_int32", [1.5], "input 'x' has datatype FP64, expected INT32; round the values"),
        ("identity_int32", [2**40], "input 'x': 1099511627776 (int64) does not fit INT32"),
        ("identity_uint64", [-1], "input 'x': -1 (int64) does not fit UINT64"),
        ("identity_fp32", [2**24 + 1], "input 'x': 16777217 (int64) does not fit FP32"),
        ("identity_fp32", [1e300], "input 'x': 1e+300 (float64) does not fit FP32"),
        ("identity_bool", [1], "input 'x' has datatype INT64, expected BOOL; compare them first: x != 0"),
        ("identity_bytes", [1], "input 'x' has datatype int, expected BYTES; give str or bytes"),
        ("identity_fp32", np.array([1j]), "input 'x' has datatype complex128, unsupported by V2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_it_is_sent(
    served: RunningServer, ask: Ask, model: str, inputs: Any, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        ask(served.url, "infer", model, inputs)
    assert message in str(caught.value)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, ValueError)


def test_nothing_is_sent_of_a_wrong_input(ask: Ask) -> None:
    with scripted(reply(200, METADATA)) as server:
        with pytest.raises(InvalidInput):
            ask(server.url, "infer", "m", np.zeros((2, 2)))
        assert [head.split()[1] for head in server.requests] == ["/v2/models/m"]


def test_outputs_parameters_and_id_reach_the_model(served: RunningServer, ask: Ask) -> None:
    metadata = ask(served.url, "metadata", "add_sub")
    shape = [1 if size < 0 else size for size in metadata["inputs"][0]["shape"]]
    inputs = {
        name: np.ones(shape, metadata["inputs"][0]["datatype"].replace("FP", "f").replace("f32", "f4")) for name in "ab"
    }
    result = ask(served.url, "infer", "add_sub", inputs, outputs=["sum"], request_id="r1", parameters={"priority": 0})
    assert list(result) == ["sum"]
    assert (result["sum"] == 2).all()
    assert result.id == "r1"
    with pytest.raises(KeyError, match="difference; the outputs are sum"):
        result["difference"]


def test_a_version_is_chosen(served: RunningServer, ask: Ask) -> None:
    assert ask(served.url, "infer", "two_versions", [3], version="1")["y"] == [3]
    newest = ask(served.url, "infer", "two_versions", [3])
    assert (list(newest["y"]), newest.model_version) == ([-3], "2")


def test_a_name_with_odd_characters_is_found(served: RunningServer, ask: Ask) -> None:
    assert ask(served.url, "infer", "ümläut & co", [[1.0, 2.0]])["y"].shape == (1, 2)


def test_the_only_model_needs_no_name(one_model: RunningServer, ask: Ask) -> None:
    assert ask(one_model.url, "infer", [1.0, 2.0, 3.0, 4.0])["y"].shape == (1, 4)
    assert ask(one_model.url, "metadata")["name"] == "only"
    assert ask(one_model.url + "/v2/", "models") == ["only"]


def test_one_of_several_models_is_to_be_named(served: RunningServer, ask: Ask) -> None:
    with pytest.raises(InvalidInput, match=r"has the models .*rows.*; name one: infer\(model, inputs\)"):
        ask(served.url, "infer", [1.0])


def test_triton_s_index_and_openai_s_list_name_models_too(ask: Ask) -> None:
    missing = reply(404, {"error": "no"})
    with scripted(missing, reply(200, [{"name": "a"}, {"name": "b"}])) as server:
        assert ask(server.url, "models") == ["a", "b"]
        assert server.requests[1].startswith("POST /v2/repository/index ")
    with scripted(missing, missing, reply(200, {"data": [{"id": "c"}]})) as server:
        assert ask(server.url, "models") == ["c"]


def test_the_service_in_the_url_names_the_model(ask: Ask) -> None:
    with scripted(reply(200, {"models": ["m", "n"]}), reply(200, METADATA), reply(200, RESULT)) as server:
        assert ask(f"{server.url}/team/m", "infer", [1.0])["y"] == [2.0]
        assert [head.split()[1] for head in server.requests][1] == "/team/m/v2/models/m"


def test_readiness_is_told(served: RunningServer, ask: Ask) -> None:
    assert ask(served.url, "ready")
    assert ask(served.url, "ready", "rows")
    assert not ask(served.url, "ready", "nothing")
    assert not ask("http://127.0.0.1:9", "ready", client={"retries": 0})


def test_an_error_of_the_server_has_its_status_and_sentence(served: RunningServer, ask: Ask) -> None:
    with pytest.raises(
        ResponseError, match=r"model 'rows': the server returned 400: .*batch-size must be <= 8"
    ) as caught:
        ask(served.url, "infer", "rows", np.zeros((9, 4)))
    assert caught.value.status == 400
    with pytest.raises(ResponseError, match=r"404: .*'nothing'.*; its models are .*rows"):
        ask(served.url, "infer", "nothing", [1])


def test_metadata_is_fetched_once_and_again_when_the_model_was_replaced() -> None:
    other = {**METADATA, "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]}
    rejected = reply(400, {"error": "unexpected shape"})
    script = [reply(200, METADATA), reply(200, RESULT), reply(200, RESULT)]
    # A rejection fetches it anew; a shape that only the new one takes does as well.
    script += [rejected, reply(200, other), reply(200, RESULT), reply(200, METADATA), reply(200, RESULT)]
    with scripted(*script) as server, Client(server.url) as client:
        for value in ([1.0], [1.0], [1.0, 2.0], [1.0]):
            client.infer("m", value)
        kinds = ["infer" if "/infer" in head else "metadata" for head in server.requests]
    assert kinds == ["metadata", "infer", "infer", "infer", "metadata", "infer", "metadata", "infer"]


def test_a_model_without_declared_inputs_gets_arrays_as_they_are(ask: Ask) -> None:
    with scripted(reply(200, {"name": "m", "inputs": []}), reply(200, RESULT)) as server:
        ask(server.url, "infer", "m", {"x": np.zeros((2, 3), np.int16)})


TABLE = [
    {"name": "sqm", "datatype": "FP64", "shape": [-1, 1]}, {"name": "town", "datatype": "BYTES", "shape": [-1, 1]},
]  # fmt: skip
MATRIX = [{"name": "input-0", "datatype": "FP64", "shape": [-1, 2], "parameters": {"columns": ["sqm", "floor"]}}]
FRAME = pandas.DataFrame({"sqm": [80.5, 70.0], "town": ["Ulm", "Bonn"]})
NUMBERS = pandas.DataFrame({"sqm": [80.5, 70.0], "floor": [1, 2]})


@pytest.mark.parametrize(
    ("inputs", "given", "sent"),
    [
        (TABLE, FRAME, [("sqm", [2, 1], [80.5, 70]), ("town", [2, 1], ["Ulm", "Bonn"])]),
        (TABLE, FRAME.to_dict("records"), [("sqm", [2, 1], [80.5, 70]), ("town", [2, 1], ["Ulm", "Bonn"])]),
        (TABLE, FRAME.to_numpy(), [("sqm", [2, 1], [80.5, 70]), ("town", [2, 1], ["Ulm", "Bonn"])]),
        (TABLE, [80.5, "Ulm"], [("sqm", [1, 1], [80.5]), ("town", [1, 1], ["Ulm"])]),
        (MATRIX, NUMBERS, [("sqm", [2, 1], [80.5, 70]), ("floor", [2, 1], [1, 2])]),
        (MATRIX, NUMBERS.to_numpy(), [("input-0", [2, 2], [80.5, 1, 70, 2])]),
        ([{"name": "x", "datatype": "FP32", "shape": [-1, 2]}], NUMBERS, [("x", [2, 2], [80.5, 1, 70, 2])]),
        ([], NUMBERS, [("sqm", [2], [80.5, 70]), ("floor", [2], [1, 2])]),
        ([], [{"sqm": 80.5, "town": "Ulm"}], [("sqm", [1], [80.5]), ("town", [1], ["Ulm"])]),
        ([], [3, 4], [("", [2], [3, 4])]),  # the only argument of a function
    ],
)
def test_tables_are_given_as_frames_records_or_rows_and_a_lone_argument_without_its_name(
    ask: Ask, inputs: Any, given: Any, sent: Any
) -> None:
    with scripted(reply(200, {"name": "m", "inputs": inputs}), reply(200, RESULT)) as server:
        ask(server.url, "infer", "m", given, client={"binary": False})
        tensors = json.loads(server.bodies[1])["inputs"]
    assert [(each["name"], each["shape"], each["data"]) for each in tensors] == sent


def test_rows_that_are_unlike_or_of_another_table_are_refused(ask: Ask) -> None:
    with scripted(*[reply(200, {"name": "m", "inputs": TABLE})] * 3) as server:
        for given, message in (
            ([{"sqm": 1}, {"town": "Ulm"}], "the rows have different names"),
            ([[80.5]], "the model has 2 columns: sqm, town; each row must have a value for each"),
            (NUMBERS, "has no input 'floor'; its inputs are 'sqm', 'town'"),
        ):
            with pytest.raises(InvalidInput, match=f"model 'm'.*{message}"):
                ask(server.url, "infer", "m", given)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {}),
        (b'{"outputs": 3}', {}),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}}]}abc', 93),
    ],
)
def test_a_response_that_is_none_of_v2_is_an_error(ask: Ask, body: bytes, headers: Any) -> None:
    length = f"Inference-Header-Content-Length: {body.index(b']}') + 2}\r\n" if headers else ""
    raw = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{length}\r\n".encode() + body
    with scripted(reply(200, METADATA), raw) as server, pytest.raises(ResponseError, match="model 'm': "):
        ask(server.url, "infer", "m", [1.0])


def test_importing_the_client_loads_neither_numpy_nor_aiohttp() -> None:
    code = "import sys, pilotlight.client; pilotlight.client.AsyncClient('http://a'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"numpy", "aiohttp"} & set(done.stdout.split())

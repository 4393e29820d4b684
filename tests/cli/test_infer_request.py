"""What a person types becomes the V2 request that the model takes."""

import json
import math
import shlex
import struct
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from PIL import Image

from pilotlight.contract import HEADER_INFERENCE_LENGTH
from pilotlight.errors import PlatformError, UsageError
from pilotlight.v2_tensors import InputSpec
from pilotlight.wire.http_client import HttpReply
from platformctl.commands.service.infer import build_body, format_values, infer, parse_reply
from platformctl.services import infer_request
from platformctl.services.infer_request import InferRequest

X = InputSpec("x", "FP32", (-1, 4))
WORDS = InputSpec("words", "BYTES", (-1, 1))


def document(request: InferRequest) -> Any:
    length = int(request.headers.get(HEADER_INFERENCE_LENGTH, len(request.body)))
    return json.loads(request.body[:length])


@pytest.mark.parametrize(
    ("shape", "given", "count", "sent"),
    [
        ((-1, 4), (4,), 4, (1, 4)),
        ((-1, 4), (8,), 8, (2, 4)),
        ((-1, 4), (2, 4), 8, (2, 4)),
        ((4,), (4,), 4, (4,)),
        ((3, 2), (6,), 6, (3, 2)),
        ((-1, 1), (), 1, (1, 1)),
        ((-1, -1), (5,), 5, (1, 5)),
        ((-1, -1, 3), (2, 5, 3), 30, (2, 5, 3)),
        ((1, 3, 224, 224), (3, 224, 224), 150528, (1, 3, 224, 224)),
        ((), (), 1, ()),
        ((1,), (2,), 2, (2,)),  # the server says how a model takes several
    ],
)  # fmt: skip
def test_the_shape_follows_from_what_is_given(
    shape: tuple[int, ...], given: tuple[int, ...], count: int, sent: tuple[int, ...]
) -> None:
    assert infer_request.fit_shape(InputSpec("x", "FP32", shape), given, count) == sent


@pytest.mark.parametrize(("shape", "count"), [((-1, 4), 3), ((4,), 5), ((2, 2), 8)])
def test_values_that_cannot_fit_are_refused_with_the_shape(shape: tuple[int, ...], count: int) -> None:
    with pytest.raises(UsageError, match="input 'x' has the shape"):
        infer_request.fit_shape(InputSpec("x", "FP32", shape), (count,), count)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([[1, 2], [3, 4]], r"input 'x' has the shape \[-1, 4\], values of \[2, 2\] do not fit it"),
        ([[1, 2, 3, 4, 5, 6, 7, 8]], r"values of \[1, 8\] do not fit"),
        ([[1, 2, 3], [4]], r"nested unevenly; input 'x' has the shape \[-1, 4\]"),
        ([1, 2, 3, [4]], "nested unevenly"),
    ],
)
def test_nested_values_keep_their_shape_or_are_refused(value: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        infer_request.from_json(value, [X], "")


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"instances": rows}])
def test_plain_values_go_to_the_only_input(wrap: Any) -> None:
    sent = document(infer_request.from_json(wrap([[1, 2, 3, 4], [5, 6, 7, 8]]), [X], ""))
    assert sent == {"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6, 7, 8]}]}


def test_values_go_to_inputs_by_name() -> None:
    sent = document(infer_request.from_json({"x": [1, 2, 3, 4], "words": "a"}, [X, WORDS], ""))
    assert [(each["name"], each["shape"]) for each in sent["inputs"]] == [("x", [1, 4]), ("words", [1, 1])]


@pytest.mark.parametrize(
    "value",
    [
        {"sqm": [80.5, 70], "new": [True, False]},
        [{"sqm": 80.5, "new": True}, {"sqm": 70, "new": False}],
        {"instances": [{"sqm": 80.5, "new": True}, {"sqm": 70, "new": False}]},
    ],
)
def test_a_table_is_given_by_its_column_names(value: Any) -> None:
    table = InputSpec("input-0", "FP64", (-1, 2), columns=("sqm", "new"))
    sent = document(infer_request.from_json(value, [table], ""))["inputs"]
    assert [(each["name"], each["shape"], each["data"]) for each in sent] == [
        ("sqm", [2, 1], [80.5, 70]), ("new", [2, 1], [1, 0]),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="no input 'rooms'; its inputs are 'input-0', 'sqm', 'new'"):
        infer_request.from_json({"rooms": [1]}, [table], "")
    with pytest.raises(UsageError, match="the rows have different names"):
        infer_request.from_json([{"sqm": 1}, {"new": 1}], [table], "")


def test_values_without_names_go_to_single_values_in_their_order() -> None:
    single = [InputSpec("age", "INT64", (1,)), InputSpec("income", "FP64", (1,))]
    sent = document(infer_request.from_json([30, 1000.5], single, ""))["inputs"]
    assert [(each["name"], each["data"]) for each in sent] == [("age", [30]), ("income", [1000.5])]
    optional = [single[0], InputSpec("income", "FP64", (1,), optional=True)]
    (only,) = document(infer_request.from_json([30], optional, ""))["inputs"]
    assert (only["name"], only["data"]) == ("age", [30])


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"instances": rows}])
def test_rows_go_to_the_columns_of_a_table_in_their_order(wrap: Any) -> None:
    table = [InputSpec("sqm", "FP64", (-1, 1)), InputSpec("town", "BYTES", (-1, 1))]

    def sent(value: Any) -> list[Any]:
        return [(each["shape"], each["data"]) for each in document(infer_request.from_json(value, table, ""))["inputs"]]

    assert sent(wrap([[80.5, "Ulm"], [70, "Bonn"]])) == [([2, 1], [80.5, 70]), ([2, 1], ["Ulm", "Bonn"])]
    assert sent([80.5, "Ulm"]) == [([1, 1], [80.5]), ([1, 1], ["Ulm"])]
    with pytest.raises(UsageError, match="the model has 2 columns: sqm, town") as caught:
        infer_request.from_json(wrap([[80.5, "Ulm"], [70]]), table, "")
    assert caught.value.hint.endswith("""give values by name: --data '{"sqm": [0], "town": ["text"]}'""")


COLUMNS = [InputSpec("sqm", "FP64", (-1, 1)), InputSpec("town", "BYTES", (-1, 1)), InputSpec("new", "BOOL", (-1, 1))]


@pytest.mark.parametrize(
    ("text", "inputs", "sent"),
    [
        ("town,sqm,new\nUlm,80.5,true\n07,,False\n", COLUMNS,
         [("town", [2, 1], ["Ulm", "07"]), ("sqm", [2, 1], [80.5, math.nan]), ("new", [2, 1], [True, False])]),
        ("a,b\n1,x\n2,y\n", [], [("a", [2], [1, 2]), ("b", [2], ["x", "y"])]),
        ("a,b,c,d\n1,2,3,4.5\n", [X], [("x", [1, 4], [1, 2, 3, 4.5])]),
        ("1,2,3,4\n5,6,7,8\n", [X], [("x", [2, 4], [1, 2, 3, 4, 5, 6, 7, 8])]),
        ("words\nhi\n", [WORDS], [("words", [1, 1], ["hi"])]),
    ],
)  # fmt: skip
def test_a_csv_file_is_a_table_by_its_header(text: str, inputs: Any, sent: Any, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(text)
    given = document(build_body("file", tmp_path / "q.csv", inputs, ""))["inputs"]
    assert repr([(each["name"], each["shape"], each["data"]) for each in given]) == repr(sent)  # nan != nan
    (tmp_path / "q.tsv").write_text(text.replace(",", "\t"))
    assert build_body("file", tmp_path / "q.tsv", inputs, "") == build_body("file", tmp_path / "q.csv", inputs, "")


def test_a_csv_file_that_fits_no_table_is_the_bytes_of_its_input_or_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "q.csv"
    file.write_text("a,b\n1\n")
    assert build_body("file", file, [WORDS], "").body.endswith(b"a,b\n1\n")
    with pytest.raises(UsageError, match="holds no rows as long as its first line"):
        build_body("file", file, COLUMNS, "")
    file.write_text("a\n1\n")
    with pytest.raises(UsageError, match="no input 'a'; its inputs are 'sqm', 'town', 'new'"):
        build_body("file", file, COLUMNS, "")


def test_the_example_of_a_hint_is_a_request_that_fits_the_model() -> None:
    image, flag = InputSpec("image", "UINT8", (-1, 3, 224, 224)), InputSpec("its flag", "BOOL", (1,))
    optional, inputs = InputSpec("seed", "INT64", (1,), optional=True), [X, WORDS, flag]
    example = infer_request.example_of([*inputs, optional])
    (_, value) = shlex.split(example)
    sent = document(infer_request.from_json(json.loads(value), inputs, ""))["inputs"]
    assert [(each["name"], each["shape"]) for each in sent] == [("x", [1, 4]), ("words", [1, 1]), ("its flag", [1])]
    assert infer_request.example_of([image]) == """--data '{"image": [[[[0, …], …], [[0, …], …], [[0, …], …]]]}'"""
    columns = [InputSpec(f"c{i}", "FP64", (-1, 1)) for i in range(30)]
    assert infer_request.example_of(columns).endswith('"c5": [0], …}\'')


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("hi", {"text_input": "hi"}),
        (["hi"], {"text_input": "hi"}),
        ({"instances": ["hi"]}, {"text_input": "hi"}),
        ({"text_input": "hi"}, {"text_input": "hi"}),
        ({"text_input": ["hi"], "max_tokens": 3}, {"text_input": "hi", "max_tokens": 3}),
        (["a", "b"], None),
        ({"text_input": ["a", "b"]}, None),
        ({"inputs": [{"name": "text_input"}]}, None),
        (3, None),
    ],
)
def test_one_prompt_in_json_becomes_a_request_to_generate(value: Any, sent: Any) -> None:
    assert infer_request.prompt_of("data", value) == sent


def test_an_optional_input_needs_no_choice() -> None:
    inputs = [InputSpec("text", "BYTES", (-1,)), InputSpec("text_pair", "BYTES", (-1,), optional=True)]
    assert [each["name"] for each in document(build_body("text", "hi", inputs, ""))["inputs"]] == ["text"]


def test_a_whole_request_goes_as_it_is() -> None:
    whole = {"inputs": [{"name": "anything"}], "parameters": {"a": 1}}
    assert document(infer_request.from_json(whole, [X], "")) == whole


def test_several_inputs_need_a_name() -> None:
    with pytest.raises(UsageError, match="several inputs: 'x', 'words'") as caught:
        infer_request.from_json([1], [X, WORDS], "")
    assert caught.value.hint == """give values by name: --data '{"x": [[0, 0, 0, 0]], "words": ["text"]}'"""
    assert document(infer_request.from_json(["a"], [X, WORDS], "words"))["inputs"][0]["name"] == "words"
    with pytest.raises(UsageError, match="no input 'y'; its inputs are 'x', 'words'"):
        infer_request.select_input([X, WORDS], "y")


def test_a_model_without_declared_inputs_takes_named_values_in_their_own_type() -> None:
    values = {"a": [1, 2], "b": [[0.5], [1]], "c": "hi", "d": [True]}
    sent = document(infer_request.from_json(values, [], ""))["inputs"]
    assert [(each["datatype"], each["shape"], each["data"]) for each in sent] == [
        ("INT64", [2], [1, 2]), ("FP64", [2, 1], [0.5, 1]), ("BYTES", [1], ["hi"]), ("BOOL", [1], [True]),
    ]  # fmt: skip


def test_values_without_a_name_are_the_only_argument_of_a_model_without_declared_inputs() -> None:
    for body in (infer_request.from_json([1], [], ""), infer_request.from_json({"instances": [1]}, [], "")):
        (sent,) = document(body)["inputs"]
        assert (sent["name"], sent["datatype"], sent["data"]) == ("", "INT64", [1])
    (sent,) = document(build_body("text", "hi", [], "words"))["inputs"]
    assert (sent["name"], sent["datatype"], sent["data"]) == ("words", "BYTES", ["hi"])
    with pytest.raises(UsageError, match="declares no inputs") as caught:
        build_body("file", Path("photo.bin"), [], "")
    assert '--data \'{"inputs": [' in caught.value.hint
    assert "name them: --data '{\"NAME\": values}'" in caught.value.hint


def test_an_error_of_the_model_names_its_log() -> None:
    with pytest.raises(PlatformError, match="the service responded 500: model 'm' failed") as caught:
        parse_reply(HttpReply(500, {}, b'{"error": "model \'m\' failed"}', 0.1), "m", service="wine")
    assert caught.value.hint == "the error of the model: platformctl logs wine"


def test_probabilities_are_printed_with_their_classes() -> None:
    assert format_values([[0.25, 0.75], [1.0, 0.0]], ["free", "pro"]) == "free=0.25 pro=0.75 free=1 pro=0"
    assert format_values([0.25], ["free", "pro"]) == format_values([0.25], ()) == "0.25"


def test_values_of_images_go_in_their_own_size() -> None:
    spec = InputSpec("x", "FP32", (-1, 1, 28, 28))
    assert infer_request.fit_shape(spec, (1, 1, 30, 30), 900) == (1, 1, 30, 30)
    assert infer_request.fit_shape(spec, (1, 28, 28), 784) == (1, 1, 28, 28)


def test_text_goes_to_the_prompt_of_a_text_model() -> None:
    inputs = [InputSpec(name, "BYTES", (1,)) for name in ("messages", "text_input", "tools")]
    assert document(build_body("text", "hello", inputs, ""))["inputs"][0]["name"] == "text_input"
    assert document(build_body("text", "hello", inputs, "tools"))["inputs"][0]["name"] == "tools"


def test_text_is_for_inputs_of_text() -> None:
    assert document(infer_request.encode([infer_request.text_tensor(WORDS, "grüß")]))["inputs"][0]["data"] == ["grüß"]
    with pytest.raises(UsageError, match="takes FP32, not text") as caught:
        infer_request.text_tensor(X, "a")
    assert caught.value.hint == "give numbers: --data '[[0, 0, 0, 0]]'"


def test_bytes_travel_raw_behind_the_header() -> None:
    request = infer_request.encode([infer_request.raw_tensor(WORDS, b"\xff\x00")])
    length = int(request.headers[HEADER_INFERENCE_LENGTH])
    assert request.body[length:] == struct.pack("<I", 2) + b"\xff\x00"
    assert document(request)["inputs"][0]["parameters"] == {"binary_data_size": 6}
    assert document(infer_request.encode([infer_request.raw_tensor(X, bytes(32))]))["inputs"][0]["shape"] == [2, 4]
    with pytest.raises(UsageError, match=r"row\.txt is text, and input 'x' takes FP32") as caught:
        build_body("file", Path("row.txt"), [X], "")
    assert "--file values.json" in caught.value.hint
    with pytest.raises(UsageError, match="a file of 31 B does not hold whole FP32 values"):
        infer_request.raw_tensor(X, bytes(31))


def test_a_saved_array_is_sent_in_the_type_of_the_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(8, dtype=np.int64).reshape(2, 4))
    tensor = infer_request.npy_tensor(X, tmp_path / "a.npy")
    assert tensor.shape == (2, 4)
    assert tensor.raw == np.arange(8, dtype=np.float32).tobytes()
    np.save(tmp_path / "square.npy", np.ones((2, 2)))
    with pytest.raises(UsageError, match=r"values of \[2, 2\] do not fit it"):
        infer_request.npy_tensor(X, tmp_path / "square.npy")
    (tmp_path / "b.npy").write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"b\.npy is no array"):
        infer_request.npy_tensor(X, tmp_path / "b.npy")


@pytest.mark.parametrize(
    ("array", "what"), [(["a", "b"], "text"), ([b"a"], "bytes"), ([1j], "complex numbers")], ids=lambda x: str(x)
)
def test_an_array_of_something_else_than_numbers_is_refused(array: Any, what: str, tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array(array))
    with pytest.raises(UsageError, match=rf"s\.npy holds {what}, input 'x' takes FP32"):
        infer_request.npy_tensor(X, tmp_path / "s.npy")


def test_an_array_of_text_goes_to_an_input_of_text(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array([["grüß"], ["dich"]]))
    sent = document(infer_request.encode([infer_request.npy_tensor(WORDS, tmp_path / "s.npy")]))
    assert (sent["inputs"][0]["shape"], sent["inputs"][0]["data"]) == ([2, 1], ["grüß", "dich"])


@pytest.mark.parametrize(
    ("shape", "datatype", "sent"),
    [
        ((-1, 3, 4, 6), "FP32", (1, 3, 4, 6)),
        ((1, 4, 6, 3), "UINT8", (1, 4, 6, 3)),
        ((-1, 3, -1, -1), "FP32", (1, 3, 8, 8)),
        ((4, 6, 1), "UINT8", (4, 6, 1)),
    ],
)
def test_a_picture_gets_the_size_order_and_type_of_the_input(
    shape: tuple[int, ...], datatype: str, sent: tuple[int, ...], tmp_path: Path
) -> None:
    Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "red.png")
    tensor = infer_request.image_tensor(InputSpec("image", datatype, shape), tmp_path / "red.png")
    assert tensor.shape == sent
    assert tensor.raw is not None
    if datatype == "FP32":
        planes = np.frombuffer(tensor.raw, "<f4").reshape(sent)[0]
        assert planes[0].min() == 1.0
        assert planes[1:].max() == 0.0


def test_a_picture_that_keeps_its_size_is_sent_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    with click.Context(infer):
        for shape in ((-1, 3, 4, 4), (-1, 3, -1, -1)):
            build_body("image", tmp_path / "a.png", [InputSpec("image", "FP32", shape)], "")
    assert capsys.readouterr().err == "sent as 3 x 6 x 8: input 'image' takes any height and width\n"


def test_a_picture_for_an_input_of_bytes_is_the_file_itself(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    assert infer_request.image_tensor(WORDS, tmp_path / "a.png").raw == struct.pack("<I", len(content)) + content


def test_outputs_are_requested_in_their_order_and_raw_tensors_stay() -> None:
    plain = infer_request.from_json([1, 2, 3, 4], [X], "")
    raw = infer_request.encode([infer_request.raw_tensor(X, struct.pack("<4f", 1, 2, 3, 4))])
    for request in (plain, raw):
        chosen = infer_request.with_outputs(request, "b,a")
        assert document(chosen) == {**document(request), "outputs": [{"name": "b"}, {"name": "a"}]}
    assert chosen.body.endswith(struct.pack("<4f", 1, 2, 3, 4))


def test_headers_are_written_as_for_curl() -> None:
    lines = ["X-Tenant: a", "my-key:b:c", "x-tenant:  d", "Empty:"]
    assert infer_request.parse_headers(lines) == {"x-tenant": "a, d", "my-key": "b:c", "empty": ""}
    for line in ("no header", ": x", "a b: c", "a: b\r\nc: d", "a: \u2026"):
        with pytest.raises(UsageError, match="is no header"):
            infer_request.parse_headers([line])
    with pytest.raises(UsageError, match="infer sets content-length itself"):
        infer_request.parse_headers(["Content-Length: 3"])

"""V2 inference requests from --data and the model's metadata. Pure, except for reading files.

Numbers and text are sent as JSON; files, images and arrays as raw tensors after a JSON header. numpy and Pillow are
imported on use.
"""

import csv
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight.contract import HEADER_INFERENCE_LENGTH, NUMPY_TYPES
from pilotlight.errors import UsageError
from pilotlight.v2_tensors import (
    SIZES,
    InputSpec,
    Tensor,
    encode_request,
    flatten,
    has_no_names,
    pack_bytes,
    required_inputs,
    rows_by_name,
    with_columns,
)
from pilotlight.wire.messages import quoted

if TYPE_CHECKING:
    import numpy as np

CHANNELS: Final = {1: "L", 3: "RGB", 4: "RGBA"}
# numpy's letters for kinds of elements
NUMBERS: Final = "biuf"
TEXT_INPUT: Final = "text_input"  # the prompt of text models, as Triton's generate extension names it
TEXT_OUTPUT: Final = "text_output"  # their answer by generate
MESSAGES: Final = "messages"  # input of models that chat
OWN_HEADERS: Final = frozenset({"connection", "content-length", "content-type", "transfer-encoding"})
SHOWN: Final = 6  # inputs, or values of one, in an example
OTHERS: Final = {"U": "text", "S": "bytes", "c": "complex numbers", "M": "times", "m": "times", "V": "records"}


class InferRequest(NamedTuple):
    body: bytes
    headers: Mapping[str, str]


def parse_headers(lines: Sequence[str]) -> dict[str, str]:
    """Return headers by lower-case name, repeated ones joined by commas. Raise UsageError for a line that is none."""
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, text = (part.strip() for part in line.partition(":"))
        name = name.lower()
        if (
            not colon
            or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9a-z-]+", name)
            or not re.fullmatch(r"[\t -~\xa0-\xff]*", text)
        ):
            raise UsageError(f"-H {line!r} is no header", "-H 'NAME: VALUE'")
        if name in OWN_HEADERS:
            raise UsageError(f"-H {line!r}: infer sets {name} itself")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def prompt_of(kind: str, value: Any) -> dict[str, Any] | None:
    """Return the body of Triton's `generate` for one prompt; None for anything else. Other keys are parameters."""
    if kind == "data" and isinstance(value, dict) and value.keys() == {"instances"}:
        value = value["instances"]
    text = value.get(TEXT_INPUT) if kind == "data" and isinstance(value, dict) else value
    if isinstance(text, list) and len(text) == 1:
        (text,) = text
    if kind not in ("data", "text") or not isinstance(text, str):
        return None
    return {**(value if isinstance(value, dict) else {}), TEXT_INPUT: text}


def example_of(inputs: Sequence[InputSpec]) -> str:
    """Return `--data` with a row for each input that a request must have, for a shell."""
    required = required_inputs(inputs)
    rows = [f"{json.dumps(each.name, ensure_ascii=False)}: {_row_of(each)}" for each in required[:SHOWN]]
    return f"--data {shlex.quote('{' + ', '.join([*rows, *(['…'] if len(required) > SHOWN else [])]) + '}')}"


def _row_of(spec: InputSpec) -> str:
    """Return one row of an input as JSON: zeros or texts, cut if they are many."""
    row = {"BYTES": '"text"', "BOOL": "true"}.get(spec.datatype, "0")
    for size in reversed((-1,) if spec.shape == (-1, 1) else spec.shape):
        row = f"[{', '.join([row] * max(size, 1))}]" if size <= SHOWN else f"[{row}, …]"
    return row


def select_input(inputs: Sequence[InputSpec], name: str) -> InputSpec:
    """Return the named input, or the only one that a request must have, or the prompt. Raise UsageError."""
    inputs = with_columns(inputs)
    matching = [each for each in inputs if each.name == name] if name else required_inputs(inputs)
    if not name and len(matching) > 1:
        matching = [each for each in matching if each.name == TEXT_INPUT]
    if len(matching) == 1:
        return matching[0]
    if not inputs:
        example = '--data \'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}\''
        hint = (
            "name them: --data '{\"NAME\": values}', declare them (INPUTS in a model.py, or a config.pbtxt), or send a "
            f"whole V2 request: {example}"
        )
        raise UsageError("the model declares no inputs, so none can be chosen", hint)
    known = quoted(each.name for each in inputs)
    if name:
        raise UsageError(f"the model has no input '{name}'; its inputs are {known}")
    raise UsageError(f"the model has several inputs: {known}", f"give values by name: {example_of(inputs)}")


def from_json(value: Any, inputs: Sequence[InputSpec], name: str) -> InferRequest:
    """Build a request from a whole V2 body, values by input name, or the values of one input, also as V1 instances."""
    if isinstance(value, dict) and "inputs" in value:
        return InferRequest(json.dumps(value).encode(), {"Content-Type": "application/json"})
    if isinstance(value, dict) and value.keys() == {"instances"} - {each.name for each in with_columns(inputs)}:
        value = value["instances"]
    try:
        value = rows_by_name(value, [] if name else inputs)
    except ValueError as error:
        raise UsageError(str(error), f"or give values by name: {example_of(inputs)}" if inputs else "") from None
    if isinstance(value, dict):
        specs = {key: select_input(inputs, key) if inputs else _guessed(key, item) for key, item in value.items()}
        return encode([_json_tensor(specs[key], item) for key, item in value.items()])
    return encode([_json_tensor(select_input(inputs, name) if inputs else _guessed(name, value), value)])


def csv_rows(path: Path, inputs: Sequence[InputSpec]) -> list[Any] | None:
    """Return the rows of a CSV file: objects by its header, lists where the model has one input and names no columns.

    Return None for a model whose only input takes the file itself, as bytes.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",") if line]
    datatypes = {each.name: each.datatype for each in with_columns(inputs)}
    header = lines[0] if lines else []
    unnamed = has_no_names(inputs, header)
    if unnamed and datatypes[required_inputs(inputs)[0].name] == "BYTES":
        return None
    rows = lines[1:] if any(isinstance(_cell(cell, ""), str) for cell in header) else lines
    if not rows or any(len(row) != len(header) for row in rows):
        hint = "give a line of names, then one for each row"
        raise UsageError(f"{path} holds no rows as long as its first line", hint)
    if unnamed or rows is lines:
        return [[_cell(cell, "") for cell in row] for row in rows]
    kinds = [datatypes.get(name, "") for name in header]
    return [dict(zip(header, map(_cell, row, kinds), strict=True)) for row in rows]


def _cell(text: str, datatype: str) -> Any:
    """Return a cell of a table as a number or truth value where it is one and may be, an empty one as NaN."""
    words = {"true": True, "false": False, "": math.nan}
    for read in (int, float, lambda text: words[text.lower()]):
        with suppress(ValueError, KeyError):
            return text if datatype == "BYTES" else read(text)
    return text


def _guessed(name: str, value: Any) -> InputSpec:
    """Return the input of a model that declares none, by its values; an empty name is that of the only argument."""
    kinds = set(map(type, flatten(value)))
    datatype = "BOOL" if kinds == {bool} else "INT64" if kinds == {int} else "BYTES" if str in kinds else "FP64"
    return InputSpec(name, datatype, nesting(value) or (1,))


def _json_tensor(spec: InputSpec, value: Any) -> Tensor:
    shape = nesting(value)
    if not _regular(value, shape):
        message = f"the values are nested unevenly; input '{spec.name}' has the shape {list(spec.shape)}"
        raise UsageError(message, "lists beside each other must be equally long")
    flat = flatten(value)
    if spec.datatype not in {"BOOL", "BYTES"}:
        flat = [int(each) if isinstance(each, bool) else each for each in flat]
    return Tensor(spec.name, spec.datatype, fit_shape(spec, shape, len(flat)), data=flat)


def text_tensor(spec: InputSpec, value: str) -> Tensor:
    if spec.datatype != "BYTES":
        raise UsageError(
            f"input '{spec.name}' takes {spec.datatype}, not text", f"give numbers: --data '{_row_of(spec)}'"
        )
    return Tensor(spec.name, spec.datatype, fit_shape(spec, (), 1), data=[value])


def raw_tensor(spec: InputSpec, raw: bytes) -> Tensor:
    """Return a file as one BYTES element, or as the tensor's memory."""
    if spec.datatype == "BYTES":
        return Tensor(spec.name, spec.datatype, fit_shape(spec, (), 1), pack_bytes([raw]))
    size = SIZES.get(spec.datatype)
    if size is None or len(raw) % size:
        message = f"a file of {len(raw)} B does not hold whole {spec.datatype} values, which input '{spec.name}' takes"
        raise UsageError(message)
    return Tensor(spec.name, spec.datatype, fit_shape(spec, (), len(raw) // size), raw)


def encode(tensors: Sequence[Tensor]) -> InferRequest:
    return InferRequest(*encode_request(tensors))


def with_outputs(request: InferRequest, names: str) -> InferRequest:
    """Return the request for these outputs alone, `NAME,NAME`, in this order; without any, the request."""
    if not names:
        return request
    length = int(request.headers.get(HEADER_INFERENCE_LENGTH, len(request.body)))
    document = {**json.loads(request.body[:length]), "outputs": [{"name": name} for name in names.split(",")]}
    head = json.dumps(document).encode()
    headers = {
        name: str(len(head)) if name == HEADER_INFERENCE_LENGTH else text for name, text in request.headers.items()
    }
    return InferRequest(head + request.body[length:], headers)


def nesting(value: Any) -> tuple[int, ...]:
    """Return the shape of nested lists: `[[1, 2]]` is (1, 2), a number ()."""
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def _regular(value: Any, shape: tuple[int, ...]) -> bool:
    if not shape:
        return not isinstance(value, list)
    return isinstance(value, list) and len(value) == shape[0] and all(_regular(each, shape[1:]) for each in value)


def fit_shape(spec: InputSpec, value_shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the shape to send: as given, with a batch dimension of 1, or inferred for flat values.

    [-1, 4] takes four numbers as (1, 4) and eight as (2, 4), but nothing of the shape (2, 2). Several values for [1],
    and three and more dimensions, go as they are: a derived shape may be one of several, and the server knows the fix.
    """
    shape = spec.fit(value_shape)
    if shape is not None and math.prod(shape) == count:
        return shape
    if (len(value_shape) > 2 or spec.shape == (1,)) and math.prod(value_shape) == count:
        return value_shape
    fixed = math.prod(size for size in spec.shape if size >= 0)
    free = [size for size in spec.shape if size < 0]
    if len(value_shape) > 1:
        raise UsageError(
            f"input '{spec.name}' has the shape {list(spec.shape)}, values of {list(value_shape)} do not fit it"
        )
    if fixed and not count % fixed and (free or count == fixed):
        rest = iter([1] * (len(free) - 1) + [count // fixed])
        return tuple(size if size >= 0 else next(rest) for size in spec.shape)
    raise UsageError(f"input '{spec.name}' has the shape {list(spec.shape)}, {count} values do not fit it")


def npy_tensor(spec: InputSpec, path: Path) -> Tensor:
    """Return an array of `numpy.save`, converted to the input's datatype."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise UsageError(f"{path} is no array that numpy.save wrote: {error}") from None
    kind = array.dtype.kind
    if kind == "U" and spec.datatype == "BYTES":
        return Tensor(spec.name, spec.datatype, fit_shape(spec, array.shape, array.size), data=array.ravel().tolist())
    if kind not in NUMBERS:
        raise UsageError(f"{path} holds {OTHERS.get(kind, array.dtype)}, input '{spec.name}' takes {spec.datatype}")
    return _tensor(spec, array)


def _tensor(spec: InputSpec, array: "np.ndarray[Any, Any]") -> Tensor:
    if spec.datatype not in NUMPY_TYPES:
        raise UsageError(f"input '{spec.name}' takes {spec.datatype}, which an array of numbers cannot be")
    raw = array.astype(NUMPY_TYPES[spec.datatype]).tobytes()
    return Tensor(spec.name, spec.datatype, fit_shape(spec, array.shape, array.size), raw)


def image_tensor(spec: InputSpec, path: Path) -> Tensor:
    """Return an image in the size, layout and datatype of the input; a BYTES input gets the file as it is."""
    if spec.datatype == "BYTES":
        return raw_tensor(spec, path.read_bytes())
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        hint = "install pillow, or give the array: --file image.npy"
        raise UsageError(f"input '{spec.name}' takes {spec.datatype}: decoding an image needs Pillow", hint) from None
    import numpy as np

    order, channels, size = image_layout(spec)
    try:
        with Image.open(path) as image:
            converted = image.convert(CHANNELS[channels])
    except UnidentifiedImageError:
        raise UsageError(f"{path} is not an image that Pillow can read") from None
    if size:
        converted = converted.resize(size)
    array = np.asarray(converted).reshape(converted.height, converted.width, channels)
    if spec.datatype.startswith(("FP", "BF")):
        array = array / 255.0  # the usual scaling; any other normalisation is the model's own
    return _tensor(spec, array.transpose(2, 0, 1) if order == "CHW" else array)


def image_layout(spec: InputSpec) -> tuple[str, int, tuple[int, int] | None]:
    """Return (HWC or CHW, channels, (width, height) if both are fixed) from the last three dimensions."""
    if len(spec.shape) < 3:
        raise UsageError(f"input '{spec.name}' has the shape {list(spec.shape)}, which is not that of an image")
    first, second, third = spec.shape[-3:]
    if third in CHANNELS and first not in (1, 3):
        order, channels, height, width = "HWC", third, first, second
    else:
        order, channels, height, width = "CHW", first if first in CHANNELS else 3, second, third
    return order, channels, (width, height) if width > 0 and height > 0 else None

"""One V2 request made from what a person types and what the model says of itself. Pure: values in, bytes out.

Numbers and text travel as JSON; files, images and arrays as raw tensors behind a JSON header, so that nothing is
written as text that is none.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from pilotlight.contract import HEADER_INFERENCE_LENGTH
from pilotlight.errors import UsageError

SIZES: Final = {
    "BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2, "UINT32": 4, "INT32": 4,
    "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the model's metadata; -1 in `shape` is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value for an input: `data` for JSON, or `raw` bytes as they lie in memory."""

    of: Input
    shape: tuple[int, ...]
    data: Any = None
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Request:
    body: bytes
    headers: Mapping[str, str]


def inputs_of(metadata: Mapping[str, Any]) -> list[Input]:
    return [Input(each["name"], each["datatype"], tuple(each["shape"])) for each in metadata.get("inputs", ())]


def one(inputs: Sequence[Input], name: str) -> Input:
    """The input that is meant: the named one, or the only one."""
    found = [each for each in inputs if each.name == name] if name else list(inputs)
    if len(found) == 1:
        return found[0]
    known = ", ".join(each.name for each in inputs) or "none"
    if name:
        raise UsageError(f"the model has no input {name}; it has {known}")
    raise UsageError(
        f"the model has several inputs: {known}", "name one with --input, or give all: --data '{\"NAME\": …}'"
    )


def from_json(value: Any, inputs: Sequence[Input], name: str) -> Request:
    """A whole request, values by the names of inputs, or the values of one input."""
    if isinstance(value, dict) and "inputs" in value:
        return Request(json.dumps(value).encode(), {"content-type": "application/json"})
    if isinstance(value, dict):
        return encode([_plain(one(inputs, key), values) for key, values in value.items()])
    return encode([_plain(one(inputs, name), value)])


def _plain(of: Input, value: Any) -> Tensor:
    given = nesting(value)
    if not _regular(value, given):
        message = f"the values are nested unevenly; input {of.name} has the shape {list(of.shape)}"
        raise UsageError(message, "lists beside each other must be equally long")
    flat = flatten(value)
    return Tensor(of, fit(of, given, len(flat)), data=flat)


def text(of: Input, value: str) -> Tensor:
    if of.datatype != "BYTES":
        raise UsageError(f"input {of.name} takes {of.datatype}, not text", "give numbers: --data '[1, 2, 3]'")
    return Tensor(of, fit(of, (), 1), data=[value])


def content(of: Input, raw: bytes) -> Tensor:
    """A file as it is: one string of bytes, or the tensor's own memory."""
    if of.datatype == "BYTES":
        return Tensor(of, fit(of, (), 1), raw=struct.pack("<I", len(raw)) + raw)
    size = SIZES.get(of.datatype)
    if size is None or len(raw) % size:
        raise UsageError(f"{len(raw)} bytes are no whole number of {of.datatype}, which input {of.name} takes")
    return Tensor(of, fit(of, (), len(raw) // size), raw=raw)


def encode(tensors: Sequence[Tensor]) -> Request:
    inputs = [_header(tensor) for tensor in tensors]
    raws = [tensor.raw for tensor in tensors if tensor.raw is not None]
    document = json.dumps({"inputs": inputs}).encode()
    if not raws:
        return Request(document, {"content-type": "application/json"})
    headers = {"content-type": "application/octet-stream", HEADER_INFERENCE_LENGTH: str(len(document))}
    return Request(b"".join((document, *raws)), headers)


def _header(tensor: Tensor) -> dict[str, Any]:
    about = {"name": tensor.of.name, "shape": list(tensor.shape), "datatype": tensor.of.datatype}
    if tensor.raw is None:
        return {**about, "data": tensor.data}
    return {**about, "parameters": {"binary_data_size": len(tensor.raw)}}


def nesting(value: Any) -> tuple[int, ...]:
    """The shape of nested lists: `[[1, 2]]` is (1, 2), a number ()."""
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def _regular(value: Any, shape: tuple[int, ...]) -> bool:
    if not shape:
        return not isinstance(value, list)
    return isinstance(value, list) and len(value) == shape[0] and all(_regular(each, shape[1:]) for each in value)


def flatten(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [item for each in value for item in flatten(each)]


def fit(of: Input, given: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The shape that is sent: as given, with a batch of one before it, or for flat values worked out.

    [-1, 4] takes four numbers as (1, 4) and eight as (2, 4), but nothing of the shape (2, 2).
    """
    for shape in (given, (1, *given)):
        if len(shape) == len(of.shape) and prod(shape) == count and all(map(_matches, of.shape, shape)):
            return shape
    fixed = prod(size for size in of.shape if size >= 0)
    free = [size for size in of.shape if size < 0]
    if len(given) > 1:
        raise UsageError(f"input {of.name} has the shape {list(of.shape)}, values of {list(given)} do not fit it")
    if fixed and not count % fixed and (free or count == fixed):
        rest = iter([1] * (len(free) - 1) + [count // fixed])
        return tuple(size if size >= 0 else next(rest) for size in of.shape)
    raise UsageError(f"input {of.name} has the shape {list(of.shape)}, {count} values do not fit it")


def _matches(wanted: int, size: int) -> bool:
    return wanted in (-1, size)

"""The batch dimension of the inputs of ONNX files and exported programs, read without their libraries.

Field numbers are those of onnx.proto.
"""

import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from pilotlight.wire.model_formats.detection import is_exported_program
from pilotlight.wire.protobuf import fields

_GRAPH: Final = 7  # of ModelProto
_WEIGHTS, _INPUT = 5, 11  # of GraphProto
_WEIGHTS_NAME: Final = 8  # of TensorProto
_DIM: Final = (2, 1, 2, 1)  # type, tensor_type, shape, dim, each a field of the one before; the first of ValueInfoProto


def fixed_batch(file: Path) -> int:
    """Return the first dimension of the inputs if the file fixes it; 0 if it varies, or cannot be read."""
    read = {".onnx": _onnx_batches, ".pt2": _program_batches}.get(file.suffix)
    try:
        sizes = read(file) if read else set()
    except (OSError, ValueError, StopIteration, LookupError, TypeError, AttributeError, BadZipFile):
        return 0
    return sizes.pop() if len(sizes) == 1 else 0


def _program_batches(file: Path) -> set[int]:
    """Return the first sizes of the inputs of torch.export.save; 0 for one that varies."""
    with ZipFile(file) as archive:
        name = next(filter(is_exported_program, archive.namelist()))
        module: Any = json.loads(archive.read(name))["graph_module"]
    specs = [each["user_input"]["arg"] for each in module["signature"]["input_specs"] if "user_input" in each]
    tensors = [module["graph"]["tensor_values"][each["as_tensor"]["name"]] for each in specs if "as_tensor" in each]
    return {each["sizes"][0].get("as_int", 0) if each["sizes"][1:] else 0 for each in tensors}


def _onnx_batches(file: Path) -> set[int]:
    with file.open("rb") as opened:
        pages = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))  # of gigabytes, few are read
    graph = next(_values(pages, _GRAPH))
    # Files of old versions list their weights among the inputs.
    weights = {bytes(name) for each in _values(graph, _WEIGHTS) for name in _values(each, _WEIGHTS_NAME)}
    return {_batch(each) for each in _values(graph, _INPUT) if bytes(next(_values(each, 1))) not in weights}


def _batch(tensor: memoryview) -> int:
    dims = [tensor]
    for number in _DIM:
        dims = [value for each in dims for value in _values(each, number)]
    size = next((size for number, _, size in fields(dims[0]) if number == 1), 0) if dims[1:] else 0
    return size if isinstance(size, int) and size < 1 << 63 else 0  # -1 in 64 bits: any size


def _values(message: memoryview, number: int) -> Iterator[memoryview]:
    return (value for each, _, value in fields(message) if each == number and not isinstance(value, int))

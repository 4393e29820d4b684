"""The batch dimension of an ONNX file's inputs, read without onnxruntime. Field numbers are those of onnx.proto."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pilotlight.wire.protobuf import fields

_GRAPH: Final = 7  # of ModelProto
_WEIGHTS, _INPUT = 5, 11  # of GraphProto
_WEIGHTS_NAME: Final = 8  # of TensorProto
_DIM: Final = (2, 1, 2, 1)  # type, tensor_type, shape, dim, each a field of the one before; the first of ValueInfoProto


def fixed_batch(file: Path) -> int:
    """Return the first dimension of the inputs if the file fixes it; 0 if it varies, or cannot be read."""
    try:
        with file.open("rb") as opened:
            pages = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))  # of gigabytes, few are read
        graph = next(_values(pages, _GRAPH))
        # Files of old versions list their weights among the inputs.
        weights = {bytes(name) for each in _values(graph, _WEIGHTS) for name in _values(each, _WEIGHTS_NAME)}
        inputs = [each for each in _values(graph, _INPUT) if bytes(next(_values(each, 1))) not in weights]
        sizes = {_batch(each) for each in inputs}
    except (OSError, ValueError, StopIteration):
        return 0
    return sizes.pop() if len(sizes) == 1 else 0


def _batch(tensor: memoryview) -> int:
    dims = [tensor]
    for number in _DIM:
        dims = [value for each in dims for value in _values(each, number)]
    size = next((size for number, _, size in fields(dims[0]) if number == 1), 0) if dims[1:] else 0
    return size if isinstance(size, int) and size < 1 << 63 else 0  # -1 in 64 bits: any size


def _values(message: memoryview, number: int) -> Iterator[memoryview]:
    return (value for each, _, value in fields(message) if each == number and not isinstance(value, int))

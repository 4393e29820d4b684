"""safetensors headers without a framework: names, dtypes, shapes and offsets of a file's tensors.

Layout: eight bytes with the length of the header, the header as JSON, then the data of all tensors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from pilotlight_predictor.errors import LoadFailed

MAX_HEADER_BYTES: Final = 100_000_000  # of the format
# safetensors dtype → torch's name, and bytes per item.
TYPES: Final[Mapping[str, tuple[str, int]]] = {
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1), "U16": ("uint16", 2), "I16": ("int16", 2), "F16": ("float16", 2),
    "BF16": ("bfloat16", 2), "U32": ("uint32", 4), "I32": ("int32", 4), "F32": ("float32", 4), "U64": ("uint64", 8),
    "I64": ("int64", 8), "F64": ("float64", 8),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor; `begin` and `end` are offsets into the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class WeightsFile:
    path: Path
    data_offset: int
    data_bytes: int
    tensors: Mapping[str, TensorInfo]


def read_header(path: Path) -> WeightsFile:
    """Read the header. Raises LoadFailed if a tensor lies outside the file or does not match its shape."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise _damaged(path, "its header is longer than the file")
        header = file.read(length)
    try:
        document: dict[str, Any] = json.loads(header)
        document.pop("__metadata__", None)
        data_bytes = size - 8 - length
        tensors = {name: _tensor_info(name, entry, data_bytes, path) for name, entry in document.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, f"its header cannot be read ({error})") from None
    return WeightsFile(path, 8 + length, data_bytes, tensors)


def _tensor_info(name: str, entry: Mapping[str, Any], data_bytes: int, path: Path) -> TensorInfo:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(dim) for dim in entry["shape"])
    if not 0 <= begin <= end <= data_bytes or min(shape, default=0) < 0:
        raise _damaged(path, f"tensor {name!r} lies outside of it")
    info = TensorInfo(str(entry["dtype"]), shape, begin, end)
    if info.dtype in TYPES and end - begin != TYPES[info.dtype][1] * prod(shape):
        raise _damaged(path, f"tensor {name!r} is {end - begin} bytes long, which does not fit its shape {list(shape)}")
    return info


def weight_files(path: Path) -> list[Path]:
    """The file itself, or all files of a sharded model's folder."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def read_tensor(file: WeightsFile, info: TensorInfo) -> bytes:
    with file.path.open("rb") as opened:
        opened.seek(file.data_offset + info.begin)
        return opened.read(info.end - info.begin)


def _damaged(path: Path, why: str) -> LoadFailed:
    return LoadFailed(f"{path.name} is damaged or not a safetensors file: {why}")

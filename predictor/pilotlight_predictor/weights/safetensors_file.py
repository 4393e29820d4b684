"""What a safetensors file holds, read from its header alone: names, types, shapes and places. Pure but for the reading.

The layout: eight bytes with the length of the header, the header as JSON, then the data of all tensors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from pilotlight_predictor.errors import LoadFailed

LONGEST_HEADER: Final = 100_000_000  # as the format has it
# The format's name of a type: how torch calls it, and how many bytes an item has.
TYPES: Final[Mapping[str, tuple[str, int]]] = {
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1), "U16": ("uint16", 2), "I16": ("int16", 2), "F16": ("float16", 2),
    "BF16": ("bfloat16", 2), "U32": ("uint32", 4), "I32": ("int32", 4), "F32": ("float32", 4), "U64": ("uint64", 8),
    "I64": ("int64", 8), "F64": ("float64", 8),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor: `begin` and `end` count from the first byte of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class WeightsFile:
    path: Path
    data_begins: int
    data_bytes: int
    tensors: Mapping[str, Place]


def read(path: Path) -> WeightsFile:
    """Raises LoadFailed for what is damaged: every place must lie within the file and be as long as its shape says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(LONGEST_HEADER, size - 8):
            raise _damaged(path, "its header is longer than the file")
        header = file.read(length)
    try:
        document: dict[str, Any] = json.loads(header)
        document.pop("__metadata__", None)
        data_bytes = size - 8 - length
        tensors = {name: _place(name, told, data_bytes, path) for name, told in document.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, f"its header cannot be read ({error})") from None
    return WeightsFile(path, 8 + length, data_bytes, tensors)


def _place(name: str, told: Mapping[str, Any], data_bytes: int, path: Path) -> Place:
    begin, end = (int(offset) for offset in told["data_offsets"])
    shape = tuple(int(dim) for dim in told["shape"])
    if not 0 <= begin <= end <= data_bytes or min(shape, default=0) < 0:
        raise _damaged(path, f"tensor {name!r} lies outside of it")
    place = Place(str(told["dtype"]), shape, begin, end)
    if place.dtype in TYPES and end - begin != TYPES[place.dtype][1] * prod(shape):
        raise _damaged(path, f"tensor {name!r} is {end - begin} bytes long, its shape {list(shape)} needs others")
    return place


def files_of(path: Path) -> list[Path]:
    """The file itself, or all those of a folder, whose tensors together are the model's."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def content(file: WeightsFile, place: Place) -> bytes:
    """The bytes of one tensor, for those that are small."""
    with file.path.open("rb") as opened:
        opened.seek(file.data_begins + place.begin)
        return opened.read(place.end - place.begin)


def _damaged(path: Path, why: str) -> LoadFailed:
    return LoadFailed(f"{path.name} is damaged or no safetensors file: {why}")

"""Long JSON arrays of numbers, decoded and encoded piece by piece.

A JSON library holds the GIL for a whole call: 0.7 s for 56 MiB, in any thread. In pieces, and in a thread, the event
loop runs every few milliseconds.
"""

import re
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, Final

import orjson

from pilotlight_predictor.tensors import Array, Shape

LONG: Final = 1 << 20  # characters; a shorter body takes at most 10 ms
LONG_ARRAY: Final = 1 << 16  # elements; 10,000 are encoded in 0.5 ms
PIECE: Final = 1 << 18  # characters, decoded in 3 ms

_COMMA: Final = re.compile(rb",")
_OPENING: Final = re.compile(rb"\[")
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b"[],"))

Store = Callable[[int, bytes], int]  # index of the first element, text of an array → number of its elements


def read_pieces(text: memoryview, shape: Shape, store: Store) -> bool:
    """Store all elements of a valid JSON array; return False if it is neither flat nor nested as `shape`, or has
    another number of elements."""
    count = prod(shape)
    is_flat = _OPENING.search(text, 1) is None
    if not is_flat and not _is_nested_as(text, shape):
        return False
    done, start = 0, 0
    while start < len(text):
        cut = _COMMA.search(text, min(start + PIECE, len(text)))
        end = cut.start() if cut else len(text)
        done += store(done, b"[%b]" % bytes(text[start:end]).translate(None, b"[]"))
        start = end + 1
    return done == count


def _is_nested_as(text: memoryview, shape: Shape) -> bool:
    if len(shape) < 2 or not prod(shape):
        return False
    expected = b"[%b]" % (b"," * (shape[-1] - 1))
    for size in reversed(shape[:-1]):
        if size * len(expected) > len(text):
            return False
        expected = b"[%b]" % b",".join([expected] * size)
    at = 0
    for start in range(0, len(text), PIECE):
        structure = bytes(text[start : start + PIECE]).translate(None, _NO_STRUCTURE)
        if expected[at : at + len(structure)] != structure:
            return False
        at += len(structure)
    return at == len(expected)


def write_pieces(array: Array, write: Callable[[Any], bytes]) -> Iterator[bytes]:
    """Yield the JSON of a flat array; `write` encodes a short one."""
    for start in range(0, array.size, LONG_ARRAY):
        text = write(array[start : start + LONG_ARRAY])
        yield b"[" if start == 0 else b","
        yield text[1:-1]
    yield b"]"


def dump_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)

"""Long arrays of JSON numbers, read and written piece by piece.

A JSON library holds the interpreter for as long as one call takes: 0.7 s for 56 MiB, in whatever thread. In pieces, and
in a thread, the event loop gets its turn every few milliseconds.
"""

import re
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, Final

import orjson

from pilotlight_predictor.tensors import Array, Shape

LONG: Final = 1 << 20  # characters; below it the whole takes no longer than 10 ms
LONG_ARRAY: Final = 1 << 16  # elements, which are written in half a millisecond for each 10,000
PIECE: Final = 1 << 18  # characters, read in 3 ms

_COMMA: Final = re.compile(rb",")
_OPENING: Final = re.compile(rb"\[")
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b"[],"))

Store = Callable[[int, bytes], int]  # at which element, text of an array → how many elements it had


def read_pieces(text: memoryview, shape: Shape, store: Store) -> bool:
    """Stores all elements of an array that is known to be valid JSON; False when it is neither flat nor nested as
    `shape`, or has another number of elements."""
    count = prod(shape)
    if not (_is_flat(text) or _is_nested_as(text, shape)):
        return False
    done, start = 0, 0
    while start < len(text):
        cut = _COMMA.search(text, min(start + PIECE, len(text)))
        end = cut.start() if cut else len(text)
        done += store(done, b"[%b]" % bytes(text[start:end]).translate(None, b"[]"))
        start = end + 1
    return done == count


def _is_flat(text: memoryview) -> bool:
    return _OPENING.search(text, 1) is None


def _is_nested_as(text: memoryview, shape: Shape) -> bool:
    if len(shape) < 2 or not prod(shape):
        return False
    wanted = b"[%b]" % (b"," * (shape[-1] - 1))
    for size in reversed(shape[:-1]):
        if size * len(wanted) > len(text):
            return False
        wanted = b"[%b]" % b",".join([wanted] * size)
    at = 0
    for start in range(0, len(text), PIECE):
        found = bytes(text[start : start + PIECE]).translate(None, _NO_STRUCTURE)
        if wanted[at : at + len(found)] != found:
            return False
        at += len(found)
    return at == len(wanted)


def write_pieces(array: Array, write: Callable[[Any], bytes]) -> Iterator[bytes]:
    """The text of a flat array; `write` makes that of a short one."""
    for start in range(0, array.size, LONG_ARRAY):
        text = write(array[start : start + LONG_ARRAY])
        yield b"[" if start == 0 else b","
        yield text[1:-1]
    yield b"]"


def dumped(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)

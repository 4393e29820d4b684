"""Tensors ↔ JSON numbers and strings, flat or nested.

Decoding is typed and happens in C: `[1, "a"]` for an FP32 input fails with the position of the string. The text of a
tensor stays undecoded (`msgspec.Raw`) until its datatype is known. Long arrays are decoded and encoded in pieces: that
bounds the memory for Python's numbers, and a JSON library holds the GIL for a whole call, in any thread.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain
from math import nan, prod
from typing import Any, Final, Literal

import msgspec
import numpy as np
import orjson

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Array, Shape, Tensor, bf16_from_float, check_strings
from pilotlight_predictor.errors import BadRequest

# Lengths of bodies, by what decoding may take. Longer ones are decoded in a thread, and HUGE ones in a process.
SHORT: Final = 1 << 15  # bytes, where Python reads the elements one by one: 5 ms
LONG: Final = 1 << 18  # bytes, where C does: 5 ms
HUGE: Final = 1 << 21  # bytes: the GIL is held for 60 ms, by lists of nothing
MAX_FIELDS: Final = 1024  # inputs, outputs, parameters or other fields with names of the client's choice
MAX_WEIGHT: Final = 1 << 22  # of a document that stays Python objects: numbers, and lists or objects, which weigh four
LONG_ARRAY: Final = 1 << 16  # elements; 10,000 are encoded in 0.5 ms
PIECE: Final = 1 << 18  # characters, decoded in 3 ms
MAX_DEPTH: Final = 100
FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
NONFINITE_NAMES: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_ELEMENT: Final[dict[str, type]] = {"BOOL": bool, "BYTES": str, **dict.fromkeys(FLOATS, float)}
_BEFORE_VALUES: Final = b" \t\r\n["
# Format of one element for `struct`, which rejects values out of range, such as 1e39 for FP32; numpy stores infinity.
_CODES: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i",
    "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d", "BF16": "f",
}  # fmt: skip
_PACKED_TYPES: Final = {**NUMPY_TYPES, "BF16": NUMPY_TYPES["FP32"]}
# Possessive: an unterminated string is scanned once, or a body of quotes would be scanned again from each of them.
_NONFINITE: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|(-?Infinity|NaN)', re.DOTALL)
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
    """Yield the JSON of an array, of numbers or of bytes; `write` encodes a short one."""
    if array.ndim:
        yield b"["
        yield from _row_pieces(array, write)
        yield b"]"
    elif array.dtype == object and encoding_size(array) > LONG_ARRAY:
        yield from _text_pieces(array.item(), lambda: write(array))
    else:
        yield write(array)


def join_pieces(pieces: Iterable[bytes]) -> list[Buffer]:
    """Return the pieces, small ones joined: a buffer costs a transport as much as kilobytes do."""
    joined: list[Buffer] = []
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size > PIECE:
            joined.append(b"".join(waiting))
            waiting, size = [], 0
    return [*joined, b"".join(waiting)]


def encoding_size(array: Array) -> int:
    """Return the number of elements, of which 16 bytes of text are one too."""
    return array.size if array.dtype != object else array.size + sum(map(len, array.ravel())) // 16


def _row_pieces(array: Array, write: Callable[[Any], bytes]) -> Iterator[bytes]:
    """Yield the rows with commas between them."""
    if encoding_size(array) <= LONG_ARRAY:
        yield write(array)[1:-1]
    elif len(array) > 1:
        middle = len(array) // 2
        yield from _row_pieces(array[:middle], write)
        yield b","
        yield from _row_pieces(array[middle:], write)
    else:
        yield from write_pieces(array[0, ...], write)


def _text_pieces(item: bytes, write: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield the JSON of a long text; of other bytes, what `write` makes of them."""
    try:
        text = item.decode()
    except UnicodeDecodeError:
        yield write()
        return
    yield from document_pieces(text)


def dump_json(value: Any) -> bytes:
    return orjson.dumps(value, _python_value, orjson.OPT_SERIALIZE_NUMPY)


def _python_value(value: Any) -> Any:
    """Return the value of a NumPy scalar that orjson does not know: `longlong`, which is another type than `int64`."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def document_pieces(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a document in which texts are long."""
    if isinstance(value, dict):
        for index, (key, item) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if index else b"{", dump_json(key))
            yield from document_pieces(item)
        yield b"}" if value else b"{}"
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield b"," if index else b"["
            yield from document_pieces(item)
        yield b"]" if value else b"[]"
    elif isinstance(value, str) and len(value) > PIECE:
        yield b'"'
        for start in range(0, len(value), PIECE):
            yield dump_json(value[start : start + PIECE])[1:-1]
        yield b'"'
    else:
        yield dump_json(value)


def check_weight(body: Buffer) -> None:
    """Raise BadRequest for a document with too many values to be kept as Python objects: freeing them, and garbage
    collection, hold the GIL as decoding does."""
    text = bytes(body)
    weight = text.count(b",") + 4 * (text.count(b"[") + text.count(b"{"))
    if weight > MAX_WEIGHT:
        raise BadRequest(
            f"the body has about {weight} values, lists and objects counted fourfold, the limit is {MAX_WEIGHT}"
        )


@cache
def _decoder(datatype: str, depth: int, lenient: bool = False) -> msgspec.json.Decoder[Any]:
    kind: Any = _ELEMENT.get(datatype, int)
    if lenient:
        kind = kind | bool
    if lenient and datatype in FLOATS:
        kind = kind | Literal["NaN", "Infinity", "-Infinity"] | None
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


@cache
def flat_decoder(datatype: str) -> Callable[[Buffer | msgspec.Raw], list[Any]]:
    """Return a decoder of flat JSON arrays. It raises msgspec.DecodeError and UnicodeDecodeError."""
    return _decoder(datatype, 1).decode


@lru_cache(1024)
def packer(datatype: str, count: int) -> Callable[..., None]:
    """Return a function that writes `count` elements to a buffer at an offset. It raises OverflowError or struct.error
    if one does not fit. BF16 is written as FP32."""
    return struct.Struct(f"<{count}{_CODES[datatype]}").pack_into


def decode_values(where: str, datatype: str, shape: Shape, text: msgspec.Raw) -> Tensor:
    """Decode the field `data` of an input; `where` names it in errors. Raise BadRequest."""
    if len(view := memoryview(text)) > LONG:
        if datatype == "BYTES":
            check_strings(where, prod(shape))
        elif (array := _decode_long(datatype, shape, view)) is not None:
            return Tensor(datatype, array)
    try:
        # Fast path: flat values that fit, in one typed pass in C.
        values = flat_decoder(datatype)(text)
        return Tensor(datatype, pack_values(where, datatype, shape, values))
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, struct.error):
        return Tensor(datatype, _decode_any(where, datatype, shape, memoryview(text)))


def _decode_long(datatype: str, shape: Shape, text: memoryview) -> Array | None:
    """Return the array; None if `_decode_any` must read it or report the error."""
    if 2 * prod(shape) > len(text) + 1:
        return None
    array = np.empty(shape, _PACKED_TYPES[datatype])
    decode, size = flat_decoder(datatype), array.itemsize

    def store(position: int, piece: bytes) -> int:
        values = decode(piece)
        packer(datatype, len(values))(array, position * size, *values)
        return len(values)

    try:
        complete = read_pieces(text, shape, store)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, struct.error):
        return None
    if not complete:
        return None
    return bf16_from_float(array).reshape(shape) if datatype == "BF16" else array


def pack_values(
    where: str,
    datatype: str,
    shape: Shape,
    values: list[Any],
    convert: Callable[[list[Any]], list[Any]] = lambda part: part,
) -> Array:
    """Return the values as an array; `convert` is applied to each part of them. Raise OverflowError or struct.error if
    one does not fit the datatype."""
    count = len(values)
    if count != prod(shape):
        kind = " of BYTES" if datatype == "BYTES" else ""
        raise BadRequest(f"{where}.data has {count} elements{kind}, shape {list(shape)} takes {prod(shape)}")
    try:
        array = np.empty(shape, _PACKED_TYPES[datatype])
    except ValueError:  # with a dimension of 0, numpy still checks the product of the others
        raise BadRequest(f"{where}.shape = {list(shape)} is too large") from None
    if datatype == "BYTES":
        array.reshape(-1)[:] = [item.encode() for item in convert(values)]
        return array
    for start in range(0, count, LONG_ARRAY):
        part = convert(values[start : start + LONG_ARRAY] if count > LONG_ARRAY else values)
        packer(datatype, len(part))(array, start * array.itemsize, *part)
    return bf16_from_float(array).reshape(shape) if datatype == "BF16" else array


def _decode_any(where: str, datatype: str, shape: Shape, text: memoryview) -> Array:
    depth = _depth(text)
    if depth > MAX_DEPTH:
        raise BadRequest(f"{where}.data is nested deeper than {MAX_DEPTH} levels")
    if depth == 0:
        raise BadRequest(f"{where}.data must be an array, flat or nested as its shape")
    values, lenient = _parse(where, datatype, depth, text)
    values = _flat(where, datatype, values, depth)
    if lenient and datatype in FLOATS:  # null is NaN, as KServe's client and server have it
        values = [nan if value is None else float(value) for value in values]
    try:
        return pack_values(where, datatype, shape, values)
    except (OverflowError, struct.error):
        raise BadRequest(f"{where}.data has a number that does not fit {datatype}") from None


def _parse(where: str, datatype: str, depth: int, text: memoryview) -> tuple[list[Any], bool]:
    """Return the nested values, and whether truth values may be among the numbers, and NaN and infinities by name."""
    try:
        return _decoder(datatype, depth).decode(text), False
    except msgspec.DecodeError as error:
        if datatype not in {"BOOL", "BYTES"}:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                return _decoder(datatype, depth, True).decode(text), True
        suffix = "" if datatype in FLOATS else f" for datatype {datatype}"
        raise BadRequest(f"{where}.data: {explain(error)}{suffix}") from None
    except UnicodeDecodeError:
        raise BadRequest(f"{where}.data has text that is not UTF-8; send such bytes as a binary tensor") from None


def _depth(text: memoryview) -> int:
    depth = 0
    for byte in text[: 4 * MAX_DEPTH]:
        if byte == 0x5B:
            depth += 1
        elif byte not in _BEFORE_VALUES:
            break
    return depth


def _flat(where: str, datatype: str, values: list[Any], depth: int) -> list[Any]:
    for _ in range(depth - 1):
        if len(values) == 1:
            values = values[0]
            continue
        if datatype != "BYTES" and len(set(map(len, values))) > 1:
            raise BadRequest(f"{where}.data is not a regular array of {datatype}: its rows differ in length")
        values = list(chain.from_iterable(values))
    return values


def quote_nonfinite(text: bytes) -> bytes | None:
    """Quote NaN and Infinity, which clients write although JSON lacks them; None if there are none."""
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    quoted = _NONFINITE.sub(lambda match: b'"%b"' % match[1] if match[1] else match[0], text)
    return quoted if quoted != text else None


def decode_strings(name: str, array: Array) -> list[str]:
    """Return the strings of an output for the JSON encoder. Raise BadRequest."""
    try:
        return [item.decode() for item in array.ravel()]
    except UnicodeDecodeError:
        raise BadRequest(
            f"output '{name}' has bytes that are not UTF-8; request it with the parameter binary_data: true"
        ) from None


def explain(error: msgspec.DecodeError) -> str:
    """Return msgspec's message with the path first: `Expected `int`, got `str` - at `$.inputs[0].shape`."""
    text, _, path = str(error).partition(" - at `")
    text = text.replace("`", "")
    return f"{path.rstrip('`').removeprefix('$').removeprefix('.')}: {text}" if path.strip("$`.") else text

"""Requests that differ in their numbers and ids alone, as those of one client do: the rest of their JSON is read once.

Of a request with one flat array, the text before the array and behind it is kept with what it means, and so is the text
around an id that stands before it. A later request with the same text around another array and another id means the
same but for these, whatever they are: JSON has no way for a value to change what stands beside it. So it costs two or
three comparisons of bytes and the reading of its array, which is typed and must fit; whatever does not is left to
`decode_request`, which also says what is wrong with it.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.inference import InferRequest, RequestedOutput
from pilotlight_predictor.protocol.values import flat_decoder, packer
from pilotlight_predictor.tensors import NUMPY_TYPES, Shape

MAX_LENGTH: Final = 1 << 14  # of a body: beyond it the numbers are the work
MAX_FORMS: Final = 4
# Clients that write something else into every request, such as its time, would have a form made for each of them.
MAX_FRUITLESS: Final = 32
PATIENCE: Final = 1024  # requests without a form, after which forms are made again: others may ask by now
MAX_DIMS: Final = 63  # numpy's own limit, less the one that several arrays have
BLOCK: Final = 1 << 14  # bytes of memory that is got at once for the arrays of several requests
_UNPACKED: Final = frozenset({"BYTES", "BF16"})


class Form(msgspec.Struct, eq=False):
    """Everything of a request but its numbers. `fit` is for whoever checks the rest against the model, `together` for
    whoever answers many such requests at once."""

    before: bytes  # ends with the "[" of the array, or with the quote that opens the id
    between: bytes  # from the quote that closes the id to the "["; empty where there is no id
    after: bytes  # begins with the "]" of the array
    name: str
    datatype: str
    shape: Shape
    outputs: tuple[RequestedOutput, ...]
    decode: Callable[[bytes], list[Any]]
    pack: Callable[..., None]
    size: int  # bytes of an array
    start: int  # of the array in the body, or of the id
    rest: int  # how many bytes stand behind it, which is at least the end of the object
    block: bytearray = bytearray()
    arrays: Any = ()  # those of the block
    count: int = 0  # of them
    used: int = 0  # so many
    fit: Any = None
    together: Any = None

    def renew(self) -> None:
        """The arrays of the last block belong to their requests."""
        self.count, self.used = max(1, BLOCK // self.size), 0
        self.block = bytearray(self.count * self.size)
        self.arrays = np.frombuffer(self.block, NUMPY_TYPES[self.datatype]).reshape(self.count, *self.shape)


class Forms:
    """The last few forms in which one model version was asked."""

    def __init__(self) -> None:
        self._forms: list[Form] = []
        self.together: Any = None  # of the forms that ask for all outputs
        self._fruitless = 0
        self._unknown = 0

    def read(self, model: str, version: int, body: Buffer) -> InferRequest | None:
        if not isinstance(body, bytes) or len(body) > MAX_LENGTH:
            return None
        for form in self._forms:
            if body.startswith(form.before) and body.endswith(form.after):
                identity, start = _read_id(form, body) if form.between else ("", form.start)
                used = form.used
                if used == form.count:
                    form.renew()
                    used = 0
                try:  # a wrong number of values is refused by `pack`
                    form.pack(form.block, used * form.size, *form.decode(body[start : -form.rest]))
                except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, struct.error):
                    continue
                form.used = used + 1
                self._fruitless = 0
                return InferRequest(model, None, version, identity, form.outputs, form=form, block=form.arrays, at=used)
        self._unknown += 1
        if self._unknown % PATIENCE == 0:
            self._fruitless = 0
        return None

    def learn(self, body: Buffer, text: msgspec.Raw, request: InferRequest) -> None:
        """`text` is the JSON of the request's one array, as it was found in the body."""
        if self._fruitless >= MAX_FRUITLESS or not isinstance(body, bytes) or len(body) > MAX_LENGTH:
            return
        form = _form(body, bytes(memoryview(text)), request)
        if form is not None:
            self._fruitless += 1
            self._forms = [form, *self._forms[: MAX_FORMS - 1]]


def _read_id(form: Form, body: bytes) -> tuple[str, int]:
    """The id, and where the array begins: at the end of the body, where no array is, if the id is not a plain one."""
    end = body.find(b'"', form.start)
    text = body[form.start : end].decode("latin-1")
    if not _is_plain(text) or not body.startswith(form.between, end):
        return "", len(body)
    return text, end + len(form.between) - 1


def _is_plain(identity: str) -> bool:
    """Whether JSON writes it as it is. Read up to the first quote, it has none."""
    return identity.isascii() and identity.isprintable() and "\\" not in identity


def _form(body: bytes, text: bytes, request: InferRequest) -> Form | None:
    """None where the array is not flat, or its text stands elsewhere too, so that nobody could tell which it is."""
    ((name, (datatype, array)),) = request.inputs.items()
    if datatype in _UNPACKED or not 0 < array.ndim <= MAX_DIMS or not array.size:
        return None
    if any(output.place for output in request.outputs):
        return None
    if not text.startswith(b"[") or not text.endswith(b"]") or b"[" in text[1:] or body.count(text) != 1:
        return None
    start, rest = body.index(text), len(body) - body.index(text) - len(text)
    before, between, after = body[: start + 1], b"", body[len(body) - rest - 1 :]
    if request.id:
        found = _find_id(before, body, request.id)
        if found < 0:
            return None
        before, between, start = before[:found], before[found + len(request.id) :], found
    decode, pack = flat_decoder(datatype), packer(datatype, array.size)
    rules = (name, datatype, array.shape, request.outputs, decode, pack, array.nbytes)
    return Form(before, between, after, *rules, start, rest)


def _find_id(before: bytes, body: bytes, identity: str) -> int:
    """Where it begins before the array, or -1. Without a backslash every text is written as it is, so that the one
    place with its letters is its own."""
    quoted = b'"%b"' % identity.encode("utf-8", "replace")
    if b"\\" in body or not _is_plain(identity) or '"' in identity or body.count(quoted) != 1:
        return -1
    at = before.find(quoted)
    return at + 1 if at >= 0 else -1

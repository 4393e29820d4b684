"""Cache of repeated V2 JSON envelopes: requests that differ only in their numbers and ids are decoded once.

For a request with one flat array, the text around the array and around an id before it is stored as a template. A
later request with the same surrounding text means the same except for array and id: a JSON value cannot change what is
beside it. Decoding then costs two or three comparisons of bytes and parsing the typed array. Whatever does not match
goes to `decode_request`, which also reports errors.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.requests import InferRequest, RequestedOutput
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Shape
from pilotlight_predictor.protocols.json_values import flat_decoder, packer

MAX_LENGTH: Final = 1 << 14  # bytes of a body; beyond it, parsing the numbers dominates
MAX_TEMPLATES: Final = 4
# Templates in a row without a match, after which none is created: a client may send a timestamp with every request.
MAX_UNUSED: Final = 32
RETRY_AFTER: Final = 1024  # requests without a match, after which templates are created again, for other clients
MAX_DIMS: Final = 63  # numpy's limit less one, for the block dimension
BLOCK: Final = 1 << 14  # bytes allocated at once for the arrays of several requests
_UNPACKED: Final = frozenset({"BYTES", "BF16"})


class RequestTemplate(msgspec.Struct, eq=False):
    """All of a request but its numbers and id.

    `fit` caches the validation against the model, `batch_reply` the responder that handles whole batches.
    """

    before: bytes  # ends with the "[" of the array, or with the opening quote of the id
    between: bytes  # from the closing quote of the id to the "["; empty without an id
    after: bytes  # begins with the "]" of the array
    name: str
    datatype: str
    shape: Shape
    outputs: tuple[RequestedOutput, ...]
    decode: Callable[[bytes], list[Any]]
    pack: Callable[..., None]
    size: int  # bytes of an array
    start: int  # of the array in the body, or of the id
    rest: int  # bytes behind the array, at least the end of the object
    block: bytearray = bytearray()
    arrays: Any = ()  # views of the block
    count: int = 0  # arrays in the block
    used: int = 0  # arrays of it in use
    fit: Any = None
    batch_reply: Any = None

    def renew(self) -> None:
        """Allocate a new block; the arrays of the last one belong to their requests."""
        self.count, self.used = max(1, BLOCK // self.size), 0
        self.block = bytearray(self.count * self.size)
        self.arrays = np.frombuffer(self.block, NUMPY_TYPES[self.datatype]).reshape(self.count, *self.shape)


class TemplateCache:
    """The most recent templates of one model version."""

    def __init__(self) -> None:
        self._templates: list[RequestTemplate] = []
        self.batch_reply: Any = None  # of the templates that request all outputs
        self._unused = 0
        self._misses = 0

    def read(self, model: str, version: int, body: Buffer) -> InferRequest | None:
        if not isinstance(body, bytes) or len(body) > MAX_LENGTH:
            return None
        for template in self._templates:
            if body.startswith(template.before) and body.endswith(template.after):
                identity, start = _read_id(template, body) if template.between else ("", template.start)
                used = template.used
                if used == template.count:
                    template.renew()
                    used = 0
                try:  # `pack` rejects a wrong number of values
                    template.pack(template.block, used * template.size, *template.decode(body[start : -template.rest]))
                except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, struct.error):
                    continue
                template.used = used + 1
                self._unused = 0
                return InferRequest(
                    model, None, version, identity, template.outputs, template=template, block=template.arrays, row=used
                )
        self._misses += 1
        if self._misses % RETRY_AFTER == 0:
            self._unused = 0
        return None

    def learn(self, body: Buffer, text: msgspec.Raw, request: InferRequest) -> None:
        """Create a template; `text` is the JSON of the request's only array, as in the body."""
        if self._unused >= MAX_UNUSED or not isinstance(body, bytes) or len(body) > MAX_LENGTH:
            return
        template = _make_template(body, bytes(memoryview(text)), request)
        if template is not None:
            self._unused += 1
            self._templates = [template, *self._templates[: MAX_TEMPLATES - 1]]


def _read_id(template: RequestTemplate, body: bytes) -> tuple[str, int]:
    """Return the id and the start of the array; for an id with escapes the end of the body, where parsing fails."""
    end = body.find(b'"', template.start)
    text = body[template.start : end].decode("latin-1")
    if not _is_plain(text) or not body.startswith(template.between, end):
        return "", len(body)
    return text, end + len(template.between) - 1


def _is_plain(identity: str) -> bool:
    """Return whether JSON encodes the id without escapes; it has no quotes, since it was read up to the first."""
    return identity.isascii() and identity.isprintable() and "\\" not in identity


def _make_template(body: bytes, text: bytes, request: InferRequest) -> RequestTemplate | None:
    """Return a template; None if the array is not flat, or its text occurs twice in the body."""
    ((name, (datatype, array)),) = request.inputs.items()
    if datatype in _UNPACKED or not 0 < array.ndim <= MAX_DIMS or not array.size:
        return None
    if any(output.shared_memory for output in request.outputs):
        return None
    if not text.startswith(b"[") or not text.endswith(b"]") or b"[" in text[1:] or body.count(text) != 1:
        return None
    start, rest = body.index(text), len(body) - body.index(text) - len(text)
    before, between, after = body[: start + 1], b"", body[len(body) - rest - 1 :]
    if request.id:
        id_start = _find_id(before, body, request.id)
        if id_start < 0:
            return None
        before, between, start = before[:id_start], before[id_start + len(request.id) :], id_start
    decode, pack = flat_decoder(datatype), packer(datatype, array.size)
    rules = (name, datatype, array.shape, request.outputs, decode, pack, array.nbytes)
    return RequestTemplate(before, between, after, *rules, start, rest)


def _find_id(before: bytes, body: bytes, identity: str) -> int:
    """Return the start of the id before the array, or -1. Without backslashes in the body, text is not escaped, so the
    only occurrence of the quoted id is the id itself."""
    quoted = b'"%b"' % identity.encode("utf-8", "replace")
    if b"\\" in body or not _is_plain(identity) or '"' in identity or body.count(quoted) != 1:
        return -1
    at = before.find(quoted)
    return at + 1 if at >= 0 else -1

"""gzip and deflate of HTTP bodies, with a limit on the decompressed size."""

import mmap
import zlib
from collections.abc import Generator, Iterator
from functools import lru_cache
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest, RequestTooLarge, Unsupported

_WINDOW: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_OFFERED: Final = ("gzip", "deflate")
_GROWTH: Final = 1040  # deflate's own bound is 1032-fold
_SLICE: Final = 1024  # bytes of input per step, which expand to 1 MiB at most: malloc keeps a piece for each thread
_STEP: Final = 1 << 22  # bytes of output between two checks of the caller
_MEMBERS: Final = 1 << 14  # of a gzip body, 10 µs each even if empty: 64 MiB in blocks of bgzip are 1,024
_SAMPLE: Final = 4096
_WORTH_IT: Final = 256  # below this a gzip header costs more than it saves


def decompress(body: Buffer, encoding: str, limit: int) -> Iterator[int | Buffer]:
    """Yield the size of the output every few MiB, and the plain body at the end.

    Raise Unsupported, BadRequest, or RequestTooLarge beyond `limit` bytes.
    """
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        yield body
        return
    if encoding not in _WINDOW:
        raise Unsupported(f"Content-Encoding = {encoding[:50]!r}, must be gzip, deflate or identity")
    output = _Output(limit, len(body) * _GROWTH)
    rest = yield from _decompress_stream(memoryview(body), encoding, output)
    if rest and encoding == "deflate":
        raise BadRequest(f"the {encoding} body has {len(rest)} bytes after its end")
    members = 1
    while rest:  # gzip allows several concatenated members
        members += 1
        if members > _MEMBERS:
            raise BadRequest(f"the {encoding} body has more than {_MEMBERS} members; compress it as one")
        rest = yield from _decompress_stream(rest, encoding, output)
    yield output.bytes()


class _Output:
    """Output buffer: the first piece as it is, then anonymous pages, which return to the system when freed.

    malloc would keep them: every thread that once decompressed 64 MiB piecewise would hold 64 MiB for good.
    """

    __slots__ = ("_first", "_limit", "_max_size", "_pages", "size")

    def __init__(self, limit: int, max_size: int) -> None:
        self._limit = limit
        self._max_size = min(limit, max_size)
        self.size = 0
        self._first = b""
        self._pages: mmap.mmap | None = None

    def add(self, piece: bytes) -> None:
        start, self.size = self.size, self.size + len(piece)
        if self.size > self._limit:
            raise RequestTooLarge(
                f"the decompressed body exceeds the limit of {self._limit} bytes (--http-max-input-size)"
            )
        if start == 0:
            self._first = piece
        elif piece:
            if self._pages is None:  # the maximum size: pages that are not written cost nothing
                self._pages = mmap.mmap(-1, self._max_size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                self._pages[: len(self._first)] = self._first
                self._first = b""
            self._pages[start : self.size] = piece

    def bytes(self) -> Buffer:
        return self._first if self._pages is None else memoryview(self._pages)[: self.size]


def _decompress_stream(body: memoryview, encoding: str, output: _Output) -> Generator[int, None, memoryview]:
    """Decompress one stream; return the bytes behind it."""
    stream, step = zlib.decompressobj(_WINDOW[encoding]), output.size + _STEP
    for start in range(0, len(body), _SLICE):
        end = min(start + _SLICE, len(body))
        try:
            output.add(stream.decompress(body[start:end]))
        except zlib.error as error:
            raise BadRequest(f"the body is not valid {encoding}: {error}") from None
        if output.size > step:
            step = output.size + _STEP
            yield output.size
        if stream.eof:
            return body[end - len(stream.unused_data) :]
    raise BadRequest(f"the {encoding} body is cut off")


@lru_cache(128)
def choose_encoding(accept: str) -> str | None:
    """Return the preferred encoding of Accept-Encoding; ties go to gzip, then deflate, then none."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, _, quality = part.partition(";")
        weights[name.strip()] = _quality(quality)
    rest = weights.get("*", 0.0)
    weight, name = max(((weights.get(name, rest), name) for name in _OFFERED), key=lambda pair: pair[0])
    return name if weight > 0 and weight >= weights.get("identity", 0.0) else None


def _quality(text: str) -> float:
    """Return the q value: 1 if absent, 0 if malformed."""
    key, _, value = text.strip().partition("=")
    if not key:
        return 1.0
    try:
        weight = float(value) if key.strip() == "q" else 0.0
    except ValueError:
        return 0.0
    return weight if 0 < weight <= 1 else 0.0


def compress(pieces: list[Buffer], encoding: str) -> list[Buffer] | None:
    """Return the compressed body, or None if it is too small or a sample of it hardly shrinks.

    Measured: 600 KB of FP32 image data would hold the event loop for 20 ms to save a tenth.
    """
    if sum(map(len, pieces)) < _WORTH_IT:
        return None
    sample = bytes(max(pieces, key=len)[:_SAMPLE])
    if len(zlib.compress(sample, 1)) > 0.8 * len(sample):
        return None
    stream = zlib.compressobj(1, zlib.DEFLATED, _WINDOW[encoding])
    return [b"".join([*(stream.compress(piece) for piece in pieces), stream.flush()])]

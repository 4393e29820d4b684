"""gzip and deflate, both ways, with a bound on what a small body may grow to."""

import mmap
import zlib
from functools import lru_cache
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest, RequestTooLarge, Unsupported

_WINDOW: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_OFFERED: Final = ("gzip", "deflate")
_GROWTH: Final = 1040  # deflate's own bound is 1032-fold
_SLICE: Final = 4096  # unpacked at once, so that 4 MiB come out at most
_SAMPLE: Final = 4096
_WORTH_IT: Final = 256  # below this a gzip header costs more than it saves


def decompress(body: Buffer, encoding: str, limit: int) -> Buffer:
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return body
    if encoding not in _WINDOW:
        raise Unsupported(f"Content-Encoding = {encoding[:50]!r}, must be gzip, deflate or identity")
    unpacked = _Unpacked(limit, len(body) * _GROWTH)
    rest = _unpack(memoryview(body), encoding, unpacked)
    if rest and encoding == "deflate":
        raise BadRequest(f"the {encoding} body has {len(rest)} bytes behind its end")
    while rest:  # a gzip file may consist of several, one behind the other
        rest = _unpack(rest, encoding, unpacked)
    return unpacked.bytes()


class _Unpacked:
    """What came out so far: as it is while it is one piece, then in pages of its own.

    Those go back to the system with it. The allocator would keep them: every thread that once unpacked 64 MiB in
    pieces would hold 64 MiB for good.
    """

    __slots__ = ("_first", "_limit", "_most", "_pages", "_size")

    def __init__(self, limit: int, most: int) -> None:
        self._limit = limit
        self._most = min(limit, most)
        self._size = 0
        self._first = b""
        self._pages: mmap.mmap | None = None

    def add(self, piece: bytes) -> None:
        start, self._size = self._size, self._size + len(piece)
        if self._size > self._limit:
            raise RequestTooLarge(
                f"the body unpacks to more than the limit of {self._limit} bytes (--http-max-input-size)"
            )
        if start == 0:
            self._first = piece
        elif piece:
            pages = self._pages or self._turn_the_page()
            pages[start : self._size] = piece

    def _turn_the_page(self) -> mmap.mmap:
        """As long as it may become: pages that nobody writes to cost nothing."""
        self._pages = mmap.mmap(-1, self._most, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._pages[: len(self._first)] = self._first
        return self._pages

    def bytes(self) -> Buffer:
        return self._first if self._pages is None else memoryview(self._pages)[: self._size]


def _unpack(body: memoryview, encoding: str, unpacked: _Unpacked) -> memoryview:
    """One compressed stream; returns the bytes behind it."""
    stream = zlib.decompressobj(_WINDOW[encoding])
    for start in range(0, len(body), _SLICE):
        end = min(start + _SLICE, len(body))
        try:
            unpacked.add(stream.decompress(body[start:end]))
        except zlib.error as error:
            raise BadRequest(f"the body is not valid {encoding}: {error}") from None
        if stream.eof:
            return body[end - len(stream.unused_data) :]
    raise BadRequest(f"the {encoding} body is cut off")


@lru_cache(128)
def choose_encoding(accept: str) -> str | None:
    """What an Accept-Encoding likes best, gzip before deflate before no encoding where it does not care."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, _, quality = part.partition(";")
        weights[name.strip()] = _quality(quality)
    rest = weights.get("*", 0.0)
    weight, name = max(((weights.get(name, rest), name) for name in _OFFERED), key=lambda pair: pair[0])
    return name if weight > 0 and weight >= weights.get("identity", 0.0) else None


def _quality(text: str) -> float:
    """1 where nothing is said, 0 where it cannot be read."""
    key, _, value = text.strip().partition("=")
    if not key:
        return 1.0
    try:
        weight = float(value) if key.strip() == "q" else 0.0
    except ValueError:
        return 0.0
    return weight if 0 < weight <= 1 else 0.0


def compress(pieces: list[Buffer], encoding: str) -> list[Buffer] | None:
    """None when the body is too small to gain, or when what it mostly is does not shrink.

    Measured numbers hardly do: 600 KB of an image's FP32 would hold the event loop for 20 ms to save a tenth.
    """
    if sum(map(len, pieces)) < _WORTH_IT:
        return None
    sample = bytes(max(pieces, key=len)[:_SAMPLE])
    if len(zlib.compress(sample, 1)) > 0.8 * len(sample):
        return None
    stream = zlib.compressobj(1, zlib.DEFLATED, _WINDOW[encoding])
    packed = b"".join([*(stream.compress(piece) for piece in pieces), stream.flush()])
    return [packed]

"""gzip and deflate, both ways, with a bound on what a small body may grow to."""

import zlib
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest, RequestTooLarge, Unsupported

_WINDOW: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_OFFERED: Final = ("gzip", "deflate")
_SAMPLE: Final = 4096
_WORTH_IT: Final = 256  # below this a gzip header costs more than it saves


def decompress(body: Buffer, encoding: str, limit: int) -> Buffer:
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return body
    if encoding not in _WINDOW:
        raise Unsupported(f"Content-Encoding = {encoding[:50]!r}, must be gzip, deflate or identity")
    plain, rest = _unpacked(body, encoding, limit)
    if rest and encoding == "deflate":
        raise BadRequest(f"the {encoding} body has {len(rest)} bytes behind its end")
    while rest:  # a gzip file may consist of several, one behind the other
        more, rest = _unpacked(rest, encoding, limit - len(plain))
        plain += more
    return plain


def _unpacked(body: Buffer, encoding: str, limit: int) -> tuple[bytes, bytes]:
    """One compressed stream, and the bytes behind it."""
    stream = zlib.decompressobj(_WINDOW[encoding])
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"the body is not valid {encoding}: {error}") from None
    if len(plain) > limit:
        raise RequestTooLarge(f"the body unpacks to more than the limit of {limit} bytes (--http-max-input-size)")
    if not stream.eof:
        raise BadRequest(f"the {encoding} body is cut off")
    return plain, stream.unused_data


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

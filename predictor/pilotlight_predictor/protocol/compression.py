"""gzip and deflate, both ways, with a bound on what a small body may grow to."""

import zlib
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest, RequestTooLarge, Unsupported

_WINDOW: Final = {"gzip": 31, "deflate": 15}
_WORTH_IT: Final = 256  # below this a gzip header costs more than it saves


def decompress(body: Buffer, encoding: str, limit: int) -> Buffer:
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return body
    if encoding not in _WINDOW:
        raise Unsupported(f"Content-Encoding = {encoding!r}, must be gzip, deflate or identity")
    stream = zlib.decompressobj(_WINDOW[encoding])
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"the body is not valid {encoding}: {error}") from None
    if len(plain) > limit:
        raise RequestTooLarge(f"the body unpacks to more than the limit of {limit} bytes (--http-max-input-size)")
    if not stream.eof:
        raise BadRequest(f"the {encoding} body is cut off")
    return plain


def choose_encoding(accept: str) -> str | None:
    """The best of gzip and deflate that an Accept-Encoding allows; None means: send it plain."""
    best: tuple[float, str] | None = None
    for part in accept.lower().split(","):
        name, _, quality = part.strip().partition(";")
        weight = _quality(quality)
        name = "gzip" if name.strip() == "*" else name.strip()
        if name in _WINDOW and weight > 0 and (best is None or weight > best[0]):
            best = (weight, name)
    return best[1] if best else None


def _quality(text: str) -> float:
    try:
        return float(text.strip().removeprefix("q=") or 1)
    except ValueError:
        return 0.0


def compress(pieces: list[Buffer], encoding: str) -> list[Buffer] | None:
    """None when the body is too small to gain."""
    if sum(map(len, pieces)) < _WORTH_IT:
        return None
    stream = zlib.compressobj(1, zlib.DEFLATED, _WINDOW[encoding])
    packed = b"".join([*(stream.compress(piece) for piece in pieces), stream.flush()])
    return [packed]

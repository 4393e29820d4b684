"""Compression of inference responses: gzip or deflate by level and by what the client accepts, as gRPC chooses it."""

import zlib
from typing import Final

from pilotlight_predictor.frontends.grpc.message_reader import WINDOW_BITS

INLINE_BYTES: Final = 1 << 16  # compressed on the event loop: 2 ms
_RANKED: Final = ("gzip", "deflate")  # the order in which gRPC ranks them
_RANKS: Final = {"low": 0, "medium": 0.5, "high": 1}


def response_encoding(level: str, accepted: str) -> str:
    """Return the grpc-encoding of responses; empty for none. `accepted`: the client's grpc-accept-encoding."""
    names = {name.strip() for name in accepted.split(",")}
    known = [name for name in _RANKED if name in names]
    if level not in _RANKS or not known:
        return ""
    return known[min(int(_RANKS[level] * len(known)), len(known) - 1)]


def compress(message: bytes, encoding: str) -> tuple[bytes, int]:
    """Return the message for the wire and its compressed flag: one that does not become smaller is sent as it is."""
    compressor = zlib.compressobj(wbits=WINDOW_BITS[encoding])
    compressed = compressor.compress(message) + compressor.flush()
    return (compressed, 1) if len(compressed) < len(message) else (message, 0)

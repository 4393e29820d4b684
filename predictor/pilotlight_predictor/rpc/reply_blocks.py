"""HPACK header blocks of responses: headers, trailers, and errors. Pure.

Two fields are in every successful response. The first response adds both to the client's dynamic table (RFC 7541,
6.2.1), so that they take a byte each afterwards; a client with a smaller table than the default gets literals. Blocks
that change the table must be sent in the order of encoding, so a block that waits behind data is all literals.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from pilotlight.wire.http2.hpack import DEFAULT_TABLE, STATIC, HeaderField, indexed, literal

CODES: Final = {
    name: number
    for number, name in enumerate((
        "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
        "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
        "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
    ))
}  # fmt: skip
STATUS_200: Final = indexed(8)
TYPE: Final[HeaderField] = ("content-type", "application/grpc")
DONE: Final[HeaderField] = ("grpc-status", "0")
NEWEST: Final = len(STATIC)  # index of the newest entry of the dynamic table
KNOWN_HEAD: Final = STATUS_200 + indexed(NEWEST + 1)
KNOWN_DONE: Final = indexed(NEWEST)
MAX_MESSAGE: Final = 6000  # bytes: clients refuse metadata of 8 KiB
_NO_TABLE: Final = b"\x20"  # dynamic table size update to 0
_PARTIAL: Final = re.compile("%.?$")  # truncated escape
_SAFE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class ResponseHeaderBlocks:
    """Encoder of one connection. `indexed`: the client's table has the entries of KNOWN_HEAD and KNOWN_DONE."""

    __slots__ = ("_plain", "_prefix", "_typed", "indexed")

    def __init__(self) -> None:
        self.indexed = self._typed = self._plain = False
        self._prefix = b""

    def table_size(self, size: int) -> None:
        """Stop using the dynamic table if the client's is smaller than the default; the next block announces it."""
        if size < DEFAULT_TABLE and not self._plain:
            self.indexed, self._plain, self._prefix = False, True, _NO_TABLE

    def head(self) -> bytes:
        if self._plain:
            return self._take_prefix() + STATUS_200 + literal(*TYPE)
        if self._typed:
            return KNOWN_HEAD if self.indexed else STATUS_200 + indexed(NEWEST)
        self._typed = True
        return STATUS_200 + literal(*TYPE, index=True)

    def success(self, *, waits: bool) -> bytes:
        if waits:
            return literal(*DONE)
        if self._plain:
            return self._take_prefix() + literal(*DONE)
        if self.indexed:
            return KNOWN_DONE
        self.indexed = True
        return literal(*DONE, index=True)

    def failure(self, code: str, message: str, trailers: Iterable[HeaderField], *, headed: bool, waits: bool) -> bytes:
        """Return the trailers of a failed call, or trailers-only headers unless headers were sent."""
        fields = [("grpc-status", str(CODES[code])), ("grpc-message", percent_encoded(message)), *trailers]
        start = b"" if headed else STATUS_200 + literal(*TYPE)
        return (b"" if waits else self._take_prefix()) + start + b"".join(literal(*field) for field in fields)

    def not_grpc(self, status: int) -> bytes:
        """Return the headers of the response to an HTTP request that is no gRPC call."""
        return self._take_prefix() + literal(":status", str(status))

    def _take_prefix(self) -> bytes:
        prefix, self._prefix = self._prefix, b""
        return prefix


def percent_encoded(message: str) -> str:
    """Encode `grpc-message`, truncated to MAX_MESSAGE at a character boundary."""
    encoded = quote(message, safe=_SAFE)
    if len(encoded) <= MAX_MESSAGE:
        return encoded
    cut = unquote_to_bytes(_PARTIAL.sub("", encoded[:MAX_MESSAGE]))
    return quote(cut.decode("utf-8", "ignore"), safe=_SAFE)

"""Header blocks of answers: the one before the first message, the one behind the last, and those that refuse. Pure.

Two fields are in every good answer. The first answer teaches both to the client's table (RFC 7541, 6.2.1), so they
become a byte each; a client whose table is smaller than usual gets them in full. Blocks that touch the table must leave
in the order in which they were made, so one that waits for data to go first spells out everything.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from pilotlight.wire.http2.hpack import DEFAULT_TABLE, STATIC, Field, indexed, literal

CODES: Final = {
    name: number
    for number, name in enumerate((
        "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
        "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
        "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
    ))
}  # fmt: skip
STATUS_200: Final = indexed(8)
TYPE: Final[Field] = ("content-type", "application/grpc")
DONE: Final[Field] = ("grpc-status", "0")
NEWEST: Final = len(STATIC)  # the number of the table's newest entry
KNOWN_HEAD: Final = STATUS_200 + indexed(NEWEST + 1)
KNOWN_DONE: Final = indexed(NEWEST)
MAX_MESSAGE: Final = 6000  # bytes: clients refuse metadata of 8 KiB
_NO_TABLE: Final = b"\x20"  # a table of no bytes
_PARTIAL: Final = re.compile("%.?$")  # an escape that was cut off
_SAFE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class ReplyBlocks:
    """Of one connection. `settled` says that KNOWN_HEAD and KNOWN_DONE mean what they say to its client."""

    __slots__ = ("_plain", "_prefix", "_typed", "settled")

    def __init__(self) -> None:
        self.settled = self._typed = self._plain = False
        self._prefix = b""

    def table_size(self, size: int) -> None:
        """A table smaller than usual is not used, and the next block says so."""
        if size < DEFAULT_TABLE and not self._plain:
            self.settled, self._plain, self._prefix = False, True, _NO_TABLE

    def head(self) -> bytes:
        if self._plain:
            return self._begun() + STATUS_200 + literal(*TYPE)
        if self._typed:
            return KNOWN_HEAD if self.settled else STATUS_200 + indexed(NEWEST)
        self._typed = True
        return STATUS_200 + literal(*TYPE, keep=True)

    def done(self, *, waits: bool) -> bytes:
        if waits:
            return literal(*DONE)
        if self._plain:
            return self._begun() + literal(*DONE)
        if self.settled:
            return KNOWN_DONE
        self.settled = True
        return literal(*DONE, keep=True)

    def failed(self, code: str, message: str, trailers: Iterable[Field], *, headed: bool, waits: bool) -> bytes:
        """The end of a call that failed; without a head before it, it is all that the client gets."""
        fields = [("grpc-status", str(CODES[code])), ("grpc-message", percent_encoded(message)), *trailers]
        start = b"" if headed else STATUS_200 + literal(*TYPE)
        return (b"" if waits else self._begun()) + start + b"".join(literal(*field) for field in fields)

    def no_call(self, status: int) -> bytes:
        """To whoever sent a request of HTTP that is no call of gRPC."""
        return self._begun() + literal(":status", str(status))

    def _begun(self) -> bytes:
        prefix, self._prefix = self._prefix, b""
        return prefix


def percent_encoded(message: str) -> str:
    """As gRPC wants it, and not cut within a character."""
    encoded = quote(message, safe=_SAFE)
    if len(encoded) <= MAX_MESSAGE:
        return encoded
    cut = unquote_to_bytes(_PARTIAL.sub("", encoded[:MAX_MESSAGE]))
    return quote(cut.decode("utf-8", "ignore"), safe=_SAFE)

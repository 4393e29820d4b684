"""How long the fast lane waits for a client that sends nothing, sends slowly or does not read. Pure."""

from typing import Final

SLOW_S: Final = 30.0  # a request that takes longer to arrive, beyond what LEAST_RATE allows, is a slow-loris client's
LEAST_RATE: Final = 1 << 14  # bytes a second: 64 MiB may take 68 minutes, a stalled body 30 seconds
IDLE_S: Final = 75.0


def patience_s(arrived: int | None, unsent: int) -> float:
    """`arrived` bytes of a body are there, None where no request has begun; `unsent` bytes of an answer are left."""
    if unsent:
        return SLOW_S
    return IDLE_S if arrived is None else SLOW_S + arrived / LEAST_RATE

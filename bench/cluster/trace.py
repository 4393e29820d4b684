"""The request trace that every autoscaler gets: how many requests are in flight when, and when each one is sent. Pure.

A request takes `SERVICE_S`, so that N in flight are N / SERVICE_S requests a second, whoever serves them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

SERVICE_S: Final = 0.5
STEP_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Piece:
    """In flight at its begin and at its end, and in between on a straight line."""

    name: str
    seconds: float
    begin: float
    end: float


TRACE: Final = (
    Piece("idle", 10, 0, 0),
    Piece("ramp", 40, 1, 10),
    Piece("plateau", 40, 10, 10),
    Piece("burst", 15, 24, 24),
    Piece("ebb", 20, 3, 3),
    Piece("idle", 65, 0, 0),
)


def length(trace: Sequence[Piece]) -> float:
    return sum(piece.seconds for piece in trace)


def in_flight(trace: Sequence[Piece], at: float) -> float:
    """How many the trace wants in flight at that second."""
    for piece in trace:
        if at < piece.seconds:
            return piece.begin + (piece.end - piece.begin) * at / piece.seconds
        at -= piece.seconds
    return 0.0


def sendings(trace: Sequence[Piece], service_s: float = SERVICE_S) -> Iterator[float]:
    """When each request is sent, in seconds from the begin: evenly, at the rate that the trace has there."""
    due = 0.0
    for step in range(round(length(trace) / STEP_S)):
        at = step * STEP_S
        due += in_flight(trace, at) / service_s * STEP_S
        if due >= 1:
            due -= 1
            yield at


def gap(left: Sequence[float], right: Sequence[float]) -> float:
    """Mean absolute difference of two series of replicas, second by second, as far as both go."""
    pairs = list(zip(left, right, strict=False))
    return sum(abs(one - other) for one, other in pairs) / len(pairs) if pairs else 0.0

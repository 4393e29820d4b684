"""Synthetic requests to one side of a canary, where too few come by themselves: its example request, repeated.

The answers count in the service's own metrics like anybody's, so that the next measurement sees them. A model may well
refuse the example, or fail at it: what the stable side cannot answer proves nothing about the canary, so it is asked
first.
"""

import json
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from pilotlight.canary.examples import path_of, zeros
from pilotlight.conversation import FAILURES, Conversation
from pilotlight.errors import PlatformError
from pilotlight.targets.target import RevisionStatus, ServiceStatus, Target

REFUSED: Final = 400
OTHERS: Final = "--on-no-data pause|fail|pass"
ANSWER_S: Final = 10.0
LONGEST_S: Final = 20.0  # of one round, but for its last answer: who holds the canary must say so again in time
HEADERS: Final = {"content-type": "application/json", "user-agent": "pilotlight-canary"}


class Deadline(NamedTuple):
    """Of one round: whether the example is one, and the probes of both sides."""

    at: float
    clock: Callable[[], float]

    @classmethod
    def of_round(cls, clock: Callable[[], float]) -> "Deadline":
        return cls(clock() + LONGEST_S, clock)

    def left(self) -> float:
        return self.at - self.clock()

    def part(self, sides: int) -> "Deadline":
        """For one of the sides that are still to come: one that is slow leaves the other its time."""
        return self._replace(at=self.clock() + self.left() / sides)


def unfit(target: Target, status: ServiceStatus, stable: RevisionStatus, example: str, deadline: Deadline) -> str:
    """Why the example is none, as the stable side answers it; empty where it is one, or nobody answers."""
    try:
        code = max(_answers(target, status, stable, example, 1, deadline), default=0)
    except PlatformError:
        return ""
    if code < REFUSED:
        return ""
    asked = "the example" if example else "a request of zeros"
    told = f"{stable.name}, which serves well, answers {code} to {asked}, so that no probe can be made of it"
    return f"{told}; give one that it answers with --example, send {status.name} requests, or choose {OTHERS}"


def probe(
    target: Target, status: ServiceStatus, row: RevisionStatus, example: str, count: int, deadline: Deadline
) -> int:
    """How many were sent. Raises PlatformError where none can be."""
    return len(_answers(target, status, row, example, count, deadline))


def _answers(
    target: Target, status: ServiceStatus, row: RevisionStatus, example: str, count: int, deadline: Deadline
) -> list[int]:
    """Their codes, 0 where no answer came."""
    codes: list[int] = []
    if deadline.left() <= 0:
        return codes
    with (
        target.way(replace(status, url=row.url or _inside(status, row))) as way,
        Conversation(way.url, ANSWER_S, {**HEADERS, **way.headers}) as conversation,
    ):
        body = example or _from_metadata(conversation, status, row)
        path = path_of(json.loads(body), status.name)
        while len(codes) < count and deadline.left() > 0:
            codes.append(_asked(conversation, "POST", path, body.encode())[0])
    return codes


def _from_metadata(conversation: Conversation, status: ServiceStatus, row: RevisionStatus) -> str:
    path = f"/v2/models/{quote(status.name, safe='')}"
    code, about = _asked(conversation, "GET", path)
    if code != 200:
        message = f"{row.name} does not say what it takes (GET {path} answers {code}), so no probe can be made"
        raise PlatformError(message, f"give an --example, send it requests, or choose {OTHERS}")
    return json.dumps(zeros(json.loads(about)))


def _inside(status: ServiceStatus, row: RevisionStatus) -> str:
    """The address of a side that has none of its own outside: its Service in the cluster."""
    return f"http://{row.workload}.{status.namespace}.svc.cluster.local"


def _asked(conversation: Conversation, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """The status, 0 where no answer came; an answer that never comes is no reason to send no other."""
    try:
        reply = conversation.ask(method, path, body)
    except FAILURES:
        return 0, b""
    return reply.status, reply.body

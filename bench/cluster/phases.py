"""From what a cluster noted of one start to how long each part of it took. Pure.

Kubernetes' own times are whole seconds, but the name of an event ends in the nanosecond at which it was made, in
hexadecimal, and each line of a log carries the time at which the container runtime read it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

Json = Any
STAMP: Final = re.compile(r"\.([0-9a-f]{12,16})$")
SECOND_PARTS: Final = re.compile(r"^(\S+?\.\d{6})\d*(Z|[+-]\d\d:\d\d)$")
OWN: Final = ("boot", "listen", "import", "fetch", "load", "warmup")


@dataclass(frozen=True, slots=True)
class Instants:
    """Seconds since the epoch: the request, its pod's way, and the first byte of the answer."""

    asked: float
    created: float
    scheduled: float
    started: float
    ready: float
    answered: float


def phases(at: Instants) -> dict[str, float]:
    """Their sum is `total`."""
    return {
        "asking": at.created - at.asked,
        "scheduling": at.scheduled - at.created,
        "container": at.started - at.scheduled,
        "server": at.ready - at.started,
        "answer": at.answered - at.ready,
        "total": at.answered - at.asked,
    }


def event_time(event: Mapping[str, Json]) -> float:
    found = STAMP.search(event["metadata"]["name"])
    if found is None:
        raise ValueError(f"event {event['metadata']['name']} does not end in its time")
    return int(found[1], 16) / 1e9


def first_event(events: Sequence[Mapping[str, Json]], reason: str, container: str = "") -> float | None:
    """When the first of these events was made; `container` narrows it to one of the pod's."""
    place = f"spec.containers{{{container}}}" if container else None
    times = [
        event_time(each)
        for each in events
        if each["reason"] == reason and (place is None or each["involvedObject"].get("fieldPath") == place)
    ]
    return min(times, default=None)


def line_time(log: str, wanted: re.Pattern[str]) -> float | None:
    """Of the first line that matches, in a log with timestamps."""
    return next((_time(line.partition(" ")[0]) for line in log.splitlines() if wanted.search(line)), None)


def own_phases(log: str) -> dict[str, float]:
    """What our predictor says of its own start."""
    for line in log.splitlines():
        _, _, text = line.partition(" ")
        if text.startswith("{") and '"event":"ready"' in text:
            said = json.loads(text)["phases"]
            return {f"own.{name}": float(said[name]) for name in OWN if name in said}
    return {}


def _time(stamp: str) -> float:
    """RFC 3339 with nanoseconds, of which Python keeps six digits."""
    short = SECOND_PARTS.sub(r"\1\2", stamp)
    return datetime.fromisoformat(short).timestamp()

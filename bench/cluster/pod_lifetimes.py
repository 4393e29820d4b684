"""From the events of a watch on pods to what a run cost: cold starts and replica-seconds. Pure.

A pod is a replica from its creation to its deletion, as in a simulation; the API gives both in whole seconds, a watch
when it is heard of.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple


class PodEvent(NamedTuple):
    """`kind` of Kubernetes' watch: ADDED, MODIFIED, DELETED. `at`: seconds of the clock that the run has."""

    at: float
    kind: str
    name: str


class Lifetime(NamedTuple):
    name: str
    created: float
    deleted: float  # infinite: it still existed


def lifetimes(events: Iterable[PodEvent]) -> list[Lifetime]:
    """Return the pods in order of their creation.

    A watch that reconnects reports a pod again: the first time counts.
    """
    created: dict[str, float] = {}
    deleted: dict[str, float] = {}
    for event in events:
        created.setdefault(event.name, event.at)
        if event.kind == "DELETED":
            deleted.setdefault(event.name, event.at)
    pods = [Lifetime(name, at, deleted.get(name, float("inf"))) for name, at in created.items()]
    return sorted(pods, key=lambda pod: pod.created)


def listed(events: Iterable[PodEvent], names: Collection[str], now: float) -> list[PodEvent]:
    """Return the events by which a list of all pods differs from those that were heard of."""
    known = {pod.name: pod.deleted for pod in lifetimes(events)}
    ended = [name for name, deleted in known.items() if deleted == float("inf") and name not in names]
    return [
        *(PodEvent(now, "ADDED", name) for name in names if name not in known),
        *(PodEvent(now, "DELETED", name) for name in ended),
    ]


def usage(pods: Sequence[Lifetime], begin: float, seconds: float) -> Mapping[str, float]:
    """Return the pods that were created within the time, and the seconds within it of all that existed."""
    end = begin + seconds
    within = (max(0.0, min(pod.deleted, end) - max(pod.created, begin)) for pod in pods)
    return {
        "cold_starts": float(sum(begin <= pod.created < end for pod in pods)),
        "replica_seconds": sum(within),
    }

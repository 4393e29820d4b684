"""What should run, and who gets requests: pure decisions between the specification and the replicas that there are.

Traffic moves as Knative moves it: to a set of revisions only once each of them has been ready, until then the shares
before it stand. Replicas of a Deployment are replaced as Kubernetes does it, within surge and unavailability.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from pilotlight.targets.local.model import TrafficShare
from pilotlight.targets.local.supervisor.replica import Replica

R = TypeVar("R")
Shares = tuple[TrafficShare, ...]

# What is stopped first: those that do not serve.
_STOP_ORDER: Final = {"waiting": 0, "unready": 1, "starting": 2, "ready": 3}


@dataclass(frozen=True, slots=True)
class Counts:
    """Replicas that are not on their way out, and those of them that answer."""

    total: int
    ready: int


def routed(history: Sequence[Shares], ready_once: Collection[str]) -> Shares:
    """The newest shares whose revisions have all been ready; the newest of all where there are none.

    `history` begins with what is wanted and goes back in time. Those of a first deploy hold their requests.
    """
    proven = (shares for shares in history if shares and all(share.revision in ready_once for share in shares))
    return next(proven, history[0] if history else ())


def reachable(shares: Iterable[TrafficShare]) -> set[str]:
    """Revisions that some request can reach: by weight or by tag."""
    return {share.revision for share in shares if share.percent > 0 or share.tag}


def rolling(desired: int, new: Counts, old: Counts, surge: int, unavailable: int) -> tuple[int, int]:
    """How many of the new and of the old template there should be at this moment.

    4 wanted, surge 1, none unavailable: 4 old → start 1 → it is ready → stop 1 old → start the next …
    """
    if not old.total:
        return desired, 0
    if not surge and not unavailable:
        return new.total, 0  # the old ones go first
    wanted_new = min(desired, max(new.total, desired + surge - old.total))
    spare = new.ready + old.ready - (desired - unavailable)
    idle_old = old.total - old.ready  # they serve nobody, so nobody misses them
    kept_old = old.total - min(old.total, idle_old + max(0, min(spare, old.ready)))
    return wanted_new, kept_old if new.ready < desired else 0


def to_stop(replicas: Iterable[Replica], surplus: int) -> list[Replica]:
    """The surplus: those that do not serve first, then the youngest."""
    by_age = sorted(replicas, key=lambda replica: replica.started_at, reverse=True)
    ordered = sorted(by_age, key=lambda replica: _STOP_ORDER.get(replica.state, 0))
    return ordered[: max(0, surplus)]


def counts(replicas: Iterable[Replica]) -> Counts:
    found = list(replicas)
    return Counts(len(found), sum(replica.state == "ready" for replica in found))


def newest(items: Iterable[R], at: Callable[[R], float]) -> R | None:
    return max(items, key=at, default=None)

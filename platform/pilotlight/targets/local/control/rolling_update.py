"""Rolling-update and traffic decisions: pure functions of the specification and the present replicas.

Traffic moves as in Knative: to a set of revisions only once each has been ready; until then earlier shares hold.
Replicas of a Deployment are replaced as in Kubernetes, within maxSurge and maxUnavailable.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pilotlight.targets.local.manifests.service_spec import TrafficShare
from pilotlight.targets.local.supervisor.replica import Replica

Shares = tuple[TrafficShare, ...]

# Replicas that do not serve are stopped first.
_STOP_ORDER: Final = {"waiting": 0, "unready": 1, "starting": 2, "ready": 3}


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Active replicas, and how many of them are ready."""

    total: int
    ready: int


def effective_shares(history: Sequence[Shares], ready_once: Collection[str]) -> Shares:
    """Return the newest shares whose revisions have all been ready, else the specified ones (`history[0]`)."""
    proven = (shares for shares in history if shares and all(share.revision in ready_once for share in shares))
    # On a first deploy nothing is proven: the specified shares route, and the gateway holds their requests.
    return next(proven, history[0] if history else ())


def reachable_revisions(shares: Iterable[TrafficShare]) -> set[str]:
    """Return the revisions that receive requests, by weight or by tag."""
    return {share.revision for share in shares if share.percent > 0 or share.tag}


def rolling_update(
    desired: int, new: ReplicaCounts, old: ReplicaCounts, surge: int, unavailable: int
) -> tuple[int, int]:
    """Return how many replicas of the new and of the old template should run now.

    desired 4, surge 1, unavailable 0: 4 old → start 1 → it is ready → stop 1 old → start the next …
    """
    if not old.total:
        return desired, 0
    if not surge and not unavailable:
        return new.total, 0  # Recreate: no new replica before the last old one has ended
    # Never fewer than already run, so that a shrinking surge does not stop new replicas that are starting.
    desired_new = min(desired, max(new.total, desired + surge - old.total))
    spare = new.ready + old.ready - (desired - unavailable)
    # Old replicas that are not ready do not count as available, so they go first and without limit.
    unready_old = old.total - old.ready
    desired_old = old.total - min(old.total, unready_old + max(0, min(spare, old.ready)))
    return desired_new, desired_old if new.ready < desired else 0


def select_for_removal(replicas: Iterable[Replica], surplus: int) -> list[Replica]:
    """Return `surplus` replicas to remove: those that do not serve first, then the youngest."""
    by_age = sorted(replicas, key=lambda replica: replica.started_at, reverse=True)
    ordered = sorted(by_age, key=lambda replica: _STOP_ORDER.get(replica.state, 0))
    return ordered[: max(0, surplus)]


def counts(replicas: Iterable[Replica]) -> ReplicaCounts:
    states = [replica.state for replica in replicas]
    return ReplicaCounts(len(states), states.count("ready"))

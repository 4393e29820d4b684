"""Observation of a canary before every decision: releases and revisions of the service, against the stored state.

A runner may have died between changing the service and saving the state, and users deploy manually. So the releases
are authoritative: which manifest is the newest, and does it receive all traffic?
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from pilotlight import history
from pilotlight.canary.model import Canary
from pilotlight.canary.moves import Conditions
from pilotlight.errors import NotFound
from pilotlight.targets.target import Key, Release, RevisionStatus, ServiceStatus, Target

LOADED_STATES: Final = ("Loaded", "Standby", "Parked")
ROLLED_BACK_NOTE: Final = "canary rolled back"  # prefix of the note of a rollback release
Outcome = Literal["", "promoted", "rolled back", "superseded"]


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Observed rollout. `outcome` is the end of the canary by the newest release; empty: it continues."""

    status: ServiceStatus
    releases: Sequence[Release]
    canary: Canary
    outcome: Outcome = ""
    reason: str = ""

    @property
    def newest(self) -> Release:
        return self.releases[0]

    @property
    def conditions(self) -> Conditions:
        revision = revision_status(self.status, self.canary.revision)
        if revision is None:
            return Conditions(False, newer=self.outcome == "superseded")
        failed = (revision.reason or "its model cannot be loaded") if revision.model_state == "FailedToLoad" else ""
        return Conditions(revision.model_state in LOADED_STATES, failed, self.outcome == "superseded")

    def stable(self) -> Release:
        """Return the release to roll back to. Raise NotFound if it is not stored any more."""
        release = find_release(self.releases, self.canary.stable_generation)
        if release is None:
            message = f"generation {self.canary.stable_generation} of {self.newest.name}, to go back to, is not kept"
            raise NotFound(message, "deploy its document: platformctl deploy -f FILE")
        return release


def observe(target: Target, key: Key, canary: Canary) -> RolloutState:
    """Return the rollout as the target reports it."""
    status, releases = target.status(key), history.releases(target, key)
    if releases[0].generation == canary.generation:
        return RolloutState(status, releases, canary)
    outcome = _outcome(releases, canary)
    if not outcome:  # a weight of this canary, released by a runner that died since, or manually
        canary = replace(canary, generation=releases[0].generation)
    if outcome != "rolled back":
        return RolloutState(status, releases, canary, outcome)
    note = releases[0].note
    automatic = note.startswith(ROLLED_BACK_NOTE)
    reason = note.removeprefix(ROLLED_BACK_NOTE).removeprefix(": ") if automatic else f"by hand: {note}"
    return RolloutState(status, releases, canary, outcome, reason)


def _outcome(releases: Sequence[Release], canary: Canary) -> Outcome:
    newest = releases[0]
    document, has_all_traffic = history.released_document(newest), history.receives_all_traffic(newest)
    own = find_release(releases, canary.generation)
    if own is not None and history.released_document(own) == document:
        return "promoted" if has_all_traffic else ""
    stable = find_release(releases, canary.stable_generation)
    if stable is not None and history.released_document(stable) == document and has_all_traffic:
        return "rolled back"
    return "superseded"


def find_release(releases: Sequence[Release], generation: int) -> Release | None:
    return next((each for each in releases if each.generation == generation), None)


def revision_status(status: ServiceStatus, revision: str) -> RevisionStatus | None:
    """Return the status of a revision, also under a derived name, which a target assigns to overridden revisions."""
    exact = [each for each in status.revisions if each.name == revision]
    derived = [each for each in status.revisions if each.name.startswith(f"{revision}-")]
    return next(iter([*exact, *derived]), None)


def revision_names(canary: Release, stable: Release) -> tuple[str, str]:
    """Return canary and stable revision of the changed component that is first in the request path."""
    before = sorted(history.revisions(stable))
    ranks = {f"{canary.name}-{role}": rank for rank, role in enumerate(history.ENTRIES)}
    changed = history.revisions(canary).difference(before)
    if not changed:
        raise NotFound(f"the document of {canary.name} makes the same pods, so there is nothing to try")
    first = min(changed, key=lambda name: (ranks.get(name.rpartition("-")[0], len(ranks)), name))
    workload = first.rpartition("-")[0]
    previous = (name for name in before if name.rpartition("-")[0] == workload)
    return first, next(previous, before[0] if before else "")

"""What of a canary runs: its releases and revisions, held against what is kept of it. Before every decision.

A runner may have died between changing what runs and writing that down, and people deploy by hand. So nothing is
believed but the releases themselves: whose document is the newest, and does it stand alone?
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from pilotlight import history
from pilotlight.canary.model import Canary
from pilotlight.canary.moves import Facts
from pilotlight.errors import NotFound
from pilotlight.targets.target import Key, Release, RevisionStatus, ServiceStatus, Target

PROVEN: Final = ("Loaded", "Standby", "Parked")
ROLLED_BACK: Final = "canary rolled back"  # how the note of the release begins that ends one
Outcome = Literal["", "promoted", "rolled back", "superseded"]


@dataclass(frozen=True, slots=True)
class Standing:
    """`outcome`: what the newest release has made of the canary already; empty: it goes on."""

    status: ServiceStatus
    releases: Sequence[Release]
    canary: Canary
    outcome: Outcome = ""
    reason: str = ""

    @property
    def newest(self) -> Release:
        return self.releases[0]

    @property
    def facts(self) -> Facts:
        row = row_of(self.status, self.canary.revision)
        if row is None:
            return Facts(False, newer=self.outcome == "superseded")
        failed = (row.reason or "its model cannot be loaded") if row.model_state == "FailedToLoad" else ""
        return Facts(row.model_state in PROVEN, failed, self.outcome == "superseded")

    def stable(self) -> Release:
        found = release_of(self.releases, self.canary.stable_generation)
        if found is None:
            message = f"generation {self.canary.stable_generation} of {self.newest.name}, to go back to, is not kept"
            raise NotFound(message, "deploy its document: platformctl deploy -f FILE")
        return found


def look(target: Target, key: Key, canary: Canary) -> Standing:
    status, releases = target.status(key), history.releases(target, key)
    if releases[0].generation == canary.generation:
        return Standing(status, releases, canary)
    outcome = _outcome(releases, canary)
    if not outcome:  # a share of this canary's, written by a runner that died since, or by hand
        canary = replace(canary, generation=releases[0].generation)
    note = releases[0].note
    reason = note.removeprefix(ROLLED_BACK).removeprefix(": ") if note.startswith(ROLLED_BACK) else f"by hand: {note}"
    return Standing(status, releases, canary, outcome, reason if outcome == "rolled back" else "")


def _outcome(releases: Sequence[Release], canary: Canary) -> Outcome:
    newest = releases[0]
    document, stands_alone = history.document_of(newest), history.alone(newest)
    mine = release_of(releases, canary.generation)
    if mine is not None and history.document_of(mine) == document:
        return "promoted" if stands_alone else ""
    stable = release_of(releases, canary.stable_generation)
    if stable is not None and history.document_of(stable) == document and stands_alone:
        return "rolled back"
    return "superseded"


def release_of(releases: Sequence[Release], generation: int) -> Release | None:
    return next((each for each in releases if each.generation == generation), None)


def row_of(status: ServiceStatus, revision: str) -> RevisionStatus | None:
    """Also under a name made from the planned one, which a target gives where something was set by hand."""
    exact = [each for each in status.revisions if each.name == revision]
    derived = [each for each in status.revisions if each.name.startswith(f"{revision}-")]
    return next(iter([*exact, *derived]), None)


def revision_names(fresh: Release, stable: Release) -> tuple[str, str]:
    """Of the component that requests reach first among those that differ: the canary's and the stable one."""
    new, old = history.revisions(fresh), history.revisions(stable)
    place = {f"{fresh.name}-{role}": rank for rank, role in enumerate(history.ENTRIES)}
    changed = sorted(new - old, key=lambda name: (place.get(name.rpartition("-")[0], len(place)), name))
    if not changed:
        raise NotFound(f"the document of {fresh.name} makes the same pods, so there is nothing to try")
    workload = changed[0].rpartition("-")[0]
    before = next((name for name in sorted(old) if name.rpartition("-")[0] == workload), "")
    return changed[0], before or next(iter(sorted(old)), "")

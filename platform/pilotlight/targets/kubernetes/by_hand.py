"""What `scale` and `traffic` set: the overrides of a service afterwards, from what is there and what was asked. Pure.

overlay.py lays them over the manifests; here it is decided what they are, and whether they can be meant.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.overlay import Overrides, bounds_of, is_knative
from pilotlight.targets.kubernetes.rows import entries, rows
from pilotlight.targets.kubernetes.snapshot import Snapshot
from pilotlight.targets.kubernetes.statuses import overrides_of
from pilotlight.targets.target import Share

Json = Any


def scaled(there: Snapshot, bounds: Mapping[str, int] | None) -> tuple[Overrides, list[str]]:
    """With these bounds on whatever receives requests, or without any; and what that brings along, in sentences."""
    before = overrides_of(there.workloads)
    after = dict(before)
    for name in _names(there):
        shares = {key: value for key, value in before.get(name, {}).items() if key == "traffic"}
        after[name] = {**shares, **(bounds or {})}
    changes = bool(bounds) or any(bounds_of(written) for written in before.values())
    knative = [each["metadata"]["name"] for each in entries(there.workloads) if is_knative(each) and changes]
    told = [f"Knative keeps bounds in a revision: {name} gets a new one, whose pods start afresh" for name in knative]
    return _set(after), told


def split(there: Snapshot, shares: Sequence[Share] | None) -> Overrides:
    """With these shares, kept on the first of those that receive requests; or as the document says."""
    first, *others = entries(there.workloads)
    if shares and not others and not is_knative(first):
        message = f"{'/'.join(there.key)} is a {first['kind']} with one side; a canary gives it a second"
        raise UsageError(message, f"platformctl canary start {there.key[1]} -f FILE --percent 10")
    _check_shares(there, shares or ())
    after: dict[str, dict[str, Json]] = {
        name: {key: value for key, value in written.items() if key != "traffic"}
        for name, written in overrides_of(there.workloads).items()
    }
    if shares:
        after.setdefault(str(first["metadata"]["name"]), {})["traffic"] = [to_builtins(share) for share in shares]
    return _set(after)


def check_whole(there: Snapshot) -> None:
    """A delete that was interrupted leaves releases behind and nothing that could be scaled."""
    if not there.workloads:
        message = f"{'/'.join(there.key)} is being deleted, or was deleted in part"
        raise PlatformError(message, f"platformctl delete {there.key[1]} -n {there.key[0]} ends it; or deploy it again")


def _check_shares(there: Snapshot, shares: Sequence[Share]) -> None:
    """Also of revisions that `status` does not show, since nothing of them runs."""
    asleep = {str(each["metadata"]["name"]) for each in there.of(kinds.KNATIVE_REVISION)}
    known = {*(row.name for row in rows(there)), *asleep, "latest"}
    unknown = [share.revision for share in shares if share.revision not in known]
    if unknown:
        raise NotFound(f"no revision is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if shares and sum(share.percent for share in shares) != 100:
        raise UsageError(f"the shares add up to {sum(share.percent for share in shares)}, must be 100")


def _names(there: Snapshot) -> list[str]:
    return [str(each["metadata"]["name"]) for each in entries(there.workloads)]


def _set(overrides: Overrides) -> Overrides:
    return {name: written for name, written in overrides.items() if written}

"""Overrides after `scale` and `traffic`, from the snapshot and the request. Pure.

overlay.py applies them to the manifests; here they are computed and checked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.overlay import Overrides, bounds_of, is_knative
from pilotlight.targets.kubernetes.rows import entries, revision_rows
from pilotlight.targets.kubernetes.snapshot import Snapshot
from pilotlight.targets.kubernetes.statuses import read_overrides
from pilotlight.targets.target import Share

Json = Any


def scale_overrides(snapshot: Snapshot, bounds: Mapping[str, int] | None) -> tuple[Overrides, list[str]]:
    """Return the overrides with these bounds on the entry workloads (None: without), and warnings."""
    before = read_overrides(snapshot.workloads)
    after = dict(before)
    for name in (str(each["metadata"]["name"]) for each in entries(snapshot.workloads)):
        shares = {key: value for key, value in before.get(name, {}).items() if key == "traffic"}
        after[name] = {**shares, **(bounds or {})}
    changes = bool(bounds) or any(bounds_of(written) for written in before.values())
    knative = [each["metadata"]["name"] for each in entries(snapshot.workloads) if is_knative(each) and changes]
    warnings = [
        f"Knative keeps bounds in a revision: {name} gets a new one, whose pods start afresh" for name in knative
    ]
    return _without_empty(after), warnings


def traffic_overrides(snapshot: Snapshot, shares: Sequence[Share] | None) -> Overrides:
    """Return the overrides with these shares, stored on the first entry workload; None: without."""
    first, *others = entries(snapshot.workloads)
    if shares and not others and not is_knative(first):
        message = f"{'/'.join(snapshot.key)} is a {first['kind']} with one side; a canary gives it a second"
        raise UsageError(message, f"platformctl canary start {snapshot.key[1]} -f FILE --percent 10")
    _check_shares(snapshot, shares or ())
    after: dict[str, dict[str, Json]] = {
        name: {key: value for key, value in written.items() if key != "traffic"}
        for name, written in read_overrides(snapshot.workloads).items()
    }
    if shares:
        after.setdefault(str(first["metadata"]["name"]), {})["traffic"] = [to_builtins(share) for share in shares]
    return _without_empty(after)


def check_deployed(snapshot: Snapshot) -> None:
    """Raise PlatformError after an interrupted delete: there are releases, but nothing to change."""
    if not snapshot.workloads:
        message = f"{'/'.join(snapshot.key)} is being deleted, or was deleted in part"
        raise PlatformError(
            message, f"platformctl delete {snapshot.key[1]} -n {snapshot.key[0]} ends it; or deploy it again"
        )


def _check_shares(snapshot: Snapshot, shares: Sequence[Share]) -> None:
    """Check names and sum of the shares; revisions that `status` omits, since they have no pods, are valid."""
    without_pods = {str(each["metadata"]["name"]) for each in snapshot.of(kinds.KNATIVE_REVISION)}
    known = {*(row.name for row in revision_rows(snapshot)), *without_pods, "latest"}
    unknown = [share.revision for share in shares if share.revision not in known]
    if unknown:
        raise NotFound(f"no revision is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if shares and sum(share.percent for share in shares) != 100:
        raise UsageError(f"the shares add up to {sum(share.percent for share in shares)}, must be 100")


def _without_empty(overrides: Overrides) -> Overrides:
    return {name: written for name, written in overrides.items() if written}

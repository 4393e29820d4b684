"""Releases that an automatic rollback may deploy again, by what is recorded of their revisions. Pure."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pilotlight.targets.local.manifests.interpret import revisions_of
from pilotlight.targets.local.store.schema import StoredRevision
from pilotlight.targets.target import Release

ANSWERED, READY_ONCE, NEVER_READY = range(3)


def rollback_candidates(
    releases: Iterable[Release], recorded: Iterable[StoredRevision], failing: str
) -> Sequence[Release]:
    """Return the releases whose revisions are all recorded and have not failed, the most trusted first.

    Those that have answered come before those that were only ready, and these before the rest; then the newest first.
    """
    known = {revision.name: revision for revision in recorded}
    usable = known.keys() - failed_revisions(known.values()) - {failing}
    named = [(release, _revision_names(release)) for release in releases]
    ranked = [
        (max(_rank(known[name]) for name in names), -release.generation, release)
        for release, names in named
        if names and names <= usable
    ]
    return [release for *_, release in sorted(ranked, key=lambda each: each[:2])]


def failed_revisions(recorded: Iterable[StoredRevision]) -> set[str]:
    """Return the revisions that could not be started, or whose first answers were all errors."""
    return {revision.name for revision in recorded if revision.failed or revision.verification == "failing"}


def with_failed_revisions(releases: Sequence[Release], recorded: Iterable[StoredRevision]) -> Sequence[Release]:
    """Return the releases with their failed revisions in `failed`."""
    failed = failed_revisions(recorded)
    if not failed:
        return releases
    return [replace(release, failed=tuple(sorted(failed & _revision_names(release)))) for release in releases]


def _revision_names(release: Release) -> set[str]:
    return {name for _, name, _ in revisions_of(release.manifests)}


def _rank(revision: StoredRevision) -> int:
    """Return how far a revision came. Servers other than ours do not say whether they answered: ready is enough."""
    if not revision.first_ready_at:
        return NEVER_READY
    return READY_ONCE if revision.verification == "unverified" else ANSWERED

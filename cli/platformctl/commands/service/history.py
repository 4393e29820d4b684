"""`platformctl history`: the releases of a service, what each changed, and which of them serves."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from pilotlight.release import history as release_history
from pilotlight.release.document_changes import changed_fields
from platformctl import output, targets

if TYPE_CHECKING:
    from pilotlight.targets.target import Release, ServiceStatus

HEADING: Final = ("GENERATION", "DEPLOYED", "BY", "REASON", "REVISION", "TRAFFIC", "CHANGE")


@click.command()
@targets.name_argument()
@targets.options
@output.formats("table", "json", "yaml", "wide")
def history(service_options: targets.ServiceOptions, name: str) -> None:
    """List the releases of a service, newest first: who deployed each, what it changed, and which serves.

    `platformctl rollback NAME --to GENERATION` deploys one of them again. `-o wide` shows every changed field.

    Example: platformctl history iris
    """
    target, key = service_options.connect_read_only(), service_options.key(name)
    releases, status = release_history.releases(target, key), target.status(key)
    failed = release_history.failed_revisions(target.events(key, follow=False))
    rows = [*release_rows(releases, status, failed)]
    wide = output.chosen() == "wide"
    output.data({"releases": rows}, output.columns([HEADING, *(_cells(row, wide) for row in rows)], indent=""))


def release_rows(
    releases: "Sequence[Release]", status: "ServiceStatus", failed: set[str]
) -> "Iterator[dict[str, Any]]":
    """Yield a document for each release; a revision's traffic is shown at the newest release that has it.

    One that never became ready serves nothing, even if all traffic is assigned to it.
    """
    never = failed.union(*(each.failed for each in releases))
    dead = {each.name for each in status.revisions if each.model_state == "FailedToLoad" and not each.ready} & never
    traffic = {each.name: each.percent for each in status.revisions if each.percent and each.name not in dead}
    for index, release in enumerate(releases):
        revisions = sorted(release_history.revisions(release))
        before = releases[index + 1] if index + 1 < len(releases) else None
        yield {
            "generation": release.generation, "deployed_at": release.at, "deployed_by": release.by,
            "reason": release.note or "deploy", "revisions": revisions,
            "percent": max((traffic.pop(each, 0) for each in revisions), default=0),
            "failed": bool(failed & {*revisions} or release.failed),
            "first": before is None and release.generation == 1,
            "changes": [each._asdict() | {"text": str(each)} for each in changed_fields(before, release)],
        }  # fmt: skip


def _cells(row: dict[str, Any], wide: bool) -> tuple[str, ...]:
    changes = [each["text"] for each in row["changes"]]
    change = "; ".join(changes if wide else changes[:1]) or ("first deploy" if row["first"] else "-")
    more = f"; {len(changes) - 1} more" if len(changes) > 1 and not wide else ""
    traffic = f"{row['percent']} %" if row["percent"] else "failed" if row["failed"] else "-"
    names = ", ".join(row["revisions"]) or "-"
    deployed = row["deployed_at"], row["deployed_by"] or "-", row["reason"]
    return str(row["generation"]), *deployed, names, traffic, change + more

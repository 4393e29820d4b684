"""`platformctl diff`: what would change if documents were deployed, or rendered over manifests that exist in files."""

from typing import TYPE_CHECKING, Any

import click

from pilotlight import releasing
from pilotlight.errors import UsageError
from platformctl import documents, manifest_files, output, targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.manifests import Change, Manifest
    from pilotlight.plan.model import Plan


@click.command()
@documents.options
@click.option("--against", multiple=True, metavar="FILE", help="Manifests: file, directory or -; repeatable.")
@targets.target_option
@output.formats("table", "json")
def diff(given: documents.Given, against: tuple[str, ...], target: str) -> int:
    """Compare what would be rendered with what runs, or with manifests in files. Ends with 1 where they differ.

    Example: platformctl diff -f service.yaml
    """
    from pilotlight import manifests

    changes = manifests.diff(*(with_files(given, against) if against else with_target(given, target)))
    output.data([told(change) for change in changes], [output.diff_coloured(line) for c in changes for line in c.lines])
    output.note(summary(changes))
    return 1 if changes else 0


def with_files(given: documents.Given, against: tuple[str, ...]) -> "tuple[list[Manifest], list[Manifest]]":
    """(What is there, what would be.)"""
    planned = given.plan()
    new = planned.manifests()
    old, others = belonging(manifest_files.manifests(against), new, planned.plans)
    if others:
        output.note(f"not compared, of no service here: {', '.join(f'{m.kind} {m.name}' for m in others)}")
    return old, new


def with_target(given: documents.Given, target: str) -> "tuple[list[Manifest], list[Manifest]]":
    """The same where the target says what is there, and plans stand beside that."""
    from platformctl.commands.deploy import of_files

    if given.current:
        raise UsageError("--current and a target both say what runs", "leave --current out, or give --against FILE")
    where = targets.At(target, "").glance()
    prepared, warnings = releasing.prepare(of_files(given, where), where)
    documents.warn(warnings, given.strict)
    return [m for one in prepared for m in one.before], [m for one in prepared for m in one.manifests]


def belonging(
    old: "Sequence[Manifest]", new: "Sequence[Manifest]", plans: "Sequence[Plan]"
) -> "tuple[list[Manifest], list[Manifest]]":
    """Objects of these services, and the rest: a file may hold more than we were asked about."""
    from pilotlight.names import LABEL_SERVICE

    keys = {manifest.key for manifest in new}
    services = {(plan.namespace, plan.name) for plan in plans}

    def ours(manifest: "Manifest") -> bool:
        label = manifest_files.labels(manifest.document).get(LABEL_SERVICE)
        return manifest.key in keys or (manifest.namespace, label) in services

    return [m for m in old if ours(m)], [m for m in old if not ours(m)]


def told(change: "Change") -> dict[str, Any]:
    group, kind, namespace, name = change.key
    return {
        "change": change.kind, "group": group, "kind": kind, "namespace": namespace, "name": name,
        "diff": list(change.lines),
    }  # fmt: skip


def summary(changes: "Sequence[Change]") -> str:
    counts = {kind: sum(change.kind == kind for change in changes) for kind in ("added", "changed", "removed")}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "no difference"

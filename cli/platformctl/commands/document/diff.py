"""`platformctl diff`: differences between rendered documents and a target or manifest files."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pilotlight.errors import UsageError
from pilotlight.k8s import manifest as k8s_manifest
from pilotlight.k8s.names import LABEL_SERVICE
from pilotlight.release import apply
from pilotlight.release.document_changes import ServiceChange, field_lines, service_changes
from platformctl import manifest_files, options, output, targets
from platformctl.services import rollout, status_views
from platformctl.services.model_pins import note_changed_models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.k8s.manifest import Change, Manifest
    from pilotlight.plan.types import Plan
    from pilotlight.release.apply import PreparedRelease


@click.command()
@options.document_options
@click.option(
    "--against", multiple=True, type=click.Path(), metavar="FILE", help="Manifests: file, directory or -; repeatable."
)
@click.option("--manifests", is_flag=True, help="Show the changed lines of the rendered manifests too.")
@targets.target_option
@output.formats("table", "json")
def diff(document_options: options.DocumentOptions, against: tuple[str, ...], manifests: bool) -> int:
    """Compare documents with what runs, or with manifests in files. Exit code 1: they differ.

    Against a target, it shows the changed fields of the document first, then the objects that change with them.

    Example: platformctl diff -f service.yaml
    """
    from pilotlight.release.model_pins import changed_models

    fields: list[ServiceChange] = []
    if against:
        old, new = compare_files(document_options, against)
    else:
        prepared, fields = compare_target(document_options)
        old = [each for one in prepared for each in one.live_manifests]
        new = [each for one in prepared for each in one.manifests]
    changes, models = k8s_manifest.diff(old, new), changed_models(old, new)
    objects = [status_views.change_document(change, models.get(change.key, {})) for change in changes]
    whole = manifests or not fields  # what changed without the document is visible in the manifests only
    output.data([*map(document_change, fields), *objects], [*field_lines(fields), *manifest_lines(changes, whole)])
    note_changed_models(models if not fields else {})
    counts = {kind: sum(change.kind == kind for change in changes) for kind in ("added", "changed", "removed")}
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    summary = summary or ("no manifest changes" if fields else "no difference")
    output.note(summary if whole or not changes else f"{summary}; --manifests shows their lines")
    return 1 if changes or fields else 0


def document_change(change: ServiceChange) -> dict[str, Any]:
    """Return a changed document as `-o json` prints it: an entry like those of manifests, with its fields."""
    (namespace, name), lines = change.key, [str(each) for each in change.fields]
    return {
        "change": "changed" if change.fields else "added", "group": "", "kind": "InferenceService",
        "namespace": namespace, "name": name, "diff": lines, "fields": [each._asdict() for each in change.fields],
    }  # fmt: skip


def manifest_lines(changes: "Sequence[Change]", whole: bool) -> list[str]:
    """Return the changed lines of the manifests, or one line for each object."""
    if whole:
        return [output.diff_coloured(line) for change in changes for line in change.lines]
    rows = [
        (change.kind, f"{kind} {namespace}/{name}") for change in changes for _, kind, namespace, name in [change.key]
    ]
    return ["manifests:", *output.columns(rows)] if rows else []


def compare_files(
    document_options: options.DocumentOptions, against: tuple[str, ...]
) -> "tuple[list[Manifest], list[Manifest]]":
    """Return the manifests of the files that belong to the services, and the rendered ones."""
    planned = replace(document_options, target=targets.CLUSTER).plan()
    new = planned.manifests()
    old, others = split_by_service(manifest_files.manifests(against), new, planned.plans)
    if others:
        output.note(f"not compared, of no service here: {', '.join(f'{m.kind} {m.name}' for m in others)}")
    return old, new


def compare_target(document_options: options.DocumentOptions) -> "tuple[list[PreparedRelease], list[ServiceChange]]":
    """Return the releases planned against what runs, and the documents that changed."""
    if document_options.current:
        raise UsageError("--current and a target both say what runs", "leave --current out, or give --against FILE")
    connected = targets.ServiceOptions(document_options.target or targets.LOCAL, "").connect_if_running()
    prepared, warnings = apply.prepare(rollout.request_from_files(document_options, connected, "compare"), connected)
    options.warn(warnings, document_options.strict)
    return prepared, service_changes(prepared, connected)


def split_by_service(
    old: "Sequence[Manifest]", new: "Sequence[Manifest]", plans: "Sequence[Plan]"
) -> "tuple[list[Manifest], list[Manifest]]":
    """Split manifests into those of these services and the rest."""
    keys = {manifest.key for manifest in new}
    services = {(plan.namespace, plan.name) for plan in plans}

    def ours(manifest: "Manifest") -> bool:
        label = manifest_files.labels(manifest.document).get(LABEL_SERVICE)
        return manifest.key in keys or (manifest.namespace, label) in services

    return [m for m in old if ours(m)], [m for m in old if not ours(m)]

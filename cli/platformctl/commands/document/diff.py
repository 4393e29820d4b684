"""`platformctl diff`: differences between rendered documents and a target or manifest files."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pilotlight.errors import UsageError
from pilotlight.k8s import manifest as k8s_manifest
from pilotlight.k8s.names import LABEL_SERVICE
from pilotlight.release import apply
from platformctl import manifest_files, options, output, targets
from platformctl.services import rollout, status_views
from platformctl.services.model_pins import changed_models, note_changed_models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.k8s.manifest import Manifest
    from pilotlight.plan.types import Plan


@click.command()
@options.document_options
@click.option("--against", multiple=True, metavar="FILE", help="Manifests: file, directory or -; repeatable.")
@targets.target_option
@output.formats("table", "json")
def diff(document_options: options.DocumentOptions, against: tuple[str, ...]) -> int:
    """Compare what would be rendered with what runs, or with manifests in files. Ends with 1 where they differ.

    Example: platformctl diff -f service.yaml
    """
    old, new = compare_files(document_options, against) if against else compare_target(document_options)
    changes, models = k8s_manifest.diff(old, new), changed_models(old, new)
    lines = [output.diff_coloured(line) for change in changes for line in change.lines]
    output.data([status_views.change_document(change, models.get(change.key, {})) for change in changes], lines)
    note_changed_models(models)
    counts = {kind: sum(change.kind == kind for change in changes) for kind in ("added", "changed", "removed")}
    output.note(", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "no difference")
    return 1 if changes else 0


def compare_files(
    document_options: options.DocumentOptions, against: tuple[str, ...]
) -> "tuple[list[Manifest], list[Manifest]]":
    """Return the manifests of the files that belong to the services, and the rendered ones."""
    planned = replace(document_options, target=None).plan()
    new = planned.manifests()
    old, others = split_by_service(manifest_files.manifests(against), new, planned.plans)
    if others:
        output.note(f"not compared, of no service here: {', '.join(f'{m.kind} {m.name}' for m in others)}")
    return old, new


def compare_target(document_options: options.DocumentOptions) -> "tuple[list[Manifest], list[Manifest]]":
    """Return the live manifests of the target, and those planned against them."""
    if document_options.current:
        raise UsageError("--current and a target both say what runs", "leave --current out, or give --against FILE")
    connected = targets.ServiceOptions(document_options.target or targets.LOCAL, "").connect_if_running()
    prepared, warnings = apply.prepare(rollout.request_from_files(document_options, connected, "compare"), connected)
    options.warn(warnings, document_options.strict)
    return [m for one in prepared for m in one.live_manifests], [m for one in prepared for m in one.manifests]


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

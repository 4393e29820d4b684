"""`platformctl lint`: dangerous settings in manifests. Services are linted as their rendered objects."""

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotlight.lint import lint as judge
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.render import render
from pilotlight.spec.load_documents import COMPANION_KINDS, KNOWN_KINDS
from platformctl import manifest_files, options, output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pilotlight.lint import Finding
    from pilotlight.release.plan_and_render import Planned
    from pilotlight.spec.yaml_nodes import Node


@click.command()
@options.REQUIRED_FILES
@options.ENV
@options.CATALOG
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings too.")
@click.option("--fix", "with_fix", is_flag=True, help="Print a fix with each finding.")
@output.formats("table", "json")
def lint(files: tuple[str, ...], env: bool, catalog: tuple[str, ...], strict: bool, with_fix: bool) -> int:
    """Find dangerous settings in ScaledObjects, Knative Services and workloads. Exit code 1: there are errors.

    Example: platformctl lint -f manifests/ --fix
    """
    nodes = manifest_files.nodes(files)
    if not nodes:
        raise click.UsageError(f"{', '.join(files)}: no object to lint")
    planned = plan_services(nodes, catalog, os.environ if env else None)
    rendered = [each.document for plan in (planned.plans if planned else ()) for each in render(plan)]
    findings = judge([*nodes, *rendered], model_bytes=model_bytes(planned) if planned else {})
    output.data([finding.as_json() for finding in findings], [line for f in findings for line in lines(f, with_fix)])
    counts = Counter(finding.severity for finding in findings)
    summary = ", ".join(f"{severity}: {count}" for severity, count in counts.items())
    output.note(f"objects: {len(nodes) + len(rendered)}, {summary or 'no findings'}")
    return 1 if counts["error"] or (strict and counts["warning"]) else 0


def plan_services(
    nodes: "Sequence[Node]", catalog: "Sequence[str]", environ: "Mapping[str, str] | None"
) -> "Planned | None":
    """Plan the services of files that hold only supported kinds; others get a note to render them first."""
    kinds: dict[str, set[str]] = {}
    for node in nodes:
        kinds.setdefault(node.location.file, set()).add(node.text("kind"))
    services = {file for file, names in kinds.items() if "InferenceService" in names}
    ours = {*KNOWN_KINDS, *COMPANION_KINDS}
    readable = [
        file for file, names in kinds.items() if Path(file).exists() and names <= ours and names & {*KNOWN_KINDS}
    ]
    for file in sorted(services - {*readable}):
        output.note(f"{file}: the InferenceServices in it are not linted; render them: platformctl render -f FILE")
    manifest_files.check_exist(catalog)
    return plan_all(Sources(readable, catalog, environ=environ)) if services & {*readable} else None


def model_bytes(planned: "Planned") -> dict[str, int]:
    """Return what a pod loads of its model by workload, if known: memory is judged against it."""
    workloads = [work for plan in planned.plans for work in plan.workloads if work.model_bytes]
    return {work.name: work.model_bytes // work.group_size for work in workloads}


def lines(finding: "Finding", with_fix: bool) -> list[str]:
    """Return the finding, prefixed by its object if it has no line number; with --fix the snippet below it."""
    where = "" if finding.location.line else f"{finding.object}: "
    first = where + output.severity_coloured(str(finding), finding.severity)
    return [first, *(f"    {line}" for line in finding.fix.splitlines())] if with_fix else [first]

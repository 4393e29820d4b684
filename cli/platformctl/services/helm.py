"""Helm with our chart and a plan's values, for `render --with helm` and `deploy --with helm`.

Helm owns what it installs (see `pilotlight.targets.kubernetes.apply`); waiting and output stay the same.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.manifest import Manifest, in_apply_order
from pilotlight.render import values_of
from pilotlight.render.jinja_templates import folder
from pilotlight.spec.problems import Problems
from pilotlight.spec.yaml_nodes import parse
from pilotlight.targets.target import ServiceStatus
from platformctl.targets import context

if TYPE_CHECKING:
    from pilotlight.plan.types import Plan
    from pilotlight.release.apply import PreparedRelease, ReleaseRequest
    from pilotlight.release.plan_and_render import Planned
    from pilotlight.targets.target import Target

# Without a cluster helm checks a chart's kubeVersion against the version it was built for, which may be old.
KUBERNETES: Final = "1.34.0"
TIMEOUT_S: Final = 300  # killing helm midway leaves a release that cannot be upgraded
FOREIGN: Final = "invalid ownership metadata"


def render(planned: "Planned") -> "list[Manifest]":
    """Return the same as `planned.manifests()`, rendered by helm; companions are in no chart and stay as they are."""
    return [*in_apply_order(planned.companions), *(manifest for plan in planned.plans for manifest in template(plan))]


def template(plan: "Plan") -> "list[Manifest]":
    """Return what `helm install` would send for the service, in apply order, without the chart's tests."""
    flags = ("--namespace", plan.namespace, "--kube-version", KUBERNETES, "--skip-tests", "--values", "-")
    text = _run(("template", plan.name, str(chart()), *flags), json.dumps(values_of(plan)))
    return in_apply_order(Manifest(node.plain()) for node in parse(text, "helm template", Problems()))


def apply(
    request: "ReleaseRequest", prepared: "Sequence[PreparedRelease]", target: "Target", *, dry_run: bool = False
) -> "list[tuple[PreparedRelease, ServiceStatus]]":
    """Apply like `release.apply.apply`, by `helm upgrade --install` with one Helm release per service."""
    if target.name != "kubernetes":
        raise UsageError(f"--with helm needs a cluster, and the target is {target.name}", "add --target kubernetes")
    # Helm counts its own revisions, so our generation does not change.
    uncounted = [replace(one, release=structs.replace(one.release, expected=None)) for one in prepared]
    return [(each, _upgrade(request, one, target, dry_run)) for each, one in zip(uncounted, prepared, strict=True)]


def _upgrade(request: "ReleaseRequest", one: "PreparedRelease", target: "Target", dry_run: bool) -> ServiceStatus:
    flags = ["--kube-context", context()] if context() else []
    # Created only if a document declares it.
    if any(each.kind == "Namespace" and each.name == one.plan.namespace for each in request.documents.companions):
        flags.append("--create-namespace")
    if dry_run:
        flags.append("--dry-run=server")
    command = ("upgrade", one.plan.name, str(chart()), "--install", "--namespace", one.plan.namespace)
    _run((*command, *flags, "--values", "-"), json.dumps(values(one)))
    return ServiceStatus(*one.key, 0, "Progressing", "", target=target.name) if dry_run else target.status(one.key)


def values(one: "PreparedRelease") -> dict[str, Any]:
    """Return the plan's values with the document's companions, so that the Helm release is complete."""
    from pilotlight.render import render, values_of

    chart_values = values_of(one.plan)
    planned = {manifest.key for manifest in render(one.plan)}
    companions = [each for each in one.release.manifests if Manifest(each).key not in planned]
    return {**chart_values, "objects": [*companions, *chart_values["objects"]]}


def chart() -> Path:
    """Return helm/inference-service of the installed package, else of the checkout."""
    return folder("helm") / "inference-service"


def _run(arguments: tuple[str, ...], values: str) -> str:
    program = shutil.which("helm")
    if program is None:
        hint = "install helm 3 (https://helm.sh/docs/intro/install), or leave --with helm out: the objects are the same"
        raise PlatformError("helm is not on the PATH", hint)
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and every word is ours or a checked name
            [program, *arguments], input=values, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise PlatformError(f"helm {arguments[0]} did not end within {TIMEOUT_S} s") from None
    if done.returncode:
        message = done.stderr.strip() or done.stdout.strip()
        # Helm does not adopt objects of other owners.
        hint = f"leave --with helm out, or first: platformctl delete {arguments[1]}" if FOREIGN in message else ""
        raise PlatformError(f"helm {arguments[0]} failed: {message}", hint)
    return done.stdout

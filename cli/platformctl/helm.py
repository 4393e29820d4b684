"""The real helm, run on our chart with the values of a plan: `render --with helm`, `deploy --with helm`.

What it installs it owns, in the sense of `pilotlight.targets.kubernetes.owner`; waiting and telling are as ever.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import NotFound, PlatformError, UsageError

if TYPE_CHECKING:
    from pilotlight.deploy import Planned
    from pilotlight.manifests import Manifest
    from pilotlight.plan.model import Plan
    from pilotlight.releasing import Prepared, Wanted
    from pilotlight.targets.target import ServiceStatus, Target

# Without a cluster helm asks charts to fit the version that it was built for, which may be years old.
KUBERNETES: Final = "1.34.0"
TIMEOUT_S: Final = 300  # helm that is ended in the middle leaves a release that nobody can upgrade
FOREIGN: Final = "invalid ownership metadata"


def rendered(planned: "Planned") -> "list[Manifest]":
    """The same as `planned.manifests()`, by helm; objects beside the services are in no chart and stay as they are."""
    from pilotlight.manifests import in_order

    return [*in_order(planned.companions), *(manifest for plan in planned.plans for manifest in release(plan))]


def release(plan: "Plan") -> "list[Manifest]":
    """What `helm install` would send for the service, in the order of applying; the chart's own tests are left out."""
    from pilotlight.manifests import Manifest, in_order
    from pilotlight.render import values_of
    from pilotlight.spec.nodes import parse
    from pilotlight.spec.problems import Problems

    flags = ("--namespace", plan.namespace, "--kube-version", KUBERNETES, "--skip-tests", "--values", "-")
    text = _run(("template", plan.name, str(chart()), *flags), json.dumps(values_of(plan)))
    return in_order(Manifest(node.plain()) for node in parse(text, "helm template", Problems()))


def applied(
    wanted: "Wanted", prepared: "Sequence[Prepared]", target: "Target", *, dry_run: bool = False
) -> "list[tuple[Prepared, ServiceStatus]]":
    """As `releasing.apply`, by `helm upgrade --install`: each service is a release of its own name."""
    if target.name != "kubernetes":
        raise UsageError(f"--with helm needs a cluster, and the target is {target.name}", "add --target kubernetes")
    return [(_uncounted(one), _upgraded(wanted, one, target, dry_run)) for one in prepared]


def _uncounted(one: "Prepared") -> "Prepared":
    """Helm counts its own revisions: the generation that we know stays, whatever was changed."""
    from dataclasses import replace

    from msgspec import structs

    return replace(one, release=structs.replace(one.release, expected=None))


def _upgraded(wanted: "Wanted", one: "Prepared", target: "Target", dry_run: bool) -> "ServiceStatus":
    from pilotlight.targets.target import ServiceStatus

    flags = [*_context(), *_new_namespace(wanted, one), *(["--dry-run=server"] if dry_run else [])]
    command = ("upgrade", one.plan.name, str(chart()), "--install", "--namespace", one.plan.namespace)
    _run((*command, *flags, "--values", "-"), json.dumps(values(one)))
    return ServiceStatus(*one.key, 0, "Progressing", "") if dry_run else target.status(one.key)


def values(one: "Prepared") -> dict[str, Any]:
    """Those of the plan. What came beside the document goes along, so that the release is whole."""
    from pilotlight.manifests import Manifest
    from pilotlight.render import render, values_of

    made = values_of(one.plan)
    planned = {manifest.key for manifest in render(one.plan)}
    beside = [each for each in one.release.manifests if Manifest(each).key not in planned]
    return {**made, "objects": [*beside, *made["objects"]]}


def _new_namespace(wanted: "Wanted", one: "Prepared") -> list[str]:
    """Helm makes it only where a document asks for it."""
    names = {each.name for each in wanted.documents.companions if each.kind == "Namespace"}
    return ["--create-namespace"] if one.plan.namespace in names else []


def _context() -> list[str]:
    from platformctl.targets import context

    return ["--kube-context", context()] if context() else []


def chart() -> Path:
    """helm/inference-service: in the installed package, else in the checkout."""
    from pilotlight.render.templates import folder

    return folder("helm") / "inference-service"


def _run(arguments: tuple[str, ...], values: str) -> str:
    program = shutil.which("helm")
    if program is None:
        raise NotFound("helm is not on the PATH", "install it, or leave --with helm out: the objects are the same")
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and every word is ours or a checked name
            [program, *arguments], input=values, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise PlatformError(f"helm {arguments[0]} did not end within {TIMEOUT_S} s") from None
    if done.returncode:
        raise _failed(arguments, done.stderr.strip() or done.stdout.strip())
    return done.stdout


def _failed(arguments: tuple[str, ...], said: str) -> PlatformError:
    """Helm does not take over what somebody else has made: then that must be given up first, or gone on with."""
    hint = f"leave --with helm out, or first: platformctl delete {arguments[1]}" if FOREIGN in said else ""
    return PlatformError(f"helm {arguments[0]} failed: {said}", hint)

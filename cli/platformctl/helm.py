"""The real helm, run on our chart with the values of a plan: `render --with helm`."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pilotlight.errors import NotFound, PlatformError

if TYPE_CHECKING:
    from pilotlight.deploy import Planned
    from pilotlight.manifests import Manifest
    from pilotlight.plan.model import Plan

# Without a cluster helm asks charts to fit the version that it was built for, which may be years old.
KUBERNETES: Final = "1.34.0"
TIMEOUT_S: Final = 60


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
        raise PlatformError(f"helm {arguments[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout

"""The real helm: the one on the PATH, or one built from its pinned Go module and kept in the cache.

`python -m tests.judges.helm CHART…` lints charts, with each of their ci/ cases: `make charts`.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from tests.judges.gomodules import Unavailable, program, say

# The newest that builds with Go 1.25.
VERSION: Final = "v3.20.2"
# A helm built from its module believes in Kubernetes 1.20 unless it is told otherwise.
CLUSTER: Final = ("--kube-version", "1.34.4")


class HelmFailed(Exception):
    """What helm said on stderr."""


@cache
def helm() -> str:
    """Path of a helm 3; the first call on a machine without one builds it, which takes some minutes."""
    found = shutil.which("helm")
    if found and _run([found, "version", "--short"]).startswith("v3."):
        return found
    return program("helm.sh/helm/v3/cmd/helm", VERSION)


def template(chart: Path, name: str, *flags: str, namespace: str = "default") -> list[dict[str, Any]]:
    """The objects of a release, as `helm install` would send them. `lookup` finds nothing, as there is no cluster."""
    return documents(_run([helm(), "template", name, str(chart), "--namespace", namespace, *CLUSTER, *flags]))


def lint(chart: Path, *flags: str) -> str:
    return _run([helm(), "lint", "--strict", str(chart), *CLUSTER, *flags])


def lint_all(charts: Sequence[Path]) -> None:
    for chart in charts:
        for case in sorted((chart / "ci").glob("*-values.yaml")):
            lint(chart, "-f", str(case))
        say(lint(chart).strip())


def documents(text: str) -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, Loader=loader) if document]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise HelmFailed(f"{' '.join(command[1:])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


if __name__ == "__main__":
    try:
        lint_all([Path(chart) for chart in sys.argv[1:]])
    except (HelmFailed, Unavailable) as reason:
        sys.exit(str(reason))

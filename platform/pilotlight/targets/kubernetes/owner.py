"""Ownership of a service's objects: a service installed by Helm is changed by Helm only. Pure.

Helm labels what it installs and rejects other objects; we do the same the other way round.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.manifests import Manifest

RELEASE: Final = "meta.helm.sh/release-name"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
CHART: Final = "helm/inference-service"
# Equivalent commands; {at} is the release with its namespace.
INSTEAD: Final[Mapping[str, str]] = {
    "deploy": "platformctl deploy -f FILE --with helm, or: platformctl values -f FILE | helm upgrade {at} {chart} -f -",
    "rollback": "helm rollback {at}",
    "delete": "helm uninstall {at}",
}
UPGRADE: Final = "change the document, then: platformctl values -f FILE | helm upgrade {at} {chart} -f -"


def helm_release(manifests: Iterable[Manifest]) -> str:
    """Return the Helm release of any of these objects; empty: none."""
    for each in manifests:
        metadata = each.document["metadata"]
        release = (metadata.get("annotations") or {}).get(RELEASE)
        if release and (metadata.get("labels") or {}).get(MANAGED_BY) == "Helm":
            return str(release)
    return ""


def check_not_helm(manifests: Iterable[Manifest], namespace: str, name: str, verb: str) -> None:
    """Raise UsageError with the equivalent Helm command if Helm owns the objects."""
    release = helm_release(manifests)
    if release:
        at = f"{release} -n {namespace}"
        instead = INSTEAD.get(verb, UPGRADE).format(at=at, chart=CHART)
        message = f"{verb} would change objects of {namespace}/{name} that the Helm release {release} owns"
        raise UsageError(message, instead)


def check_history_not_helm(manifests: Iterable[Manifest], namespace: str, name: str) -> None:
    """Raise UsageError for a service of Helm, which has its release history."""
    release = helm_release(manifests)
    if release:
        at = f"{release} -n {namespace}"
        message = f"{namespace}/{name} is Helm's, as {release}: its releases are kept there, and it is changed there"
        raise UsageError(message, f"{UPGRADE.format(at=at, chart=CHART)}; back: helm rollback {at}")

"""Who owns a service's objects: whoever installed with Helm goes on with Helm, so that no object has two owners. Pure.

Helm marks what it installs, and refuses to take over what it did not. We do the same the other way round.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.manifests import Manifest

RELEASE: Final = "meta.helm.sh/release-name"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
CHART: Final = "helm/inference-service"
# What to type instead; the release's name and namespace are filled in.
INSTEAD: Final[Mapping[str, str]] = {
    "deploy": "platformctl deploy -f FILE --with helm, or: platformctl values -f FILE | helm upgrade {at} {chart} -f -",
    "rollback": "helm rollback {at}",
    "delete": "helm uninstall {at}",
}
UPGRADE: Final = "change the document, then: platformctl values -f FILE | helm upgrade {at} {chart} -f -"


def owner_of(manifests: Iterable[Manifest]) -> str:
    """The Helm release that any of these objects belongs to; empty: Helm has installed none of them."""
    for each in manifests:
        metadata = each.document["metadata"]
        release = (metadata.get("annotations") or {}).get(RELEASE)
        if release and (metadata.get("labels") or {}).get(MANAGED_BY) == "Helm":
            return str(release)
    return ""


def refuse_helms(manifests: Iterable[Manifest], namespace: str, name: str, verb: str) -> None:
    """Raises UsageError with the line to type instead where a verb would change what Helm has installed."""
    release = owner_of(manifests)
    if release:
        at = f"{release} -n {namespace}"
        instead = INSTEAD.get(verb, UPGRADE).format(at=at, chart=CHART)
        message = f"{verb} would change objects of {namespace}/{name} that the Helm release {release} owns"
        raise UsageError(message, instead)


def point_to_history(manifests: Iterable[Manifest], namespace: str, name: str) -> None:
    """Raises UsageError for a service whose releases Helm keeps: we have none to go back to."""
    release = owner_of(manifests)
    if release:
        at = f"{release} -n {namespace}"
        message = f"{namespace}/{name} is Helm's, as {release}: its releases are kept there, and it is changed there"
        raise UsageError(message, f"{UPGRADE.format(at=at, chart=CHART)}; back: helm rollback {at}")

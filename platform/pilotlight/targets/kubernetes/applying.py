"""Apply of manifests: dry run of all, apply in order, prune of obsolete objects.

Server-side apply tracks the manager of each field: conflicts with other managers are reported field by field, and
nothing is overwritten without `force`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight import names
from pilotlight.errors import NotFound, PlatformError
from pilotlight.manifests import Manifest, in_apply_order
from pilotlight.targets.kubernetes import kinds, rights
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.connection import KubeApiError
from pilotlight.targets.target import Key

Json = Any
Document = Mapping[str, Json]
# Warnings of KEDA on fields that apply at zero only; they are written for a later `scale --min 0`.
EXPECTED: Final = ("PollingInterval is configured but", "CooldownPeriod is configured but")
FORCE_HINT: Final = "--force-conflicts takes them over"


def dry_run(cluster: Cluster, documents: Iterable[Document], *, force: bool) -> list[str]:
    """Apply every object as a dry run and return the warnings. Raises PlatformError with all errors."""
    warnings: list[str] = []
    errors: list[PlatformError] = []
    for manifest in in_apply_order(map(Manifest, documents)):
        try:
            warnings += cluster.apply(manifest.document, force=force, dry_run=True).warnings
        except (KubeApiError, NotFound) as error:
            errors.append(apply_error(manifest, error))
    if errors:
        lines = "\n".join(str(each) for each in errors)
        raise PlatformError(lines, next((each.hint for each in errors if each.hint), ""))
    return [each for each in dict.fromkeys(warnings) if not each.startswith(EXPECTED)]


def apply(cluster: Cluster, documents: Iterable[Document], *, force: bool) -> None:
    for manifest in in_apply_order(map(Manifest, documents)):
        try:
            cluster.apply(manifest.document, force=force)
        except (KubeApiError, NotFound) as error:
            raise apply_error(manifest, error) from error


def apply_error(manifest: Manifest, error: PlatformError) -> PlatformError:
    """Return the error with the object's name, and a line for each field of another manager."""
    what = f"{manifest.kind} {manifest.name}"
    if not isinstance(error, KubeApiError):
        return PlatformError(f"{what}: {error}", error.hint)
    if error.code == 409 and _causes(error):
        lines = [f"{what}: {len(_causes(error))} fields are managed by others", *_conflicts(manifest, error)]
        return PlatformError("\n".join(lines), f"leave them out of the document, or {FORCE_HINT}")
    message = str(error.status.get("message") or f"refused with {error.code}")
    _, denied, reason = message.partition("denied the request: ")  # by a webhook or policy
    return PlatformError(f"{what}: {(reason if denied else message).strip()}", error.hint)


def _causes(error: KubeApiError) -> Sequence[Mapping[str, str]]:
    causes = (error.status.get("details") or {}).get("causes") or ()
    return [each for each in causes if each.get("reason") == "FieldManagerConflict"]


def _conflicts(manifest: Manifest, error: KubeApiError) -> Iterator[str]:
    """Yield lines such as `  .spec.replicas: set by kubectl-edit; the document says 3`."""
    for cause in _causes(error):
        field = str(cause.get("field"))
        manager = str(cause.get("message") or "").partition('"')[2].partition('"')[0] or "somebody else"
        value = _at(manifest.document, field)
        ours = f"; the document says {value}" if value is not None else ""
        yield f"  {field}: set by {manager}{ours}"


def _at(document: Json, field: str) -> Json:
    """Return the value at a path such as `.spec.replicas`; None if the path includes a list."""
    for name in field.strip(".").split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, str | int | bool) else None


def not_owned(cluster: Cluster, key: Key, documents: Iterable[Document]) -> list[str]:
    """Return a sentence for each existing object with a needed name that is not this service's.

    Additional objects of the user do not have our label and are not checked.
    """
    mine = {Manifest(each).key for each in owned(cluster, key)}
    labelled = [each for each in documents if names.LABEL_SERVICE in kinds.labels(each)]
    new = [each for each in map(Manifest, labelled) if each.key not in mine]
    existing = [each for each in new if cluster.get(each.api_version, each.kind, each.namespace, each.name) is not None]
    return [
        f"{each.kind} {each.name} is there already and is not this service's: rename the service" for each in existing
    ]


def owned(cluster: Cluster, key: Key) -> list[dict[str, Json]]:
    """Return objects with the service's label and without a controller, and its ReferenceGrants in other namespaces."""
    namespace, name = key
    objects = [*cluster.list_kinds(kinds.OWNED, namespace, kinds.selector(name)), *_grants(cluster, key)]
    return [each for each in objects if not kinds.is_controlled(each)]


def _grants(cluster: Cluster, key: Key) -> list[dict[str, Json]]:
    """Return the service's ReferenceGrants, which are in the namespaces that its route leads to."""
    namespace, name = key
    everywhere = rights.unless_forbidden(lambda: cluster.list(*kinds.REFERENCE_GRANT, None, kinds.selector(name)), None)
    # Without the permission to list all namespaces, none can have been written there either.
    grants = cluster.list(*kinds.REFERENCE_GRANT, namespace, kinds.selector(name)) if everywhere is None else everywhere
    return [each for each in grants if any(one.get("namespace") == namespace for one in each["spec"].get("from") or ())]


def obsolete(cluster: Cluster, key: Key, documents: Iterable[Document]) -> list[dict[str, Json]]:
    """Return objects of earlier releases that this one does not have."""
    wanted = {Manifest(each).key for each in documents}
    return [each for each in owned(cluster, key) if Manifest(each).key not in wanted]


def delete(cluster: Cluster, documents: Iterable[Document]) -> None:
    """Delete in reverse apply order: routes first, then workloads, then what they need."""
    for manifest in reversed(in_apply_order(map(Manifest, documents))):
        cluster.delete(manifest.document)

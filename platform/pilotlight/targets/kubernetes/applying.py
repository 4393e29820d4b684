"""Manifests into the cluster: checked by its own rules first, applied in order, what is no longer wanted taken away.

Server-side apply under our name keeps the account of fields: whoever else has changed one of ours is told of, field by
field, and nothing is overwritten unless that was asked for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight import names
from pilotlight.errors import NotFound, PlatformError
from pilotlight.manifests import Manifest, in_order
from pilotlight.targets.kubernetes import kinds, rights
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.connection import Refused
from pilotlight.targets.target import Key

Json = Any
Document = Mapping[str, Json]
# KEDA's, on fields that count from zero only: they are written so that `scale --min 0` finds them.
EXPECTED: Final = ("PollingInterval is configured but", "CooldownPeriod is configured but")
TAKE: Final = "--force-conflicts takes them over"


def checked(cluster: Cluster, documents: Iterable[Document], *, force: bool) -> list[str]:
    """The cluster's own judgement of every object, before any is written; its remarks. Raises with all refusals."""
    remarks: list[str] = []
    refused: list[PlatformError] = []
    for manifest in in_order(map(Manifest, documents)):
        try:
            remarks += cluster.apply(manifest.document, force=force, dry_run=True).warnings
        except (Refused, NotFound) as error:
            refused.append(refusal(manifest, error))
    if refused:
        lines = "\n".join(str(each) for each in refused)
        raise PlatformError(lines, next((each.hint for each in refused if each.hint), ""))
    return [each for each in dict.fromkeys(remarks) if not each.startswith(EXPECTED)]


def applied(cluster: Cluster, documents: Iterable[Document], *, force: bool) -> None:
    for manifest in in_order(map(Manifest, documents)):
        try:
            cluster.apply(manifest.document, force=force)
        except (Refused, NotFound) as error:
            raise refusal(manifest, error) from error


def refusal(manifest: Manifest, error: PlatformError) -> PlatformError:
    """In one sentence for an object, or with a line for each field that somebody else manages."""
    what = f"{manifest.kind} {manifest.name}"
    if not isinstance(error, Refused):
        return PlatformError(f"{what}: {error}", error.hint)
    if error.code == 409 and _causes(error):
        lines = [f"{what}: {len(_causes(error))} fields are managed by others", *_conflicts(manifest, error)]
        return PlatformError("\n".join(lines), f"leave them out of the document, or {TAKE}")
    message = str(error.status.get("message") or f"refused with {error.code}")
    return PlatformError(f"{what}: {_plain(message)}", error.hint)


def _causes(error: Refused) -> Sequence[Mapping[str, str]]:
    found = (error.status.get("details") or {}).get("causes") or ()
    return [each for each in found if each.get("reason") == "FieldManagerConflict"]


def _conflicts(manifest: Manifest, error: Refused) -> Iterator[str]:
    """`  .spec.replicas: kubectl-edit has set it; we would set 3`."""
    for cause in _causes(error):
        field = str(cause.get("field"))
        manager = str(cause.get("message") or "").partition('"')[2].partition('"')[0] or "somebody else"
        value = _at(manifest.document, field)
        ours = f"; the document says {value}" if value is not None else ""
        yield f"  {field}: set by {manager}{ours}"


def _at(document: Json, field: str) -> Json:
    """The value at `.spec.replicas`; None where the path goes through a list."""
    for name in field.strip(".").split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, str | int | bool) else None


def _plain(message: str) -> str:
    """Without the machinery's own words around what a webhook or a policy says."""
    _, quoted, told = message.partition("denied the request: ")
    return told.strip() if quoted else message.strip()


def foreign(cluster: Cluster, key: Key, documents: Iterable[Document]) -> list[str]:
    """Objects that are there under a name that we need, and that somebody else has made: one sentence each.

    Objects beside a document carry no label of ours; they are the user's own words, whoever has made them.
    """
    mine = {Manifest(each).key for each in owned(cluster, key)}
    labelled = [each for each in documents if names.LABEL_SERVICE in kinds.labels(each)]
    new = [each for each in map(Manifest, labelled) if each.key not in mine]
    there = [each for each in new if cluster.get(each.api_version, each.kind, each.namespace, each.name) is not None]
    return [f"{each.kind} {each.name} is there already and is not this service's: rename the service" for each in there]


def owned(cluster: Cluster, key: Key) -> list[dict[str, Json]]:
    """Whatever has the service's label and nobody controls, in its namespace; and its grants in others."""
    namespace, name = key
    found = [*cluster.lists(kinds.OWNED, namespace, kinds.selector(name)), *_grants(cluster, key)]
    return [each for each in found if not kinds.is_controlled(each)]


def _grants(cluster: Cluster, key: Key) -> list[dict[str, Json]]:
    """A ReferenceGrant stands where the route leads to, and names the namespace that it comes from."""
    namespace, name = key
    everywhere = rights.allowed(lambda: cluster.list(*kinds.REFERENCE_GRANT, None, kinds.selector(name)), None)
    # Without the right to look into all namespaces none can have been written there either.
    found = cluster.list(*kinds.REFERENCE_GRANT, namespace, kinds.selector(name)) if everywhere is None else everywhere
    return [each for each in found if any(one.get("namespace") == namespace for one in each["spec"].get("from") or ())]


def superfluous(cluster: Cluster, key: Key, kept: Iterable[Document]) -> list[dict[str, Json]]:
    """What an earlier release had and this one has not."""
    wanted = {Manifest(each).key for each in kept}
    return [each for each in owned(cluster, key) if Manifest(each).key not in wanted]


def removed(cluster: Cluster, documents: Iterable[Document]) -> None:
    """In the order opposite to applying: requests are led away first, pods end, then what they needed."""
    for manifest in reversed(in_order(map(Manifest, documents))):
        cluster.delete(manifest.document)

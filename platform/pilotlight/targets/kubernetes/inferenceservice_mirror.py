"""InferenceService object of a service, for kubectl: the document with a status like that of OME and KServe.

Written by `deploy`, its status updated by `status`; only if the CRD is ours (schemas, installed by the platform chart):
another controller would act on the object.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pilotlight.errors import NotFound, UsageError
from pilotlight.k8s import names
from pilotlight.targets.kubernetes.apply import apply
from pilotlight.targets.kubernetes.client import MANAGER, SERVER_APPLY, Cluster, KubeApiError
from pilotlight.targets.kubernetes.kinds import unless_forbidden
from pilotlight.targets.kubernetes.observe.status import PROVEN
from pilotlight.targets.target import Condition, Key, Release, RevisionStatus, ServiceStatus

Json = Any
MODELS: Final = ("engine", "predictor", "decoder")  # component with the model: the first that a service has
KIND: Final = "InferenceService"
GROUPS: Final[Mapping[str, str]] = {"ome.io/v1beta1": "ome", "serving.kserve.io/v1beta1": "kserve"}


def to_status(status: ServiceStatus, before: Mapping[str, Json], now: str, generation: int) -> dict[str, Json]:
    """Return the status. `before` is the object's: unchanged conditions keep their lastTransitionTime."""
    fields: dict[str, Json] = {
        "url": status.url,
        "address": _address(status),
        "deploymentMode": status.mode,
        "observedGeneration": generation,
        "conditions": [_condition(each, before, now) for each in status.conditions],
        "components": {role: _component(status, mine) for role, mine in _by_role(status.revisions).items()},
        "modelStatus": _model(status.revisions),
        **_scale(status),
    }
    return {name: value for name, value in fields.items() if value or value == 0}


def _scale(status: ServiceStatus) -> dict[str, Json]:
    """Return what the subresource /scale shows: pods of the component with the model, and their labels."""
    mine = _first(MODELS, status.revisions)
    if not mine:
        return {}
    labels = {names.LABEL_SERVICE: status.name, "component": mine[0].role}
    selector = ",".join(f"{name}={text}" for name, text in labels.items())
    return {"replicas": sum(each.ready + each.starting for each in mine), "selector": selector}


def _by_role(revisions: Iterable[RevisionStatus]) -> dict[str, list[RevisionStatus]]:
    by_role: dict[str, list[RevisionStatus]] = {}
    for each in revisions:
        by_role.setdefault(each.role, []).append(each)
    return by_role


def _first(roles: Sequence[str], revisions: Sequence[RevisionStatus]) -> list[RevisionStatus]:
    """Return the revisions of the first of these roles that exists, newest first."""
    by_role = _by_role(revisions)
    return next((by_role[role] for role in roles if role in by_role), [])


def _internal_url(workload: str, namespace: str) -> str:
    return f"http://{workload}.{namespace}.svc.cluster.local"


def _address(status: ServiceStatus) -> dict[str, str]:
    """Return the internal address: the entry workload of a serverless service, else the entry Service."""
    entry = _first(names.ENTRY_ROLES, status.revisions)
    if not entry:
        return {}
    name = entry[0].workload if status.mode == "serverless" else names.entry_service(status.name)
    own = status.urls.get("cluster", "") if status.mode != "serverless" else ""  # with its port
    return {"url": own or _internal_url(name, status.namespace)}


def _condition(condition: Condition, before: Mapping[str, Json], now: str) -> dict[str, Json]:
    known: Mapping[str, Json] = next(
        (each for each in before.get("conditions") or () if each.get("type") == condition.type), {}
    )
    unchanged = known.get("status") == condition.status
    since = condition.since or (known.get("lastTransitionTime") if unchanged else "") or now
    fields = {"type": condition.type, "status": condition.status, "lastTransitionTime": since}
    return fields | {
        name: value for name, value in (("reason", condition.reason), ("message", condition.message)) if value
    }


def _component(status: ServiceStatus, revisions: Sequence[RevisionStatus]) -> dict[str, Json]:
    newest = revisions[0]
    ready = next((each.name for each in revisions if each.model_state in PROVEN), "")
    fields = {
        "url": _internal_url(newest.workload, status.namespace),
        "latestCreatedRevision": newest.name,
        "latestReadyRevision": ready,
        "traffic": [_share(each, newest) for each in revisions if each.percent or each.tags],
    }
    return {name: value for name, value in fields.items() if value}


def _share(revision: RevisionStatus, newest: RevisionStatus) -> dict[str, Json]:
    tagged = {"tag": revision.tags[0], "url": revision.url} if revision.tags else {}
    fields = {"revisionName": revision.name, "percent": revision.percent, "latestRevision": revision is newest}
    return fields | {name: value for name, value in tagged.items() if value}


def _model(revisions: Sequence[RevisionStatus]) -> dict[str, Json]:
    mine = _first(MODELS, revisions)
    if not mine:
        return {}
    target = mine[0]
    active = max(mine, key=lambda each: (each.percent, each.model_state in PROVEN))
    failed = target.model_state == "FailedToLoad"
    states = {"activeModelState": active.model_state, "targetModelState": target.model_state}
    copies = {
        "totalCopies": sum(each.ready for each in mine),
        "failedCopies": max(target.desired - target.ready, 0) if failed else 0,
    }
    transition = "BlockedByFailedLoad" if failed else "UpToDate" if target.model_state in PROVEN else "InProgress"
    fields: dict[str, Json] = {
        "transitionStatus": transition, "modelRevisionStates": states, "modelCopies": copies,
    }  # fmt: skip
    if failed:
        failure = {"reason": "ModelLoadFailed", "modelRevisionName": target.name, "message": target.reason}
        fields["lastFailureInfo"] = {name: value for name, value in failure.items() if value}
    return fields


def save(cluster: Cluster, release: Release, status: ServiceStatus, now: str) -> str:
    """Write the object; return a warning if that is not possible. `now` is UTC, RFC 3339."""
    document = to_object(release.document)
    version = document["apiVersion"]
    if document["kind"] != KIND or cluster.kind(version, KIND) is None:  # an LLMInferenceService has no object
        return ""
    if not is_our_crd(cluster, version):
        return (
            f"{KIND} of {version} belongs to another controller of this cluster, which would act on it: "
            "the service runs without such an object"
        )
    try:
        _write(cluster, cluster.apply(document, force=True).document, status, now)
    except (KubeApiError, NotFound) as error:  # the service runs all the same
        return f"the document is not kept as an object of the cluster: {error}"
    return ""


def update_status(cluster: Cluster, status: ServiceStatus, now: str) -> None:
    """Update the status, if there is an object and this account may write it."""

    def update() -> None:
        for existing in _managed_objects(cluster, (status.namespace, status.name)):
            _write(cluster, existing, status, now)

    unless_forbidden(update, None)


def delete(cluster: Cluster, key: Key) -> None:
    for existing in _managed_objects(cluster, key):
        cluster.delete(existing)


def _reconciled(cluster: Cluster, key: Key) -> Iterator[Mapping[str, Json]]:
    """Yield the object that a controller reconciles, unless it is being deleted or may not be read."""
    for version in GROUPS:
        document = unless_forbidden(partial(cluster.get, version, KIND, *key), None) or {}
        metadata = document.get("metadata") or {}
        if names.FINALIZER in (metadata.get("finalizers") or ()) and "deletionTimestamp" not in metadata:
            yield document


def write_reconciled(cluster: Cluster, release: Release, *, force: bool) -> None:
    """Write the document of a service that a controller reconciles, before its release, so that both agree.

    Raises FieldConflict with the owner of a field, such as Argo CD: it is changed there.
    """
    document = to_object(release.document)
    for existing in _reconciled(cluster, (release.namespace, release.name)):
        if names.ANNOTATION_SIDES in release.document:
            message = f"the controller of the cluster runs the canaries of {release.namespace}/{release.name}"
            raise UsageError(message, "put spec.canary into the document, then: kubectl apply -f FILE")
        if document["apiVersion"] == existing["apiVersion"]:
            apply(cluster, [document], force=force)


def delete_reconciled(cluster: Cluster, key: Key) -> bool:
    """Delete the object that a controller reconciles, which deletes the service; False: there is none."""
    found = list(_reconciled(cluster, key))
    for existing in found:
        cluster.delete(existing)
    return bool(found)


def to_object(document: str) -> dict[str, Json]:
    """Return the document as deployed, with the labels of the service and without our release annotations."""
    import yaml

    plain = yaml.load(document, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe, in C
    metadata = dict(plain["metadata"])
    annotations = {
        k: v for k, v in (metadata.pop("annotations", None) or {}).items() if k not in names.RELEASE_ANNOTATIONS
    }
    owned = names.service_labels(GROUPS.get(plain["apiVersion"], "ome"), metadata["name"])
    return {
        "apiVersion": plain["apiVersion"],
        "kind": plain["kind"],
        "metadata": {
            **metadata,
            "labels": {**(metadata.get("labels") or {}), **owned},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": plain.get("spec") or {},
    }


def is_our_crd(cluster: Cluster, version: str) -> bool:
    """Whether the CRD is ours, by its category: discovery needs no permission, unlike the CRD itself."""
    discovery = cluster.connection.request("GET", f"/apis/{version}").document
    return any(
        each["kind"] == KIND and names.CATEGORY in (each.get("categories") or ()) for each in discovery["resources"]
    )


def is_managed(document: Mapping[str, Json]) -> bool:
    """Whether we wrote the object; one applied by a user is not ours to change."""
    labels = document["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/managed-by") == MANAGER and names.LABEL_SERVICE in labels


def _managed_objects(cluster: Cluster, key: Key) -> Iterator[Mapping[str, Json]]:
    for version in GROUPS:
        document = cluster.get(version, KIND, *key)
        if document is not None and is_managed(document) and is_our_crd(cluster, version):
            yield document


def _write(cluster: Cluster, existing: Mapping[str, Json], status: ServiceStatus, now: str) -> None:
    before = existing.get("status") or {}
    if names.FINALIZER in (existing["metadata"].get("finalizers") or ()):
        return  # the controller writes it
    new_status = to_status(status, before, now, int(existing["metadata"].get("generation", 0)))
    if new_status != before:
        write_status(cluster, existing, new_status)


def write_status(cluster: Cluster, existing: Mapping[str, Json], new_status: Mapping[str, Json]) -> Json:
    """Write the status and return the object; None: there is no such object any more."""
    named = {name: existing["metadata"][name] for name in ("name", "namespace")}
    body = {"apiVersion": existing["apiVersion"], "kind": KIND, "metadata": named, "status": new_status}
    path = cluster.require_kind(existing["apiVersion"], KIND).path(named["namespace"], named["name"], "status")
    try:
        query = {"fieldManager": MANAGER, "force": "true"}
        return cluster.connection.request("PATCH", path, query, body, SERVER_APPLY).document
    except NotFound:
        return None

"""Apply of manifests: dry run of all, server-side apply in order, prune of obsolete objects, applied fields.

Conflicts with other field managers are reported field by field, and nothing is overwritten without `force`. A service
installed by Helm is changed by Helm only: Helm labels what it installs and rejects other objects, and so do we.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import json

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.k8s import names
from pilotlight.k8s.manifest import Manifest, in_apply_order
from pilotlight.k8s.quantities import quantity_or_zero
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.client import MANAGER, Cluster, KubeApiError
from pilotlight.targets.kubernetes.preflight import pod_templates, referenced_objects
from pilotlight.targets.kubernetes.scale_traffic_overrides import KNATIVE, revision_of
from pilotlight.targets.target import Key

Json = Any
Document = Mapping[str, Json]
# Warnings of KEDA on fields that apply at zero only; they are written for a later `scale --min 0`.
EXPECTED: Final = ("PollingInterval is configured but", "CooldownPeriod is configured but")
FORCE_HINT: Final = "--force-conflicts takes ownership"
CREATOR_ANNOTATIONS: Final = ("serving.knative.dev/creator", "serving.knative.dev/lastModifier")
# Who keeps what it wrote by updates: tools that write again what they have, and controllers that own such fields.
OTHER_OWNERS: Final = (
    "argocd", "helm", "flux", "kustomize", "terraform", "kube-controller-manager", "keda", "autoscaler", "controller",
    "webhook",
)  # fmt: skip
APPLIERS: Final = (MANAGER, "helm")  # a service may be installed by either
IDENTITY: Final = ("apiVersion", "kind")
RELEASE: Final = "meta.helm.sh/release-name"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
CHART: Final = "helm/inference-service"
# Equivalent commands; {at} is the release with its namespace.
INSTEAD: Final[Mapping[str, str]] = {
    "deploy": "platformctl deploy -f FILE --with helm, or: platformctl values -f FILE | helm upgrade {at} {chart} -f -",
    "rollback": "helm rollback {at}",
    "delete": "helm uninstall {at}",
}
UPGRADE: Final = "change the manifest, then: platformctl values -f FILE | helm upgrade {at} {chart} -f -"


class FieldConflict(PlatformError):
    """Another manager owns fields of an object."""


class OwnedByHelm(UsageError):
    """Helm installed the service and changes it."""


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
        hint = next((each.hint for each in errors if each.hint), "")
        raise type(errors[0])(lines, hint)
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
        lines = [f"{what}: {len(_causes(error))} fields are managed by other tools", *_conflicts(manifest, error)]
        return FieldConflict("\n".join(lines), f"remove them from the manifest, or {FORCE_HINT}")
    message = str(error.status.get("message") or f"rejected with {error.code}")
    _, denied, reason = message.partition("denied the request: ")  # by a webhook or policy
    return PlatformError(f"{what}: {(reason if denied else message).strip()}", error.hint)


def is_drift(error: KubeApiError) -> bool:
    """Whether a conflict is with changes by hand only, as of `kubectl edit`, which a controller takes back.

    The API server writes `conflict with "NAME" using VERSION` of an update, without `using` of another apply.
    """
    messages = [str(each.get("message") or "") for each in _causes(error)]
    managers = [text.partition('"')[2] for text in messages]
    by_hand = [" using " in text and not text.startswith(OTHER_OWNERS) for text in managers]
    return bool(by_hand) and all(by_hand)


def _causes(error: KubeApiError) -> Sequence[Mapping[str, str]]:
    causes = (error.status.get("details") or {}).get("causes") or ()
    return [each for each in causes if each.get("reason") == "FieldManagerConflict"]


def _conflicts(manifest: Manifest, error: KubeApiError) -> Iterator[str]:
    """Yield lines such as `  .spec.replicas: set by kubectl-edit; the manifest has 3`."""
    for cause in _causes(error):
        field = str(cause.get("field"))
        manager = str(cause.get("message") or "").partition('"')[2].partition('"')[0] or "somebody else"
        value: Json = manifest.document
        for name in field.strip(".").split("."):
            value = value.get(name) if isinstance(value, Mapping) else None  # None: the path includes a list
        shown = isinstance(value, str | int | bool) and manifest.kind != "Secret"
        ours = f"; the manifest has {value}" if shown else ""
        yield f"  {field}: set by {manager}{ours}"


def not_owned(cluster: Cluster, key: Key, documents: Sequence[Document]) -> list[str]:
    """Return a sentence for each existing object with a needed name that is not this service's.

    Additional objects of the user do not have our label and are not checked.
    """
    mine = {Manifest(each).key for each in owned(cluster, key)}
    labelled = [each for each in documents if names.LABEL_SERVICE in kinds.labels(each)]
    new = [each for each in map(Manifest, labelled) if each.key not in mine]
    freed = {Manifest(each).key for each in replacing_knative(cluster, key, documents)}
    existing = [each for each in new if each.key not in freed and _is_taken(cluster, key, each)]
    return [
        f"{each.kind} {each.name} already exists and belongs to something else: rename the service" for each in existing
    ]


def _is_taken(cluster: Cluster, key: Key, manifest: Manifest) -> bool:
    """Whether there is an object of that name which is not this service's."""
    if manifest.kind != "Secret":
        return cluster.get(manifest.api_version, manifest.kind, manifest.namespace, manifest.name) is not None
    try:  # a patch without a change: whoever deploys need not be permitted to read Secrets
        existing = kinds.unless_forbidden(lambda: cluster.merge(manifest.document, {}).document, None)
    except NotFound:
        return False
    return existing is not None and kinds.labels(existing).get(names.LABEL_SERVICE) != key[1]


def check_namespace(key: Key, documents: Iterable[Document], activators: Sequence[str] = ()) -> None:
    """Raise PlatformError for an object outside of the service's namespace.

    Who deploys there may write its stored releases, and must not write elsewhere with the rights of others by them. A
    ReferenceGrant may be in the namespace of an activator: one of these Services, or any if none is given.
    """
    for each in map(Manifest, documents):
        is_grant = (each.api_version, each.kind) == kinds.REFERENCE_GRANT
        leads_to = {str(one.get("name")) for one in each.document["spec"].get("to") or [{}]} if is_grant else set[str]()
        is_activator = is_grant and (not activators or leads_to <= {*activators})
        if each.document["metadata"].get("namespace") != key[0] and not is_activator:
            message = f"{'/'.join(key)}: its release has {each.kind} {each.name} outside of its namespace"
            raise PlatformError(message, "it was changed manually; delete the service and deploy it again")


def replacing_knative(cluster: Cluster, key: Key, documents: Sequence[Document]) -> list[Document]:
    """Return the Services whose names Knative has for this service, which leaves it: its objects must go before."""
    leaving = {each["metadata"]["name"] for each in leaving_knative(cluster, key, documents)}
    services = [each for each in documents if (each["apiVersion"], each["kind"]) == ("v1", "Service")]
    return [each for each in services if each["metadata"]["name"] in leaving]


def leaving_knative(cluster: Cluster, key: Key, documents: Sequence[Document]) -> list[dict[str, Json]]:
    """Return the objects of Knative that a service leaves."""
    if any(map(in_knative_group, documents)):
        return []
    return [each for each in owned(cluster, key) if in_knative_group(each)]


def in_knative_group(document: Document) -> bool:
    """Whether an object, or an owner reference, is of Knative Serving's API group."""
    return str(document["apiVersion"]).startswith(KNATIVE)


def owned(cluster: Cluster, key: Key) -> list[dict[str, Json]]:
    """Return objects with the service's label and without a controller, and its ReferenceGrants in other namespaces."""
    namespace, name = key
    selector = kinds.selector(name)
    roles = kinds.unless_forbidden(lambda: cluster.list_kinds(kinds.ROLES, namespace, selector), ())
    objects = [*cluster.list_kinds(kinds.OWNED, namespace, selector), *roles, *_grants(cluster, key)]
    return [each for each in objects if not kinds.is_controlled(each)]


def _grants(cluster: Cluster, key: Key) -> list[dict[str, Json]]:
    """Return the service's ReferenceGrants, which are in the namespaces that its route leads to."""
    namespace, name = key
    everywhere = kinds.unless_forbidden(lambda: cluster.list(*kinds.REFERENCE_GRANT, None, kinds.selector(name)), None)
    # Without the permission to list all namespaces, none can have been written there either.
    grants = cluster.list(*kinds.REFERENCE_GRANT, namespace, kinds.selector(name)) if everywhere is None else everywhere
    return [each for each in grants if any(one.get("namespace") == namespace for one in each["spec"].get("from") or ())]


def obsolete(cluster: Cluster, key: Key, documents: Iterable[Document]) -> list[dict[str, Json]]:
    """Return objects of earlier releases that this one does not have."""
    wanted = {Manifest(each).key for each in documents}
    return [each for each in owned(cluster, key) if Manifest(each).key not in wanted]


def access_secret(key: Key, workloads: Iterable[Document]) -> list[Document]:
    """Return the Secret with the service's access rules, if its pods mount it: it is deleted by name, never listed."""
    name = names.access_secret(key[1])
    volume = {"name": names.ACCESS_VOLUME, "secretName": name}
    for pod in pod_templates(workloads):
        for each in pod.spec.get("volumes") or ():
            if {"name": each["name"], "secretName": (each.get("secret") or {}).get("secretName")} == volume:
                return [{"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": key[0], "name": name}}]
    return []


def own_secret(key: Key, values: Mapping[str, str]) -> Document:
    namespace, name = key
    labels = {names.LABEL_SERVICE: name, MANAGED_BY: "pilotlight"}
    metadata = {"namespace": namespace, "name": name, "labels": labels}
    data = {name: b64encode(value.encode()).decode() for name, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def delete_own_secret(cluster: Cluster, key: Key, manifests: Iterable[Document]) -> None:
    """Delete the service's own Secret, if its pods refer to one of its name; without our label it is the user's."""
    document, reference = own_secret(key, {}), ("Secret", key[1])
    if any(reference in referenced_objects(pod.spec) for pod in pod_templates(manifests)):
        with suppress(NotFound):
            # A patch without a change: whoever deploys need not be permitted to read Secrets.
            existing = cluster.merge(document, {}).document
            if kinds.labels(existing).get(names.LABEL_SERVICE) == key[1]:
                cluster.delete(document)


def delete(cluster: Cluster, documents: Iterable[Document]) -> None:
    """Delete in reverse apply order: routes first, then workloads, then what they need."""
    for manifest in reversed(in_apply_order(map(Manifest, documents))):
        cluster.delete(manifest.document)


def with_live_templates(documents: Iterable[Document], live: Iterable[Document]) -> list[Document]:
    """Return documents to apply: templates of existing revisions, and creator annotations, as they are live.

    Knative's webhook writes both, the defaults of templates under our field manager; it rejects another template with
    the same revision name, and the removal of creators.
    """
    return [_with_creators(_with_template(each, existing), existing) for each, existing in _pairs(documents, live)]


def with_sent_templates(live: Iterable[Document], written: Sequence[Document]) -> list[Document]:
    """Return live documents with the templates of the same revisions as they were written."""
    return [_with_template(each, sent) for each, sent in _pairs(live, written)]


def _pairs(documents: Iterable[Document], others: Iterable[Document]) -> list[tuple[Document, Document | None]]:
    known = {Manifest(each).key: each for each in others}
    return [(each, known.get(Manifest(each).key) if in_knative_group(each) else None) for each in documents]


def _with_template(document: Document, other: Document | None) -> Document:
    if other is None or not revision_of(document) or revision_of(document) != revision_of(other):
        return document
    return {**document, "spec": {**document["spec"], "template": other["spec"]["template"]}}


def _with_creators(document: Document, other: Document | None) -> Document:
    live = (other["metadata"].get("annotations") or {}) if other else {}
    creators = {name: text for name, text in live.items() if name in CREATOR_ANNOTATIONS}
    if not creators:
        return document
    annotations = {**(document["metadata"].get("annotations") or {}), **creators}
    return {**document, "metadata": {**document["metadata"], "annotations": annotations}}


def applied_fields(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return the fields that we applied, by `metadata.managedFields`, with identity and `status`.

    Without defaults of the API server and fields of other managers, a diff shows only changes of meaning.
    """
    metadata = document["metadata"]
    managed = [
        each.get("fieldsV1") or {}
        for each in metadata.get("managedFields") or ()
        if each.get("manager") in APPLIERS and each.get("subresource") in (None, "")
    ]
    owned = _select(document, _merged(managed)) if managed else {}
    named = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
    identity = {name: document[name] for name in IDENTITY}
    own = {name: value for name, value in owned.items() if name not in (*IDENTITY, "metadata", "status")}
    own_metadata = {name: value for name, value in (owned.get("metadata") or {}).items() if name not in named}
    status = {"status": document["status"]} if "status" in document else {}
    return {**identity, "metadata": {**named, **own_metadata}, **own, **status}


def as_shown(live: Mapping[str, Json], applied: Mapping[str, Json], written: Mapping[str, Json]) -> dict[str, Json]:
    """Return the applied fields as written, plus live values of fields that another manager has taken over."""
    return dict(as_written(_with_foreign_changes(applied, live, written), written))


def _with_foreign_changes(applied: Json, live: Json, written: Json) -> Json:
    if not all(isinstance(each, Mapping) for each in (applied, live, written)):
        return applied
    foreign = {name: live[name] for name in written if name in live and name not in applied}
    merged = {name: _with_foreign_changes(value, live.get(name), written.get(name)) for name, value in applied.items()}
    return {**merged, **foreign}


def as_written(live: Json, written: Json, key: str = "") -> Json:
    """Return the value in its written spelling where equal: the server normalizes `1000m` to `1`.

    Items of atomic lists include defaults, which are dropped.
    """
    if isinstance(live, Mapping) and isinstance(written, Mapping):
        inner = key if key in ("requests", "limits") else ""
        return {name: as_written(value, written.get(name), inner or name) for name, value in live.items()}
    if isinstance(live, list) and isinstance(written, list) and len(live) == len(written):
        return [as_written(_without_defaults(one, other), other, key) for one, other in zip(live, written, strict=True)]
    if isinstance(live, str) and isinstance(written, str) and key in ("requests", "limits", "sizeLimit"):
        return written if quantity_or_zero(live) == quantity_or_zero(written) != 0 else live
    return live


def _without_defaults(item: Json, written: Json) -> Json:
    if not isinstance(item, Mapping) or not isinstance(written, Mapping):
        return item
    return {name: value for name, value in item.items() if name in written}


def _merged(managed: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    merged: dict[str, Json] = {}
    for fields in managed:
        for name, inner in fields.items():
            merged[name] = _merged([merged[name], inner]) if name in merged and inner and merged[name] else inner
    return merged


def _select(value: Json, owned: Mapping[str, Json]) -> Json:
    """Select the owned part of a value by fieldsV1: `f:name` a field, `k:{…}`, `v:…`, `i:…` an item, `.` itself."""
    inner = {name: fields for name, fields in owned.items() if name != "."}
    if not inner:
        return value
    if isinstance(value, Mapping):
        fields = {name.removeprefix("f:"): below for name, below in inner.items() if name.startswith("f:")}
        return {name: _select(each, fields[name]) for name, each in value.items() if name in fields}
    if isinstance(value, list):
        return [_select(item, below) for item in value for below in _item_entries(item, inner)]
    return value


def _item_entries(item: Json, owned: Mapping[str, Json]) -> Iterable[Mapping[str, Json]]:
    """Yield the entry for a list item, at most one."""
    for name, below in owned.items():
        kind, _, text = name.partition(":")
        if kind == "k" and isinstance(item, Mapping):
            wanted = json.decode(text)
            if all(item.get(field) == value for field, value in wanted.items()):
                yield below
                return
        elif kind == "v" and json.decode(text) == item:
            yield {}
            return


def helm_release(manifests: Iterable[Manifest]) -> str:
    """Return the Helm release of any of these objects; empty: none."""
    for each in manifests:
        release = (each.document["metadata"].get("annotations") or {}).get(RELEASE)
        if release and kinds.labels(each.document).get(MANAGED_BY) == "Helm":
            return str(release)
    return ""


def check_not_helm(manifests: Iterable[Manifest], namespace: str, name: str, verb: str) -> None:
    """Raise UsageError with the equivalent Helm command if Helm owns the objects."""
    if release := helm_release(manifests):
        message = f"{verb} would change objects of {namespace}/{name} owned by the Helm release {release}"
        raise OwnedByHelm(message, INSTEAD.get(verb, UPGRADE).format(at=f"{release} -n {namespace}", chart=CHART))


def check_history_not_helm(manifests: Iterable[Manifest], namespace: str, name: str) -> None:
    """Raise UsageError for a service of Helm, which has its release history."""
    if release := helm_release(manifests):
        at = f"{release} -n {namespace}"
        message = f"{namespace}/{name} is managed by the Helm release {release}: change it with Helm"
        raise UsageError(message, f"{UPGRADE.format(at=at, chart=CHART)}; back: helm rollback {at}")

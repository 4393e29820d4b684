"""Overrides of `scale` and `traffic`, applied to the manifests of a release. Pure.

An annotation on the workload stores them for the next deploy. Bounds change an autoscaler and restart nothing, except
on Knative: there they are part of a revision, and a new one is created, named after the planned one.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import json

from pilotlight.errors import UsageError
from pilotlight.k8s import names
from pilotlight.k8s.autoscaling_annotations import KNATIVE_AUTOSCALING
from pilotlight.k8s.manifest import canonical_json, route_traffic

Json = Any
Document = Mapping[str, Json]
Overrides = Mapping[str, Mapping[str, Json]]  # by workload
WORKLOADS: Final = ("Deployment", "StatefulSet", "LeaderWorkerSet", "RayCluster")
KNATIVE: Final = "serving.knative.dev/"
BOUNDS: Final = {"minReplicas": f"{KNATIVE_AUTOSCALING}min-scale", "maxReplicas": f"{KNATIVE_AUTOSCALING}max-scale"}


def apply_overrides(manifests: Sequence[Document], overrides: Overrides) -> list[dict[str, Json]]:
    renamed = _new_revisions(manifests, overrides)
    revisions = {revision_of(each): str(each["metadata"]["name"]) for each in manifests if is_workload(each)}
    shares = _weights(overrides, revisions)
    documents = [_overridden(dict(each), overrides, renamed) for each in manifests]
    documents = [_with_traffic_of(each, documents) for each in documents]
    return [_with_shares(each, shares) for each in documents] if shares else documents


def is_knative(document: Document) -> bool:
    return document.get("kind") == "Service" and str(document["apiVersion"]).startswith(KNATIVE)


def is_workload(document: Document) -> bool:
    return is_knative(document) or document.get("kind") in WORKLOADS


def revision_of(document: Document) -> str:
    """Return the revision that a workload describes; empty: none is named."""
    spec = document.get("spec") or {}
    template = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("leaderTemplate") or {}
    metadata = template.get("metadata") or {}
    label = (metadata.get("labels") or {}).get(names.LABEL_REVISION)
    return str((metadata.get("name") if is_knative(document) else label) or "")


def bounds_of(written: Mapping[str, Json]) -> dict[str, int]:
    return {name: int(written[name]) for name in BOUNDS if name in written}


def _new_revisions(manifests: Sequence[Document], overrides: Overrides) -> dict[str, str]:
    """Return the new names of planned Knative revisions with overridden bounds."""
    new_names = {}
    for document in manifests:
        bounds = bounds_of(overrides.get(document["metadata"]["name"]) or {})
        if is_knative(document) and bounds and revision_of(document):
            planned = revision_of(document)
            digest = hashlib.sha256(canonical_json({"of": planned, **bounds}).encode()).hexdigest()[:4]
            new_names[planned] = f"{planned}-{digest}"
    return new_names


def _overridden(document: dict[str, Json], overrides: Overrides, renamed: Mapping[str, str]) -> dict[str, Json]:
    scaled = str(((document.get("spec") or {}).get("scaleTargetRef") or {}).get("name"))
    if scaled in overrides:
        return _with_bounds(document, bounds_of(overrides[scaled]))
    written = overrides.get(document["metadata"]["name"])
    if not written or not is_workload(document):
        return document
    if is_knative(document):
        document = _knative(document, written, renamed)
    elif "replicas" in document["spec"] and bounds_of(written):
        document = _with_spec(document, {"replicas": bounds_of(written).get("minReplicas", 1)})
    return _annotated(document, names.ANNOTATION_OVERRIDES, json.encode(written, order="sorted").decode())


def _with_traffic_of(document: dict[str, Json], documents: Sequence[Document]) -> dict[str, Json]:
    """Return a Knative Route with the split of its Knative Service; others as they are."""
    if document["kind"] != "Route":
        return document
    workload = (document["metadata"].get("labels") or {}).get(names.LABEL_WORKLOAD)
    services = [each for each in documents if is_knative(each) and each["metadata"]["name"] == workload]
    traffic = [route_traffic(each["spec"].get("traffic") or (), str(workload)) for each in services]
    return _with_spec(document, {"traffic": traffic[0]}) if traffic and traffic[0] else document


def _with_bounds(document: dict[str, Json], bounds: Mapping[str, int]) -> dict[str, Json]:
    keda = document["kind"] == "ScaledObject"
    fields = ("minReplicaCount", "maxReplicaCount") if keda else ("minReplicas", "maxReplicas")
    changes = {field: bounds[name] for field, name in zip(fields, BOUNDS, strict=True) if name in bounds}
    bounded = _with_spec(document, changes)
    minimum, maximum = (int(bounded["spec"][field]) for field in fields)
    if minimum > maximum:
        raise UsageError(f"min is {minimum}, must be at most max, which is {maximum}", "set both --min and --max")
    if minimum == 0:
        _check_wakes(bounded)
    return bounded


def _check_wakes(document: Document) -> None:
    """Raise UsageError unless a trigger can wake the service from zero: metrics of its pods are gone by then."""
    name = document["metadata"]["name"]
    if document["kind"] != "ScaledObject":
        raise UsageError(f"{name} is scaled by an HPA, whose minimum is 1", "scale --min 1, or let KEDA scale it")
    if not any(trigger["type"] in ("external-push", "cron") for trigger in document["spec"]["triggers"]):
        message = f"{name} has no trigger that can wake it from zero"
        raise UsageError(message, "set minReplicas: 0 in the manifest to add a request trigger")


def _knative(document: dict[str, Json], written: Mapping[str, Json], renamed: Mapping[str, str]) -> dict[str, Json]:
    planned = revision_of(document)
    revision = renamed.get(planned, planned)
    template = dict(document["spec"]["template"])
    if revision != planned:
        metadata = dict(template["metadata"])
        changes = {BOUNDS[name]: str(value) for name, value in bounds_of(written).items()}
        metadata |= {"name": revision, "annotations": {**(metadata.get("annotations") or {}), **changes}}
        template["metadata"] = metadata
    shares = written.get("traffic") or document["spec"].get("traffic") or ()
    traffic = [_share(share, planned, revision) for share in shares]
    return _with_spec(document, {"template": template, **({"traffic": traffic} if traffic else {})})


def _share(share: Mapping[str, Json], planned: str, revision: str) -> dict[str, Json]:
    """Convert a share in Knative's or our format; `latest` is the revision that the object describes."""
    named = str(share.get("revisionName") or share.get("revision") or "")
    name = revision if named in ("", "latest", planned) else named
    tag = {"tag": share["tag"]} if share.get("tag") else {}
    return {"revisionName": name, "latestRevision": False, "percent": int(share.get("percent") or 0), **tag}


def _weights(overrides: Overrides, revisions: Mapping[str, str]) -> dict[str, int]:
    """Return the overridden shares of raw workloads, by workload; Knative has its own in the object."""
    written = next((each["traffic"] for each in overrides.values() if each.get("traffic")), ())
    newest = next((name for name, each in overrides.items() if each.get("traffic")), "")
    weights = {}
    for share in written:
        latest = share["revision"] in ("", "latest")
        weights[newest if latest else revisions.get(share["revision"], "")] = int(share["percent"])
    return {name: percent for name, percent in weights.items() if name}


def _with_shares(document: dict[str, Json], shares: Mapping[str, int]) -> dict[str, Json]:
    """Set the weights of a route, and the shares annotation for our gateway."""
    if document["kind"] == "HTTPRoute":
        rules = [_split(rule, shares) for rule in document["spec"].get("rules") or ()]
        return _with_spec(document, {"rules": rules})
    if names.ANNOTATION_SHARES in (document["metadata"].get("annotations") or {}):
        text = ",".join(f"{name}={percent}" for name, percent in shares.items())
        return _annotated(document, names.ANNOTATION_SHARES, text)
    return document


def _split(rule: Mapping[str, Json], shares: Mapping[str, int]) -> Mapping[str, Json]:
    """Set the weights of a rule with several backends; a single backend gets everything."""
    backends = rule.get("backendRefs") or ()
    weighted = [{**each, "weight": shares[each["name"]]} if each["name"] in shares else each for each in backends]
    return {**rule, "backendRefs": weighted} if len(backends) > 1 else rule


def _with_spec(document: Mapping[str, Json], change: Mapping[str, Json]) -> dict[str, Json]:
    return {**document, "spec": {**document["spec"], **change}}


def _annotated(document: Mapping[str, Json], name: str, value: str) -> dict[str, Json]:
    metadata = document["metadata"]
    annotations = {**(metadata.get("annotations") or {}), name: value}
    return {**document, "metadata": {**metadata, "annotations": annotations}}

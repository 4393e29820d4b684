"""An InferenceService as kubectl applies it, for tests of the controller."""

import copy
from datetime import datetime
from typing import Any

from pilotlight.k8s.names import FINALIZER
from pilotlight.k8s.timestamps import format_utc
from pilotlight.targets.kubernetes.controller_finalizer import ANNOTATION_NAMESPACES, LEASE_NAME

Json = Any
KEY = ("models", "iris")
VERSION = "serving.kserve.io/v1beta1"
KIND = (VERSION, "InferenceService")
IRIS: Json = {
    "apiVersion": VERSION,
    "kind": "InferenceService",
    "metadata": {"name": "iris", "namespace": "models", "finalizers": [FINALIZER]},
    "spec": {
        "predictor": {
            "minReplicas": 1, "maxReplicas": 3, "scaleMetric": "cpu", "scaleTarget": 60,
            "model": {"modelFormat": {"name": "onnx"}, "storageUri": "s3://models/iris/model.onnx"},
        }
    },
}  # fmt: skip


RUNTIME: Json = {
    "apiVersion": "serving.kserve.io/v1alpha1", "kind": "ClusterServingRuntime", "metadata": {"name": "mine"},
    "spec": {
        "supportedModelFormats": [{"name": "onnx", "version": "1", "autoSelect": True}],
        "containers": [{"name": "kserve-container", "image": "mine:1"}],
    },
}  # fmt: skip


def iris(**predictor: Json) -> Json:
    document = copy.deepcopy(IRIS)
    document["spec"]["predictor"] |= predictor
    return document


def annotated(document: Json, **annotations: str) -> Json:
    named = {f"pilotlight.dev/{name}": value for name, value in annotations.items()}
    return {**document, "metadata": {**document["metadata"], "annotations": named}}


def lease(renewed: datetime) -> Json:
    """The Lease of a controller of the namespace models."""
    spec = {"holderIdentity": "pod_1", "leaseDurationSeconds": 15, "renewTime": format_utc(renewed, "microseconds")}
    named = {"name": LEASE_NAME, "namespace": "pilotlight-system", "annotations": {ANNOTATION_NAMESPACES: "models"}}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": named, "spec": spec}

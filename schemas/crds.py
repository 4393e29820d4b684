"""CustomResourceDefinitions of the document kinds, which the platform chart installs where KServe and OME are not.

    types of a document → structural schema → CustomResourceDefinition → helm/inference-platform/files/crds

`helm/document.py` writes them. An annotation and a category mark them as installed by Pilotlight.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from schemas.json_schema import OPEN, record_schema, type_schema

from pilotlight.catalogue.document_types import TYPES
from pilotlight.k8s.names import ANNOTATION_DEFINITION, CATEGORY
from pilotlight.spec.field_tables import GRAPH, KSERVE, LLM, OME
from pilotlight.spec.field_types import Boolean, Field, Integer, ListOf, MapOf, OneOf, Record, String

Json = Any
Columns = tuple[tuple[str, str, str, int], ...]  # name, type, path, priority

# Status of an InferenceService in the terms of OME and KServe; targets/kubernetes writes it.
MODEL_STATES: Final = ("Pending", "Standby", "Loading", "Loaded", "FailedToLoad")
TRANSITIONS: Final = ("UpToDate", "InProgress", "BlockedByFailedLoad", "InvalidSpec")

_CONDITION: Final = Record("condition", {
    "type": Field(String(), "Ready, IngressReady, or COMPONENTReady.", required=True),
    "status": Field(OneOf(("True", "False", "Unknown")), "True, False or Unknown.", required=True),
    "reason": Field(String(), "Machine-readable reason."),
    "message": Field(String(), "Human-readable message."),
    "severity": Field(String(), "Info, or empty for an error."),
    "lastTransitionTime": Field(String(), "Time of the last transition."),
})  # fmt: skip
_TRAFFIC: Final = Record("traffic", {
    "revisionName": Field(String(), "Name of the revision."),
    "percent": Field(Integer(0, 100), "Its traffic percentage."),
    "latestRevision": Field(Boolean(), "Whether it is the latest revision."),
    "tag": Field(String(), "Tag of the revision."),
    "url": Field(String(), "URL of the tagged revision."),
})  # fmt: skip
_COMPONENT: Final = Record("component", {
    "url": Field(String(), "URL of the component."),
    "latestCreatedRevision": Field(String(), "Latest created revision."),
    "latestReadyRevision": Field(String(), "Latest ready revision."),
    "traffic": Field(ListOf(_TRAFFIC), "Traffic split by revision."),
})  # fmt: skip
_MODEL_STATES: Final = Record("modelRevisionStates", {
    "activeModelState": Field(OneOf(MODEL_STATES), "State of the active model."),
    "targetModelState": Field(OneOf(MODEL_STATES), "State of the target model."),
})  # fmt: skip
_COPIES: Final = Record("modelCopies", {
    "totalCopies": Field(Integer(0), "Replicas with the model loaded."),
    "failedCopies": Field(Integer(0), "Replicas that failed to load the model."),
})  # fmt: skip
_FAILURE: Final = Record("lastFailureInfo", {
    "reason": Field(String(), "Machine-readable reason."),
    "message": Field(String(), "Error message."),
    "modelRevisionName": Field(String(), "Revision of the failure."),
})  # fmt: skip
_MODEL_STATUS: Final = Record("modelStatus", {
    "transitionStatus": Field(OneOf(TRANSITIONS), "Transition to the target model."),
    "modelRevisionStates": Field(_MODEL_STATES),
    "modelCopies": Field(_COPIES),
    "lastFailureInfo": Field(_FAILURE),
})  # fmt: skip
_ADDRESS: Final = Record("address", {"url": Field(String())})

STATUS: Final = Record("InferenceServiceStatus", {
    "url": Field(String(), "URL of the service."),
    "address": Field(_ADDRESS, "Address inside the cluster."),
    "addresses": Field(ListOf(_ADDRESS), "Addresses of an LLMInferenceService."),
    "deploymentMode": Field(String(), "Deployment mode."),
    "observedGeneration": Field(Integer(0), "Generation that this status belongs to."),
    "conditions": Field(ListOf(_CONDITION), "Conditions of the service."),
    "components": Field(MapOf(_COMPONENT), "Status by component."),
    "modelStatus": Field(_MODEL_STATUS, "Status of the model."),
    "replicas": Field(Integer(0), "Pods of the component with the model, or of a graph's router, for /scale."),
    "selector": Field(String(), "Labels of those pods, for /scale."),
}, "Status of the service, set by the platform.")  # fmt: skip

_AGE: Final = ("Age", "date", ".metadata.creationTimestamp", 0)
_READY: Final = '.status.conditions[?(@.type=="Ready")]'
_RUNTIME: Final[Columns] = (
    ("Formats", "string", ".spec.supportedModelFormats[*].name", 0),
    ("Disabled", "boolean", ".spec.disabled", 0),
    _AGE,
)
_MODEL: Final[Columns] = (
    ("Format", "string", ".spec.modelFormat.name", 0),
    ("Size", "string", ".spec.modelParameterSize", 0),
    ("Architecture", "string", ".spec.modelArchitecture", 1),
    ("Vendor", "string", ".spec.vendor", 1),
    _AGE,
)
_WEIGHTS: Final[Columns] = (
    ("Model", "string", ".spec.baseModelRef.name", 0),
    ("Type", "string", ".spec.modelType", 0),
    _AGE,
)
_ACCELERATOR: Final[Columns] = (
    ("Vendor", "string", ".spec.vendor", 0),
    ("Model", "string", ".spec.model", 0),
    ("Memory", "string", ".spec.capabilities.memoryGB", 0),
    _AGE,
)


def _service_columns(role: str) -> Columns:
    return (
        ("URL", "string", ".status.url", 0),
        ("Ready", "string", f"{_READY}.status", 0),
        ("Mode", "string", ".status.deploymentMode", 0),
        ("Reason", "string", f"{_READY}.reason", 1),
        ("Revision", "string", f".status.components.{role}.latestReadyRevision", 1),
        _AGE,
    )


_GRAPH: Final[Columns] = tuple(each for each in _service_columns("") if each[0] != "Revision")
_LLM: Final[Columns] = tuple(each for each in _GRAPH if each[0] != "Mode")


class CustomResource(NamedTuple):
    """One kind of one API group. `replicas` is the field that /scale sets; such objects have a status like STATUS."""

    group: str
    version: str
    kind: str
    plural: str
    document: Callable[[], Record]
    columns: Columns
    cluster: bool = False
    replicas: str = ""
    short: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # further versions with the same fields, which are not stored


_BASE_MODEL: Final = partial(TYPES.record, "BaseModel")
_OME_RUNTIME: Final = partial(TYPES.record, "ome ServingRuntime")
_KSERVE_RUNTIME: Final = partial(TYPES.record, "kserve ServingRuntime")
_OME: Final = ("ome.io", "v1beta1")
_KSERVE: Final = "serving.kserve.io"
_ISVC: Final = ("InferenceService", "inferenceservices")
_RUNTIMES: Final = ("ServingRuntime", "servingruntimes")
_CLUSTER_RUNTIMES: Final = ("ClusterServingRuntime", "clusterservingruntimes")
KINDS: Final = (
    CustomResource(
        *_OME, *_ISVC, partial(OME.record, "InferenceService"), _service_columns("engine"), short=("isvc",),
        replicas="engine.minReplicas",
    ),
    CustomResource(*_OME, *_RUNTIMES, _OME_RUNTIME, _RUNTIME),
    CustomResource(*_OME, *_CLUSTER_RUNTIMES, _OME_RUNTIME, _RUNTIME, cluster=True),
    CustomResource(*_OME, "BaseModel", "basemodels", _BASE_MODEL, _MODEL),
    CustomResource(*_OME, "ClusterBaseModel", "clusterbasemodels", _BASE_MODEL, _MODEL, cluster=True),
    CustomResource(
        *_OME, "FineTunedWeight", "finetunedweights", partial(TYPES.record, "FineTunedWeight"), _WEIGHTS, cluster=True
    ),
    CustomResource(
        *_OME, "AcceleratorClass", "acceleratorclasses", partial(TYPES.record, "AcceleratorClass"), _ACCELERATOR,
        cluster=True,
    ),
    CustomResource(
        _KSERVE, "v1beta1", *_ISVC, partial(KSERVE.record, "InferenceService"), _service_columns("predictor"),
        short=("isvc",), replicas="predictor.minReplicas",
    ),
    CustomResource(
        _KSERVE, "v1alpha1", "LLMInferenceService", "llminferenceservices", partial(LLM.record, "LLMInferenceService"),
        _LLM, replicas="replicas", short=("llmisvc",), also=("v1alpha2",),
    ),
    CustomResource(
        _KSERVE, "v1alpha1", "InferenceGraph", "inferencegraphs", partial(GRAPH.record, "InferenceGraph"), _GRAPH,
        replicas="minReplicas", short=("ig",),
    ),
    CustomResource(_KSERVE, "v1alpha1", *_RUNTIMES, _KSERVE_RUNTIME, _RUNTIME),
    CustomResource(_KSERVE, "v1alpha1", *_CLUSTER_RUNTIMES, _KSERVE_RUNTIME, _RUNTIME, cluster=True),
)  # fmt: skip


def definition(kind: CustomResource) -> dict[str, Json]:
    """Return the complete object; labels and Helm's annotations are added by the chart."""
    names = {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind, "listKind": f"{kind.kind}List"}
    short = {"shortNames": list(kind.short)} if kind.short else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}", "annotations": {ANNOTATION_DEFINITION: "true"}},
        "spec": {
            "group": kind.group,
            "names": {**names, **short, "categories": [CATEGORY]},
            "scope": "Cluster" if kind.cluster else "Namespaced",
            "versions": [_version(kind), *({**_version(kind), "name": name, "storage": False} for name in kind.also)],
        },
    }


def _version(kind: CustomResource) -> dict[str, Json]:
    return {
        "name": kind.version,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path, **({"priority": priority} if priority else {})}
            for name, type_, path, priority in kind.columns
        ],
        "schema": {"openAPIV3Schema": _schema(kind)},
        # On every kind: OME's agents write the status of models too.
        "subresources": {"status": {}, **({"scale": _scale(kind.replicas)} if kind.replicas else {})},
    }


def _scale(replicas: str) -> dict[str, Json]:
    """Return the subresource behind `kubectl scale`."""
    return {
        "specReplicasPath": f".spec.{replicas}",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def _schema(kind: CustomResource) -> dict[str, Json]:
    document = kind.document()
    status = record_schema(STATUS) if kind.replicas else {"type": "object", OPEN: True}
    return {
        "type": "object",
        "description": document.description or f"A {kind.kind} of the catalogue.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": type_schema(document.fields["spec"].type),
            "status": status,
        },
    }

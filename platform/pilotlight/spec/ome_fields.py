"""Field types of an `ome.io/v1beta1` InferenceService: for the reader `ome`, and for editors as a JSON Schema."""

from functools import cache
from typing import Final

from pilotlight.spec import pod_fields
from pilotlight.spec.annotation_checks import POLICY
from pilotlight.spec.component_fields import EXTENSION, STORAGE_URI, container, document, inline_pod_fields
from pilotlight.spec.example_request import MODEL_FIELDS
from pilotlight.spec.field_types import (
    Boolean,
    Field,
    Integer,
    IntOrString,
    ListOf,
    MapOf,
    OneOf,
    Record,
    RecordRef,
    String,
)

GROUP: Final = "ome.io/v1beta1"
WEIGHTS: Final = "FineTunedWeight"
OPERATORS: Final = ("GreaterThanOrEqual", "LessThanOrEqual")
_RENAMED: Final = {
    "timeout": "OME's name is timeoutSeconds",
    "replicas": "use minReplicas and maxReplicas",
    **dict.fromkeys(("image", "env", "args", "command"), "put it under runner"),
    **dict.fromkeys(("model", "runtime"), "put it under spec, next to the component"),
    "storageUri": "name a model under spec.model, and give a BaseModel with that storage",
}

KEDA: Final = Record("kedaConfig", {
    "enableKeda": Field(Boolean(), "Use KEDA instead of the HPA."),
    "promServerAddress": Field(String(r"https?://\S+", "an http:// or https:// URL"), "Prometheus URL."),
    "customPromQuery": Field(String(), "Query of the autoscaler; %s in it is the service's name."),
    "scalingThreshold": Field(
        String(r"[0-9]*\.?[0-9]+", 'a number in quotes, such as "0.5"'), "Target value of the query."
    ),
    "scalingOperator": Field(OneOf(OPERATORS), "LessThanOrEqual: scale up when the value falls."),
    "authenticationRef": Field(
        Record("authenticationRef", {
            "name": Field(String(r".+", "a name"), "Name of the TriggerAuthentication.", required=True),
            "kind": Field(OneOf(("TriggerAuthentication", "ClusterTriggerAuthentication")), "Its kind."),
        }),
        "Credentials for Prometheus.",
    ),
    "authModes": Field(String(), "How to authenticate: basic, tls, bearer, custom; several with commas."),
}, "Scaling by a Prometheus query.")  # fmt: skip

ACCELERATOR: Final = Record("acceleratorSelector", {
    "acceleratorClass": Field(String(), "Accelerator class; overrides constraints."),
    "constraints": Field(
        Record("constraints", {
            "minMemory": Field(Integer(0), "Minimum memory, in GB."),
            "maxMemory": Field(Integer(0), "Maximum memory, in GB."),
            "minComputePerformanceTFLOPS": Field(Integer(0), "Minimum speed, in TFLOPS."),
            "minArchitectureVersion": Field(String(), "Minimum compute capability."),
            "requiredFeatures": Field(ListOf(String()), "Required features."),
            "excludedClasses": Field(ListOf(String()), "Classes to avoid."),
            "architectureFamilies": Field(ListOf(String()), "Allowed families."),
            "preferredPrecisions": Field(ListOf(String()), "Number formats, the best first."),
        }),
        "Constraints on the accelerator.",
    ),
    "policy": Field(OneOf(("BestFit", "Cheapest", "MostCapable", "FirstAvailable")), "Selection policy."),
}, "Accelerator selection.")  # fmt: skip

_MODEL: Final = Record("ModelRef", {
    "name": Field(String(r".+", "a model's name"), "Name of the model, or of fine-tuned weights.", required=True),
    "kind": Field(
        OneOf(("BaseModel", "ClusterBaseModel", WEIGHTS)),
        "Its kind, ClusterBaseModel by default. A FineTunedWeight uses its base model.",
    ),
    "apiGroup": Field(OneOf(("ome.io",)), "Its API group."),
    "fineTunedWeights": Field(ListOf(String()), "Fine-tuned weights; at most one."),
    **MODEL_FIELDS,
}, hints={"storageUri": "set it in the storage of a BaseModel, and name that here"})  # fmt: skip
_RUNTIME: Final = Record("ServingRuntimeRef", {
    "name": Field(String(r".+", "a runtime's name"), "Name of the runtime.", required=True),
    "kind": Field(OneOf(("ServingRuntime", "ClusterServingRuntime")), "ClusterServingRuntime by default."),
    "apiGroup": Field(OneOf(("ome.io",)), "Its API group."),
})  # fmt: skip


@cache
def extension() -> dict[str, Field]:
    return {
        **EXTENSION,
        "timeoutSeconds": Field(Integer(0), "Timeout of a request."),
        "minAvailable": Field(IntOrString(), "Minimum available pods during evictions: a number or a percentage."),
        "maxUnavailable": Field(IntOrString(), "Maximum unavailable pods during evictions: a number or a percentage."),
        "kedaConfig": Field(KEDA, "Scaling of this component by a Prometheus query."),
    }


@cache
def record(name: str) -> Record:
    """Return a record of this group by name, built on first use: each contains all pod fields."""
    return {
        "EngineSpec": _engine,
        "DecoderSpec": _engine,
        "RouterSpec": _router,
        "LeaderSpec": _leader,
        "WorkerSpec": _worker,
        "PredictorSpec": _predictor,
        "InferenceServiceSpec": _spec,
    }[name](name)


def inference_service() -> Record:
    return document(GROUP, RecordRef("InferenceServiceSpec", record))


def _component(name: str, own: dict[str, Field], description: str) -> Record:
    resources = Field(pod_fields.core("ResourceRequirements"), "Resources of the runner.")
    fields = {**inline_pod_fields(), **extension(), "resources": resources, **own}
    return Record(name, fields, description, _RENAMED)


def _runner() -> Field:
    return Field(container("Runner"), "The main container: image, command, resources and so on.")


def _engine(name: str) -> Record:
    own = {
        "runner": _runner(),
        "leader": Field(RecordRef("LeaderSpec", record), "The leading pod of a multi-node component."),
        "worker": Field(RecordRef("WorkerSpec", record), "The other pods of a multi-node component."),
        "acceleratorOverride": Field(ACCELERATOR, "Another accelerator for this component."),
    }
    return _component(name, own, "A compute component: the engine or the decoder.")


def _router(name: str) -> Record:
    own = {"runner": _runner(), "config": Field(MapOf(String()), "routing_strategy, health_check_interval, …")}
    return _component(name, own, "Distributes requests over the other components.")


def _leader(name: str) -> Record:
    return Record(name, {**inline_pod_fields(), "runner": _runner()}, "Pod fields of the leader.")


def _worker(name: str) -> Record:
    fields = {**_leader(name).fields, "size": Field(Integer(1), "Number of workers.")}
    return Record(name, fields, "Pod fields of a worker.")


def _predictor(name: str) -> Record:
    model = Record("PredictorModel", {
        **pod_fields.fields("Container", optional=("name",)),
        "baseModel": Field(String(), "Name of the model."),
        "runtime": Field(String(), "Name of the runtime."),
        "fineTunedWeights": Field(ListOf(String()), "Fine-tuned weights."),
        "storageUri": Field(STORAGE_URI, "URI of the model."),
        "runtimeVersion": Field(String(), "Version of the runtime's image."),
        "protocolVersion": Field(String(), "Inference protocol."),
        **MODEL_FIELDS,
    })  # fmt: skip
    own = {"model": Field(model, "The model."), "workerSpec": Field(RecordRef("WorkerSpec", record), "Workers.")}
    return _component(name, own, "Deprecated form of model, runtime and engine.")


def _spec(name: str) -> Record:
    use = "use spec.model, spec.runtime and spec.engine"
    fields = {
        "model": Field(_MODEL, "The model to serve."),
        "runtime": Field(_RUNTIME, "Serving runtime; selected by the model's format if unset."),
        "engine": Field(RecordRef("EngineSpec", record), "Serves requests; with a decoder: prefill only."),
        "decoder": Field(RecordRef("DecoderSpec", record), "Generates tokens, separate from the engine."),
        "router": Field(RecordRef("RouterSpec", record), "Routes requests to engine and decoder."),
        "kedaConfig": Field(KEDA, "Scaling by a Prometheus query, for all components."),
        "acceleratorSelector": Field(ACCELERATOR, "Accelerator selection."),
        "canary": Field(POLICY, POLICY.description),
        "predictor": Field(RecordRef("PredictorSpec", record), "Deprecated form.", deprecated=use),
    }
    hints = dict.fromkeys(record("EngineSpec").fields, "put it under engine")
    hints["transformer"] = "that is a KServe field; use router"
    return Record(name, fields, "Desired state of the service.", hints)

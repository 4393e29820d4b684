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
    **dict.fromkeys(("model", "runtime"), "put it under spec, beside the component"),
    "storageUri": "name a model under spec.model, and give a BaseModel with that storage",
}

KEDA: Final = Record("kedaConfig", {
    "enableKeda": Field(Boolean(), "Let KEDA scale instead of the HPA."),
    "promServerAddress": Field(String(r"https?://\S+", "an http:// or https:// URL"), "Prometheus to ask."),
    "customPromQuery": Field(String(), "Query to scale by; %s in it is the service's name."),
    "scalingThreshold": Field(
        String(r"[0-9]*\.?[0-9]+", 'a number in quotes, such as "0.5"'), "Value of the query to hold."
    ),
    "scalingOperator": Field(OneOf(OPERATORS), "LessThanOrEqual: more replicas when the value falls."),
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
    "acceleratorClass": Field(String(), "The class to use; wins over constraints."),
    "constraints": Field(
        Record("constraints", {
            "minMemory": Field(Integer(0), "Least memory, in GB."),
            "maxMemory": Field(Integer(0), "Greatest memory, in GB."),
            "minComputePerformanceTFLOPS": Field(Integer(0), "Least speed, in TFLOPS."),
            "minArchitectureVersion": Field(String(), "Least compute capability."),
            "requiredFeatures": Field(ListOf(String()), "Features that it must have."),
            "excludedClasses": Field(ListOf(String()), "Classes to avoid."),
            "architectureFamilies": Field(ListOf(String()), "Families to choose from."),
            "preferredPrecisions": Field(ListOf(String()), "Number formats, the best first."),
        }),
        "What an accelerator must fulfil.",
    ),
    "policy": Field(OneOf(("BestFit", "Cheapest", "MostCapable", "FirstAvailable")), "Which of several to take."),
}, "Which GPU or other accelerator to run on.")  # fmt: skip

_MODEL: Final = Record("ModelRef", {
    "name": Field(String(r".+", "a model's name"), "Name of the model, or of fine-tuned weights.", required=True),
    "kind": Field(
        OneOf(("BaseModel", "ClusterBaseModel", WEIGHTS)),
        "Its kind, ClusterBaseModel by default. A FineTunedWeight is served with the model that it was tuned from.",
    ),
    "apiGroup": Field(OneOf(("ome.io",)), "Its API group."),
    "fineTunedWeights": Field(ListOf(String()), "Fine-tuned weights to serve it with; one at most."),
    **MODEL_FIELDS,
}, hints={"storageUri": "give it in the storage of a BaseModel, and name that here"})  # fmt: skip
_RUNTIME: Final = Record("ServingRuntimeRef", {
    "name": Field(String(r".+", "a runtime's name"), "Name of the runtime.", required=True),
    "kind": Field(OneOf(("ServingRuntime", "ClusterServingRuntime")), "ClusterServingRuntime by default."),
    "apiGroup": Field(OneOf(("ome.io",)), "Its API group."),
})  # fmt: skip


@cache
def extension() -> dict[str, Field]:
    return {
        **EXTENSION,
        "timeoutSeconds": Field(Integer(0), "How long a request may take."),
        "minAvailable": Field(IntOrString(), "Pods that an eviction must leave: a number or a percentage."),
        "maxUnavailable": Field(IntOrString(), "Pods that an eviction may take: a number or a percentage."),
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
    return _component(name, own, "A component that computes: the engine, or the decoder beside it.")


def _router(name: str) -> Record:
    own = {"runner": _runner(), "config": Field(MapOf(String()), "routing_strategy, health_check_interval, …")}
    return _component(name, own, "The component that spreads requests over the others.")


def _leader(name: str) -> Record:
    return Record(name, {**inline_pod_fields(), "runner": _runner()}, "Pod fields of the leader.")


def _worker(name: str) -> Record:
    fields = {**_leader(name).fields, "size": Field(Integer(1), "How many workers.")}
    return Record(name, fields, "Pod fields of a worker.")


def _predictor(name: str) -> Record:
    model = Record("PredictorModel", {
        **pod_fields.fields("Container", optional=("name",)),
        "baseModel": Field(String(), "Name of the model."),
        "runtime": Field(String(), "Name of the runtime."),
        "fineTunedWeights": Field(ListOf(String()), "Fine-tuned weights."),
        "storageUri": Field(STORAGE_URI, "Where the model is."),
        "runtimeVersion": Field(String(), "Version of the runtime's image."),
        "protocolVersion": Field(String(), "Dialect that is spoken."),
        **MODEL_FIELDS,
    })  # fmt: skip
    own = {"model": Field(model, "The model."), "workerSpec": Field(RecordRef("WorkerSpec", record), "Workers.")}
    return _component(name, own, "The older form of model, runtime and engine.")


def _spec(name: str) -> Record:
    use = "use spec.model, spec.runtime and spec.engine"
    fields = {
        "model": Field(_MODEL, "The model to serve."),
        "runtime": Field(_RUNTIME, "What serves it; chosen by the model's format when left out."),
        "engine": Field(RecordRef("EngineSpec", record), "What answers requests (with a decoder: what reads prompts)."),
        "decoder": Field(RecordRef("DecoderSpec", record), "What generates tokens, apart from the engine."),
        "router": Field(RecordRef("RouterSpec", record), "What spreads requests over engine and decoder."),
        "kedaConfig": Field(KEDA, "Scaling by a Prometheus query, for all components."),
        "acceleratorSelector": Field(ACCELERATOR, "Which accelerator to run on."),
        "canary": Field(POLICY, POLICY.description),
        "predictor": Field(RecordRef("PredictorSpec", record), "The older form.", deprecated=use),
    }
    hints = dict.fromkeys(record("EngineSpec").fields, "put it under engine")
    hints["transformer"] = "that is KServe's; use router"
    return Record(name, fields, "What to serve and how.", hints)

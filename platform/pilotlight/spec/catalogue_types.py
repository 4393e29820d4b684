"""The types of the catalogue's documents: runtimes of both API groups, models and accelerator classes of OME.

`runtimes`, `models` and `catalogue` read nodes against them; the JSON Schemas are made from the same records.
"""

from functools import cache
from typing import Final

from pilotlight.spec.core_fields import core, fields
from pilotlight.spec.model import Group
from pilotlight.spec.ome_fields import record
from pilotlight.spec.types import (
    Anything,
    Field,
    ListOf,
    MapOf,
    Named,
    OneOf,
    Quantity,
    Record,
    Text,
    Truth,
    Type,
    Whole,
)

RUNTIME_VERSIONS: Final[dict[str, Group]] = {"ome.io/v1beta1": "ome", "serving.kserve.io/v1alpha1": "kserve"}
RUNTIME_KINDS: Final = ("ServingRuntime", "ClusterServingRuntime")
MODEL_KINDS: Final = ("BaseModel", "ClusterBaseModel")
ACCELERATOR_KIND: Final = "AcceleratorClass"
WEIGHTS_KIND: Final = "FineTunedWeight"
OME_VERSION: Final = "ome.io/v1beta1"
# The part of a pod that a runtime may say. KServe has no dnsPolicy and no hostNetwork, OME no resourceClaims.
POD_FIELDS: Final = (
    "containers",
    "volumes",
    "nodeSelector",
    "affinity",
    "tolerations",
    "imagePullSecrets",
    "schedulerName",
    "hostIPC",
    "resourceClaims",
    "dnsPolicy",
    "hostNetwork",
)
CONFIGS: Final = {"engineConfig": "EngineSpec", "decoderConfig": "DecoderSpec", "routerConfig": "RouterSpec"}
_OPERATORS: Final = OneOf(("Equal", "GreaterThan", "GreaterThanOrEqual"))


def _document(name: str, versions: tuple[str, ...], kinds: tuple[str, ...], spec: Record) -> Record:
    metadata = {**fields("ObjectMeta"), "name": Field(Text(), "what services call it", required=True)}
    return Record(name, {
        "apiVersion": Field(OneOf(versions), required=True),
        "kind": Field(OneOf(kinds), required=True),
        "metadata": Field(Record("metadata", metadata), required=True),
        "spec": Field(spec, required=True),
        "status": Field(Anything(), ignored=True),
    })  # fmt: skip


@cache
def runtime_type(group: Group) -> Record:
    """A (Cluster)ServingRuntime of either group."""
    versions = tuple(version for version, known in RUNTIME_VERSIONS.items() if known == group)
    return _document("ServingRuntime", versions, RUNTIME_KINDS, _ome_spec() if group == "ome" else _kserve_spec())


@cache
def model_type() -> Record:
    """A (Cluster)BaseModel. OME's agent reads the format from the weights, so it may be left out."""
    texts = ("modelType", "modelArchitecture", "quantization", "modelParameterSize", "displayName", "version", "vendor")
    storage = {name: Field(Text()) for name in ("path", "schemaPath", "key", "storageUri")}
    policy = OneOf(("AlwaysDownload", "ReuseIfExists"))
    return _document("BaseModel", (OME_VERSION,), MODEL_KINDS, Record("BaseModelSpec", {
        **{name: Field(Text()) for name in (*texts, "compartmentID")},
        "modelFormat": Field(_model_property("modelFormat")),
        "modelFramework": Field(_model_property("modelFramework")),
        **{name: Field(ListOf(Text())) for name in ("modelCapabilities", "apiCapabilities", "servingMode")},
        "modelConfiguration": Field(Anything()), "additionalMetadata": _texts(),
        "maxTokens": Field(Whole(1)), "disabled": Field(Truth()), "diffusionPipeline": Field(_pipeline()),
        "storage": Field(Record("storage", {
            **storage, "parameters": _texts(), "nodeSelector": _texts(), "nodeAffinity": Field(core("NodeAffinity")),
            "downloadPolicy": Field(policy),
        })),
    }))  # fmt: skip


@cache
def weights_type() -> Record:
    """A FineTunedWeight: merged weights, or an adapter of a base model."""
    reference = Record("reference", {"name": Field(Text()), "namespace": Field(Text())})
    storage = {name: Field(Text()) for name in ("path", "schemaPath", "key", "storageUri")}
    return _document("FineTunedWeight", (OME_VERSION,), (WEIGHTS_KIND,), Record("FineTunedWeightSpec", {
        **{name: Field(Text()) for name in ("modelType", "displayName", "version", "vendor", "compartmentID")},
        "baseModelRef": Field(reference), "trainingJobRef": Field(reference), "disabled": Field(Truth()),
        "hyperParameters": Field(Anything()), "configuration": Field(Anything()),
        "storage": Field(Record("storage", {**storage, "parameters": _texts()})),
    }))  # fmt: skip


@cache
def accelerator_type() -> Record:
    """An AcceleratorClass."""
    speed: dict[str, Type] = {name: Whole(0) for name in ("fp32Tflops", "fp16Tflops", "int8Tops", "int4Tops")}
    latency = Record("latency", {"averageMillis": Field(Whole(0)), "maximumMillis": Field(Whole(0))})
    resource = {"name": Field(Text(), required=True), "quantity": Field(Quantity()), "divisible": Field(Truth())}
    cost = {name: Field(Quantity()) for name in ("perHour", "perMillionTokens", "spotPerHour")}
    return _document("AcceleratorClass", (OME_VERSION,), (ACCELERATOR_KIND,), Record("AcceleratorClassSpec", {
        **{name: Field(Text()) for name in ("vendor", "family", "model")},
        "discovery": Field(Record("discovery", {
            "nodeSelector": _texts(), "affinity": Field(core("Affinity")), "pciVendorID": Field(Text()),
            "deviceIDs": Field(ListOf(Text())),
        })),
        "capabilities": Field(Record("capabilities", {
            "memoryGB": Field(Quantity()), "memoryBandwidthGBps": Field(Quantity()), "clockSpeedMHz": Field(Whole(0)),
            "computeCapability": Field(Text()), "levelZeroVersion": Field(Text()), "features": Field(ListOf(Text())),
            "performance": Field(_record("performance", speed | {"latency": latency})),
        }), required=True),
        "resources": Field(ListOf(Record("resources", resource))),
        "integration": Field(_record("integration", {"kueueResourceFlavor": Text(), "volcanoGPUType": Text()})),
        "cost": Field(Record("cost", {**cost, "tier": Field(OneOf(("low", "medium", "high")))})),
    }))  # fmt: skip


def _record(name: str, types: dict[str, Type]) -> Record:
    return Record(name, {field: Field(known) for field, known in types.items()})


def _pod_fields(*left_out: str) -> dict[str, Field]:
    pod = fields("PodSpec", optional=("containers",))
    return {name: pod[name] for name in POD_FIELDS if name in pod and name not in left_out}


def _texts() -> Field:
    return Field(MapOf(Text()))


def _kserve_spec() -> Record:
    line = Record("supportedModelFormats", {
        "name": Field(Text(), "sklearn, onnx, …", required=True),
        "version": Field(Text(), "of the format"),
        "autoSelect": Field(Truth(), "may be chosen without being named"),
        "priority": Field(Whole(1), "the highest is chosen"),
    })  # fmt: skip
    pod = {**_pod_fields("dnsPolicy", "hostNetwork"), "labels": _texts(), "annotations": _texts()}
    worker = {"pipelineParallelSize": Field(Whole(1)), "tensorParallelSize": Field(Whole(1))}
    mesh: dict[str, Type] = {"serverType": Text(), "runtimeManagementPort": Whole(), "memBufferBytes": Whole()}
    mesh |= {"modelLoadingTimeoutMillis": Whole(), "env": ListOf(core("EnvVar"))}
    return Record("ServingRuntimeSpec", {
        **pod,
        "supportedModelFormats": Field(ListOf(line)),
        "multiModel": Field(Truth(), "for ModelMesh"),
        "disabled": Field(Truth()),
        "protocolVersions": Field(ListOf(OneOf(("v1", "v2", "grpc-v1", "grpc-v2")))),
        "workerSpec": Field(Record("workerSpec", {**pod, **worker})),
        "grpcEndpoint": Field(Text()), "grpcDataEndpoint": Field(Text()), "httpDataEndpoint": Field(Text()),
        "replicas": Field(Whole(0)), "storageHelper": Field(Record("storageHelper", {"disabled": Field(Truth())})),
        "builtInAdapter": Field(_record("builtInAdapter", mesh)),
    })  # fmt: skip


def _model_property(name: str) -> Record:
    """OME's modelFormat or modelFramework."""
    return Record(name, {
        "name": Field(Text(), required=True), "version": Field(Text()),
        "operator": Field(_OPERATORS, "how a runtime's version compares with a model's"),
        "weight": Field(Whole(0), "what a match adds to a runtime's score, times its priority"),
    })  # fmt: skip


def _pipeline() -> Record:
    part = Record("component", {"library": Field(Text()), "type": Field(Text())})
    names = ("scheduler", "textEncoder", "tokenizer", "transformer", "vae")
    parts = {name: Field(part) for name in names}
    extra = {"className": Field(Text()), "additionalComponents": Field(MapOf(part))}
    return Record("diffusionPipeline", {**extra, **parts})


def _ome_line_type() -> Record:
    sizes = ("tensorParallelSize", "pipelineParallelSize", "dataParallelSize")
    accelerator = Record("acceleratorConfig", {
        "minMemoryPerBillionParams": Field(Whole(0), "GB"),
        "tensorParallelismOverride": Field(Record("tensorParallelismOverride", {n: Field(Whole(0)) for n in sizes})),
        "runtimeArgsOverride": Field(ListOf(Text())),
        "environmentOverride": _texts(),
    })  # fmt: skip
    return Record("supportedModelFormats", {
        "name": Field(Text()), "version": Field(Text()), "modelType": Field(Text()),
        "modelFormat": Field(_model_property("modelFormat"), required=True),
        "modelFramework": Field(_model_property("modelFramework")),
        "modelArchitecture": Field(Text()), "quantization": Field(Text()),
        "diffusionPipeline": Field(_pipeline()), "autoSelect": Field(Truth()), "priority": Field(Whole(1)),
        "acceleratorConfig": Field(MapOf(accelerator)),
    })  # fmt: skip


def _ome_spec() -> Record:
    pod = {**_pod_fields("resourceClaims"), "labels": _texts(), "annotations": _texts()}
    requirements = Record("acceleratorRequirements", {
        "acceleratorClasses": Field(ListOf(Text())), "minMemory": Field(Whole(0)),
        "minComputePerformanceTFLOPS": Field(Whole(0)), "minArchitectureVersion": Field(Text()),
        "requiredFeatures": Field(ListOf(Text())), "preferredPrecisions": Field(ListOf(Text())),
    })  # fmt: skip
    return Record("ServingRuntimeSpec", {
        **pod,
        "supportedModelFormats": Field(ListOf(_ome_line_type())),
        "modelSizeRange": Field(Record("modelSizeRange", {"min": Field(Text()), "max": Field(Text())})),
        "disabled": Field(Truth()),
        "protocolVersions": Field(ListOf(Text())),
        **{name: Field(Named(component, record)) for name, component in CONFIGS.items()},
        "workers": Field(Record("workers", {**pod, "size": Field(Whole(1))})),
        "acceleratorRequirements": Field(requirements),
    })  # fmt: skip

"""Types of the catalogue's documents (runtimes of both API groups, models and accelerator classes of OME) and sizes.

`runtimes`, `models` and `catalogue` read nodes against them; CRD schemas are generated from the same records.
"""

import re
from functools import cache
from typing import Final

from pilotlight.k8s import quantities
from pilotlight.spec.field_types import (
    Anything,
    Boolean,
    Field,
    Integer,
    ListOf,
    MapOf,
    OneOf,
    Quantity,
    Record,
    RecordRef,
    String,
    Type,
)
from pilotlight.spec.ome_fields import record
from pilotlight.spec.pod_fields import core, fields
from pilotlight.spec.service import Group

RUNTIME_VERSIONS: Final[dict[str, Group]] = {"ome.io/v1beta1": "ome", "serving.kserve.io/v1alpha1": "kserve"}
RUNTIME_KINDS: Final = ("ServingRuntime", "ClusterServingRuntime")
MODEL_KINDS: Final = ("BaseModel", "ClusterBaseModel")
ACCELERATOR_KIND: Final = "AcceleratorClass"
WEIGHTS_KIND: Final = "FineTunedWeight"
CACHE_KINDS: Final = ("LocalModelCache", "LocalModelNamespaceCache")
OME_VERSION: Final = "ome.io/v1beta1"
KSERVE_VERSION: Final = "serving.kserve.io/v1alpha1"
# Pod fields that a runtime may set. KServe has no dnsPolicy and no hostNetwork, OME no resourceClaims.
POD_FIELDS: Final = (
    "containers", "volumes", "nodeSelector", "affinity", "tolerations", "imagePullSecrets", "schedulerName", "hostIPC",
    "resourceClaims", "dnsPolicy", "hostNetwork",
)  # fmt: skip
CONFIGS: Final = {"engineConfig": "EngineSpec", "decoderConfig": "DecoderSpec", "routerConfig": "RouterSpec"}
_OPERATORS: Final = OneOf(("Equal", "GreaterThan", "GreaterThanOrEqual"))
_SCALE: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", re.IGNORECASE)
BYTES_PER_PARAMETER: Final = {
    "fp32": 4.0, "float32": 4.0, "fp8": 1.0, "fbgemm_fp8": 1.0, "int8": 1.0, "int4": 0.5, "mxfp4": 0.5, "fp4": 0.5,
    "awq": 0.5, "awq_marlin": 0.5, "gptq": 0.5, "gptq_marlin": 0.5, "bitsandbytes": 0.5, "nvfp4": 0.5,
}  # fmt: skip


def _document(name: str, versions: tuple[str, ...], kinds: tuple[str, ...], spec: Record) -> Record:
    metadata = {**fields("ObjectMeta"), "name": Field(String(), "name used by services", required=True)}
    return Record(name, {
        "apiVersion": Field(OneOf(versions), required=True),
        "kind": Field(OneOf(kinds), required=True),
        "metadata": Field(Record("metadata", metadata), required=True),
        "spec": Field(spec, required=True),
        "status": Field(Anything(), ignored=True),
    })  # fmt: skip


@cache
def runtime_type(group: Group) -> Record:
    """Return the type of a (Cluster)ServingRuntime of a group."""
    versions = tuple(version for version, known in RUNTIME_VERSIONS.items() if known == group)
    return _document("ServingRuntime", versions, RUNTIME_KINDS, _ome_spec() if group == "ome" else _kserve_spec())


@cache
def model_type() -> Record:
    """Return the type of a (Cluster)BaseModel. The format is optional: OME's agent reads it from the weights."""
    texts = ("modelType", "modelArchitecture", "quantization", "modelParameterSize", "displayName", "version", "vendor")
    storage = {name: Field(String()) for name in ("path", "schemaPath", "key", "storageUri")}
    policy = OneOf(("AlwaysDownload", "ReuseIfExists"))
    return _document("BaseModel", (OME_VERSION,), MODEL_KINDS, Record("BaseModelSpec", {
        **{name: Field(String()) for name in (*texts, "compartmentID")},
        "modelFormat": Field(_model_property("modelFormat")),
        "modelFramework": Field(_model_property("modelFramework")),
        **{name: Field(ListOf(String())) for name in ("modelCapabilities", "apiCapabilities", "servingMode")},
        "modelConfiguration": Field(Anything()), "additionalMetadata": _string_map(),
        "maxTokens": Field(Integer(1)), "disabled": Field(Boolean()), "diffusionPipeline": Field(_pipeline()),
        "storage": Field(Record("storage", {
            **storage, "parameters": _string_map(), "nodeSelector": _string_map(),
            "nodeAffinity": Field(core("NodeAffinity")), "downloadPolicy": Field(policy),
        })),
    }))  # fmt: skip


@cache
def weights_type() -> Record:
    """Return the type of a FineTunedWeight: merged weights, or an adapter of a base model."""
    reference = Record("reference", {"name": Field(String()), "namespace": Field(String())})
    storage = {name: Field(String()) for name in ("path", "schemaPath", "key", "storageUri")}
    return _document("FineTunedWeight", (OME_VERSION,), (WEIGHTS_KIND,), Record("FineTunedWeightSpec", {
        **{name: Field(String()) for name in ("modelType", "displayName", "version", "vendor", "compartmentID")},
        "baseModelRef": Field(reference), "trainingJobRef": Field(reference), "disabled": Field(Boolean()),
        "hyperParameters": Field(Anything()), "configuration": Field(Anything()),
        "storage": Field(Record("storage", {**storage, "parameters": _string_map()})),
    }))  # fmt: skip


@cache
def cache_type() -> Record:
    """Return the type of KServe's LocalModel(Namespace)Cache: a model that its agent puts on a group of nodes."""
    storage = Record("storage", {"key": Field(String()), "parameters": _string_map()})
    return _document("LocalModelCache", (KSERVE_VERSION,), CACHE_KINDS, Record("LocalModelCacheSpec", {
        "sourceModelUri": Field(String(), required=True), "modelSize": Field(Quantity()),
        "nodeGroups": Field(ListOf(String()), required=True), "serviceAccountName": Field(String()),
        "storage": Field(storage),
    }))  # fmt: skip


@cache
def accelerator_type() -> Record:
    """Return the type of an AcceleratorClass."""
    speed: dict[str, Type] = {name: Integer(0) for name in ("fp32Tflops", "fp16Tflops", "int8Tops", "int4Tops")}
    latency = Record("latency", {"averageMillis": Field(Integer(0)), "maximumMillis": Field(Integer(0))})
    resource = {"name": Field(String(), required=True), "quantity": Field(Quantity()), "divisible": Field(Boolean())}
    cost = {name: Field(Quantity()) for name in ("perHour", "perMillionTokens", "spotPerHour")}
    return _document("AcceleratorClass", (OME_VERSION,), (ACCELERATOR_KIND,), Record("AcceleratorClassSpec", {
        **{name: Field(String()) for name in ("vendor", "family", "model")},
        "discovery": Field(Record("discovery", {
            "nodeSelector": _string_map(), "affinity": Field(core("Affinity")), "pciVendorID": Field(String()),
            "deviceIDs": Field(ListOf(String())),
        })),
        "capabilities": Field(Record("capabilities", {
            "memoryGB": Field(Quantity()), "memoryBandwidthGBps": Field(Quantity()), "clockSpeedMHz": Field(Integer(0)),
            "computeCapability": Field(String()), "levelZeroVersion": Field(String()),
            "features": Field(ListOf(String())),
            "performance": Field(_record("performance", speed | {"latency": latency})),
        }), required=True),
        "resources": Field(ListOf(Record("resources", resource))),
        "integration": Field(_record("integration", {"kueueResourceFlavor": String(), "volcanoGPUType": String()})),
        "cost": Field(Record("cost", {**cost, "tier": Field(OneOf(("low", "medium", "high")))})),
    }))  # fmt: skip


def _record(name: str, types: dict[str, Type]) -> Record:
    return Record(name, {field: Field(known) for field, known in types.items()})


def _pod_fields(*left_out: str) -> dict[str, Field]:
    pod = fields("PodSpec", optional=("containers",))
    return {name: pod[name] for name in POD_FIELDS if name in pod and name not in left_out}


def _string_map() -> Field:
    return Field(MapOf(String()))


def _kserve_spec() -> Record:
    supported_format = Record("supportedModelFormats", {
        "name": Field(String(), "sklearn, onnx, …", required=True),
        "version": Field(String(), "of the format"),
        "autoSelect": Field(Boolean(), "may be selected automatically"),
        "priority": Field(Integer(1), "the highest wins"),
    })  # fmt: skip
    pod = {**_pod_fields("dnsPolicy", "hostNetwork"), "labels": _string_map(), "annotations": _string_map()}
    worker = {"pipelineParallelSize": Field(Integer(1)), "tensorParallelSize": Field(Integer(1))}
    mesh: dict[str, Type] = {"serverType": String(), "runtimeManagementPort": Integer(), "memBufferBytes": Integer()}
    mesh |= {"modelLoadingTimeoutMillis": Integer(), "env": ListOf(core("EnvVar"))}
    return Record("ServingRuntimeSpec", {
        **pod,
        "supportedModelFormats": Field(ListOf(supported_format)),
        "multiModel": Field(Boolean(), "for ModelMesh"),
        "disabled": Field(Boolean()),
        "protocolVersions": Field(ListOf(OneOf(("v1", "v2", "grpc-v1", "grpc-v2")))),
        "workerSpec": Field(Record("workerSpec", {**pod, **worker})),
        "grpcEndpoint": Field(String()), "grpcDataEndpoint": Field(String()), "httpDataEndpoint": Field(String()),
        "replicas": Field(Integer(0)), "storageHelper": Field(Record("storageHelper", {"disabled": Field(Boolean())})),
        "builtInAdapter": Field(_record("builtInAdapter", mesh)),
    })  # fmt: skip


def _model_property(name: str) -> Record:
    """Return the type of OME's modelFormat or modelFramework."""
    return Record(name, {
        "name": Field(String(), required=True), "version": Field(String()),
        "operator": Field(_OPERATORS, "how a runtime's version compares with a model's"),
        "weight": Field(Integer(0), "what a match adds to a runtime's score, times its priority"),
    })  # fmt: skip


def _pipeline() -> Record:
    part = Record("component", {"library": Field(String()), "type": Field(String())})
    parts = {name: Field(part) for name in ("scheduler", "textEncoder", "tokenizer", "transformer", "vae")}
    extra = {"className": Field(String()), "additionalComponents": Field(MapOf(part))}
    return Record("diffusionPipeline", {**extra, **parts})


def _ome_format() -> Record:
    sizes = ("tensorParallelSize", "pipelineParallelSize", "dataParallelSize")
    accelerator = Record("acceleratorConfig", {
        "minMemoryPerBillionParams": Field(Integer(0), "GB"),
        "tensorParallelismOverride": Field(Record("tensorParallelismOverride", {n: Field(Integer(0)) for n in sizes})),
        "runtimeArgsOverride": Field(ListOf(String())),
        "environmentOverride": _string_map(),
    })  # fmt: skip
    return Record("supportedModelFormats", {
        "name": Field(String()), "version": Field(String()), "modelType": Field(String()),
        "modelFormat": Field(_model_property("modelFormat"), required=True),
        "modelFramework": Field(_model_property("modelFramework")),
        "modelArchitecture": Field(String()), "quantization": Field(String()),
        "diffusionPipeline": Field(_pipeline()), "autoSelect": Field(Boolean()), "priority": Field(Integer(1)),
        "acceleratorConfig": Field(MapOf(accelerator)),
    })  # fmt: skip


def _ome_spec() -> Record:
    pod = {**_pod_fields("resourceClaims"), "labels": _string_map(), "annotations": _string_map()}
    requirements = Record("acceleratorRequirements", {
        "acceleratorClasses": Field(ListOf(String())), "minMemory": Field(Integer(0)),
        "minComputePerformanceTFLOPS": Field(Integer(0)), "minArchitectureVersion": Field(String()),
        "requiredFeatures": Field(ListOf(String())), "preferredPrecisions": Field(ListOf(String())),
    })  # fmt: skip
    return Record("ServingRuntimeSpec", {
        **pod,
        "supportedModelFormats": Field(ListOf(_ome_format())),
        "modelSizeRange": Field(Record("modelSizeRange", {"min": Field(String()), "max": Field(String())})),
        "disabled": Field(Boolean()),
        "protocolVersions": Field(ListOf(String())),
        **{name: Field(RecordRef(component, record)) for name, component in CONFIGS.items()},
        "workers": Field(Record("workers", {**pod, "size": Field(Integer(1))})),
        "acceleratorRequirements": Field(requirements),
    })  # fmt: skip


MAX_PARAMETERS: Final = 1e18


def parameter_count(size: str) -> float | None:
    """Return the parameter count of `70B`, `1.5T` or `560M`; None if malformed."""
    match = _SIZE.fullmatch(size.strip())
    count = float(match[1]) * _SCALE.get(match[2].upper(), 1.0) if match else None
    return count if count is not None and count < MAX_PARAMETERS else None


def quantity_value(text: str) -> float | None:
    """Return a Kubernetes quantity (`16Gi`, `500m`, `1.5e9`) as a number; None if malformed. `K` is read as `k`."""
    value = quantities.parse_quantity(text[:-1] + "k" if text.endswith("K") else text)
    return None if value is None or value < 0 else float(value)


def byte_count(text: str) -> int | None:
    """Return the bytes of a Kubernetes quantity; None if malformed."""
    value = quantity_value(text)
    return None if value is None else int(value)


def weights_size(parameter_size: str, quantization: str, dtype: str = "") -> tuple[int, str]:
    """Return the bytes of the weights and how they were computed: `70B` in bf16 is 140 GB, in int4 35 GB."""
    count = parameter_count(parameter_size) if parameter_size else None
    if count is None:
        return 0, ""
    stored = quantization or dtype or "bf16"
    each = BYTES_PER_PARAMETER.get(stored.lower(), 2.0)
    size = int(count * each)
    return size, f"{size / 1e9:.3g} GB: {parameter_size} parameters of {each:g} bytes ({stored})"

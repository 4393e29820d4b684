"""(Cluster)BaseModel documents, and the resolution of the model that a service serves.

OME's services refer to a model of the catalogue, KServe's describe theirs inline. Missing properties are derived, each
with a sentence in `BaseModel.reasons`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from pilotlight.catalogue.document_types import TYPES, byte_count, parameter_count, weights_size
from pilotlight.k8s.names import ANNOTATION_SIZE
from pilotlight.spec.field_types import child_path, read
from pilotlight.spec.problems import Problems
from pilotlight.spec.service import BaseModel, Catalogue, Component, Group, Reference, Service
from pilotlight.spec.yaml_nodes import Node
from pilotlight.wire.messages import suggestion
from pilotlight.wire.model_formats import by_name

Json = Any
FORMAT_OF_SCHEME: Final = {"hf": {"ome": "safetensors", "kserve": "huggingface"}}


def read_model(node: Node, problems: Problems, namespace: str = "default") -> BaseModel | None:
    """Read a model as far as its document is valid; None without a name."""
    document = read(node, TYPES.record("BaseModel"), problems) or {}
    if not (document.get("metadata") or {}).get("name"):
        return None
    size = (document.get("spec") or {}).get("modelParameterSize")
    if size and parameter_count(size) is None:
        path = "spec.modelParameterSize"
        spec = node.get("spec") or node
        location = (spec.get("modelParameterSize") or spec).location
        problems.error("PL213", location, path, f"= {size}, must be a count such as 7B or 560M")
    return model_from(document, node.location.file, namespace)


def model_from(document: Mapping[str, Json], origin: str, namespace: str = "default") -> BaseModel:
    """Return the internal form of a validated document."""
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    form, framework = spec.get("modelFormat") or {}, spec.get("modelFramework") or {}
    storage = spec.get("storage") or {}
    size, size_reason = _declared_size(document)
    guess, format_reason = ("", "") if form else guess_format(storage.get("storageUri", ""), "ome")
    if format_reason and not framework and storage.get("storageUri", "").startswith("hf://"):
        framework, format_reason = {"name": "transformers"}, f"{format_reason}, framework transformers likewise"
    kind, configuration = str(document["kind"]), spec.get("modelConfiguration")
    return BaseModel(
        name=metadata["name"], kind=kind, format=form.get("name", guess), format_version=str(form.get("version", "")),
        framework=framework.get("name", ""), framework_version=str(framework.get("version", "")),
        architecture=spec.get("modelArchitecture", ""), quantization=spec.get("quantization", ""),
        parameter_size=str(spec.get("modelParameterSize", "")), capabilities=tuple(spec.get("modelCapabilities") or ()),
        storage_uri=storage.get("storageUri", ""), storage=storage, size_bytes=size, origin=origin,
        namespace=metadata.get("namespace") or ("" if kind.startswith("Cluster") else namespace),
        disabled=bool(spec.get("disabled")),
        pipeline=spec.get("diffusionPipeline") or {}, guessed=bool(guess),
        reasons=tuple(reason for reason in (format_reason, size_reason) if reason),
        configuration=configuration if isinstance(configuration, Mapping) else {},
        max_tokens=spec.get("maxTokens") or 0,
    )  # fmt: skip


def _declared_size(document: Mapping[str, Json]) -> tuple[int, str]:
    """Return bytes and reason: from the annotation, else from parameter count and data type."""
    spec = document.get("spec") or {}
    declared = ((document.get("metadata") or {}).get("annotations") or {}).get(ANNOTATION_SIZE, "")
    if declared and byte_count(declared):
        return byte_count(declared) or 0, f"{declared}: annotation {ANNOTATION_SIZE}"
    config = spec.get("modelConfiguration")
    dtype = config.get("torch_dtype") or config.get("dtype") or "" if isinstance(config, Mapping) else ""
    return weights_size(str(spec.get("modelParameterSize", "")), spec.get("quantization", ""), str(dtype))


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Where KServe's LocalModelCache has a model: `claim` is a pvc:// URI, `name` kind and name of the document."""

    claim: str
    name: str
    origin: str


def matching_cache(uri: str, service: Service, caches: Iterable[Mapping[str, Json]]) -> ModelCache | None:
    """Return the cache that has a URI, or a folder above it, on the service's nodes; one of its namespace wins.

    Names of claims and folders are KServe's since 0.18: `CACHE-NODEGROUP`, `models/` and a hash of the source.
    """
    group = service.annotations.get("serving.kserve.io/nodegroup")
    if not uri or "serving.kserve.io/disable-localmodel" in service.annotations:
        return None
    for cache in sorted(caches, key=lambda each: each["kind"] == "LocalModelCache"):
        metadata, groups = cache["metadata"], cache["spec"].get("nodeGroups") or ()
        source = str(cache["spec"].get("sourceModelUri", ""))
        inside = uri.rstrip("/").removeprefix(source.rstrip("/"))
        reachable = (
            cache["kind"] == "LocalModelCache" or metadata.get("namespace", service.namespace) == service.namespace
        )
        covers = bool(source) and uri.startswith(source.rstrip("/")) and inside[:1] in ("", "/")
        if reachable and covers and groups and (group is None or group in groups):
            folder = f"models/{hashlib.sha256(source.encode()).hexdigest()[:16]}{inside}"
            claim = f"pvc://{metadata['name']}-{group or groups[0]}/{folder}"
            return ModelCache(claim, f"{cache['kind']} {metadata['name']}", str(cache.get("origin", "")))
    return None


def group_of(reference: Reference) -> Group:
    return "kserve" if reference.group == "serving.kserve.io" else "ome"


def reference_path(service: Service) -> str:
    """Return the path at which a service names its model."""
    return "spec.model.name" if service.group == "ome" else "spec.predictor.model.modelFormat"


def resolve_model(
    service: Service, catalogue: Catalogue, problems: Problems | None = None, component: Component | None = None
) -> BaseModel | None:
    """Return the model with format, size and storage filled in; None if the service names none or it does not exist.

    KServe's canaries have models of their own: `component` is the canary's, by default the predictor.
    """
    collector = problems if problems is not None else Problems()
    if service.model is not None:
        model = _referenced(service, service.model, catalogue, collector)
    else:
        model = _inline(service, component or service.components.get("predictor"), collector)
    return _with_declared_size(service, model, collector) if model is not None else None


def _referenced(service: Service, reference: Reference, catalogue: Catalogue, problems: Problems) -> BaseModel | None:
    path = "spec.model.name"
    if reference.kind == "FineTunedWeight":
        return _base_of_weights(service, reference, catalogue, problems)
    reachable = [model for model in catalogue.models if model.namespace in ("", service.namespace)]
    named = [model for model in reachable if model.name == reference.name]
    if not named:
        hint = suggestion(reference.name, tuple(model.name for model in reachable))
        hint = f"{hint} Else" if hint else ";"
        message = f"no model is called {reference.name}{hint} add its {reference.kind} document to the files"
        problems.error("PL210", service.location(path), path, message)
        return None
    of_kind = [model for model in named if model.kind == reference.kind]
    model = min(of_kind or named, key=lambda candidate: candidate.namespace == "")
    if model.disabled:
        message = f"model {model.name} is disabled; choose another or enable it"
        problems.error("PL211", service.location(path), path, message)
    return model


def _base_of_weights(
    service: Service, reference: Reference, catalogue: Catalogue, problems: Problems
) -> BaseModel | None:
    """Return the base model of directly referenced FineTunedWeights; plan/component_context.py adds the weights."""
    path, name = "spec.model.name", reference.name
    weights = next((each for each in catalogue.weights if each["metadata"]["name"] == name), None)
    if weights is None:
        message = f"unknown FineTunedWeight {name}; add its manifest to the files or --catalog"
        problems.error("PL309", service.location(path), path, message)
        return None
    base = weights["spec"].get("baseModelRef") or {}
    if not base.get("name"):
        message = f"FineTunedWeight {name} has no base model: set baseModelRef.name"
        problems.error("PL309", service.location(path), path, message)
        return None
    kind = "BaseModel" if base.get("namespace") else "ClusterBaseModel"
    return _referenced(service, replace(reference, name=base["name"], kind=kind), catalogue, problems)


def _inline(service: Service, component: Component | None, problems: Problems) -> BaseModel | None:
    """Return the model that a KServe predictor describes inline."""
    if component is None or component.model is None:
        return None
    spec = component.model
    model = BaseModel(
        name=service.name, kind="InferenceService", format=spec.format, format_version=spec.format_version,
        framework="*" if service.group == "ome" else "",  # OME's models name one, addresses do not
        storage_uri=spec.storage_uri, storage=spec.storage, namespace=service.namespace, origin="the service",
    )  # fmt: skip
    if model.format:
        return model
    where = model.storage_uri or str(model.storage.get("path", ""))
    guess, why = guess_format(where, service.group)
    if guess:
        return replace(model, format=guess, guessed=True, reasons=(*model.reasons, why))
    if spec.runtime:
        return None
    path = "spec.predictor.model.modelFormat.name"
    message = f"is missing and cannot be derived from {where!r}; set the format, such as onnx or sklearn"
    problems.error("PL212", service.location(path), path, message)
    return None


def guess_format(uri: str, group: Group) -> tuple[str, str]:
    """Derive a model's format from its URI, with the reason; ("", "") if unknown."""
    scheme, _, rest = uri.rpartition("://")
    ending = PurePosixPath(rest.split("?", 1)[0]).suffix.lower()
    if row := by_name(rest.split("?", 1)[0]):
        return row.name, f"format {row.name} because the address ends in {ending}"
    if scheme in FORMAT_OF_SCHEME:
        guess = FORMAT_OF_SCHEME[scheme][group]
        return guess, f"format {guess} because the address begins with {scheme}://"
    return "", ""


def _with_declared_size(service: Service, model: BaseModel, problems: Problems) -> BaseModel:
    declared = service.annotations.get(ANNOTATION_SIZE, "")
    if not declared:
        return model
    size = byte_count(declared)
    if size is None:
        path = child_path("metadata.annotations", ANNOTATION_SIZE)
        problems.error("PL213", service.location(path), path, f"= {declared}, must be a quantity of bytes such as 16Gi")
        return model
    return replace(model, size_bytes=size, reasons=(*model.reasons, f"{declared}: annotation {ANNOTATION_SIZE}"))

"""Score of one runtime for a model and component, or the reason why it is rejected. Pure.

Each entry of supportedModelFormats is compared property by property by the rules of OME or KServe: what only one side
has is a mismatch. Entries of our own runtimes may have `*`, which matches any value and none.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from pilotlight.catalogue.document_types import parameter_count
from pilotlight.catalogue.engine_programs import engine_of, missing_program
from pilotlight.catalogue.model_documents import reference_path
from pilotlight.catalogue.runtime_merge import node_engine
from pilotlight.contract import ENV_TRUST_PICKLE
from pilotlight.spec.field_types import child_path
from pilotlight.spec.service import BaseModel, Component, ModelSpec, Runtime, Service, SupportedFormat
from pilotlight.wire.model_formats import by_name, canonical_name

ANY: Final = "*"
# Formats whose files are pickles, unless they end in .skops.
PICKLED: Final = ("sklearn", "mlflow")
ANNOTATION_CLASS: Final = "ome.io/accelerator-class"
DEFAULT_PROTOCOL: Final = "v1"
_VERSION: Final = re.compile(r"(v?)(0|[1-9]\d*)(?:\.(0|[1-9]\d*))?(?:\.(0|[1-9]\d*)([.+-].+)?)?")
_GUESSED: Final = ("modelFormat.name", "modelFramework.name")
_PIPELINE_PARTS: Final = ("scheduler", "textEncoder", "tokenizer", "transformer", "vae")


class Mismatch(NamedTuple):
    """One mismatch. `unspecified`: the model's document lacks the property; OME would read it from the weights."""

    field: str
    message: str
    unspecified: bool = False


def mismatches(entry: SupportedFormat, model: BaseModel) -> tuple[Mismatch, ...]:
    """Return all mismatches, none if the entry fits. A guessed property counts as unspecified."""
    # Versions of different frameworks do not compare.
    same_framework = entry.framework not in ("", ANY) and entry.framework == model.framework
    offered = entry.framework_version if same_framework else ANY
    return tuple(
        mismatch._replace(unspecified=True) if model.guessed and mismatch.field in _GUESSED else mismatch
        for mismatch in (
            _name("format", "modelFormat.name", canonical_name(entry.name), canonical_name(model.format)),
            _version("format", "modelFormat.version", entry.version, model.format_version, entry.operator),
            _name("framework", "modelFramework.name", entry.framework, model.framework),
            _version("framework", "modelFramework.version", offered, model.framework_version, entry.framework_operator),
            _name("architecture", "modelArchitecture", entry.architecture, model.architecture),
            _name("quantization", "quantization", entry.quantization, model.quantization),
            _pipeline(entry.pipeline, model.pipeline),
        )
        if mismatch
    )


def _name(what: str, field: str, offered: str, wanted: str) -> Mismatch | None:
    if ANY in (offered, wanted) or offered == wanted:
        return None
    if not wanted:
        return Mismatch(field, f"the model has no {what}, the runtime requires {offered}", unspecified=True)
    if not offered:
        return Mismatch(field, f"the model has {what} {wanted}, the runtime lists none")
    return Mismatch(field, f"the model has {what} {wanted}, the runtime supports {offered}")


def _version(what: str, field: str, offered: str, wanted: str, operator: str) -> Mismatch | None:
    if offered in (ANY, wanted):
        return None
    if not wanted:
        message = f"the model has no {what} version, the runtime requires {offered}"
        return Mismatch(field, message, unspecified=True)
    if not offered:
        return Mismatch(field, f"the model has {what} version {wanted}, the runtime lists none")
    if version_fits(offered, wanted, operator):
        return None
    return Mismatch(field, f"the model has {what} version {wanted}, the runtime supports {operator} {offered}")


def version_fits(offered: str, wanted: str, operator: str = "Equal") -> bool:
    """Compare as OME does, the runtime's version on the left: `GreaterThanOrEqual 4.50` serves a model of 4.43.

    Development builds and different precision (4.43 against 4.43.0) compare only as equal.
    """
    left, right = _VERSION.fullmatch(offered), _VERSION.fullmatch(wanted)
    if left is None or right is None:
        return False
    ordered = [tuple(int(part or 0) for part in version.group(2, 3, 4)) for version in (left, right)]
    precisions = [sum(part is not None for part in version.group(2, 3, 4)) for version in (left, right)]
    if operator == "Equal" or left[5] or right[5]:
        return ordered[0] == ordered[1] and (left[5] or "") == (right[5] or "")
    if left[1] != right[1] or precisions[0] != precisions[1]:
        return False
    return ordered[0] > ordered[1] if operator == "GreaterThan" else ordered[0] >= ordered[1]


def size_mismatch(size_range: tuple[str, str] | None, size: str) -> Mismatch | None:
    """Return the mismatch of a parameter count outside the range. A model without a size fits, as in OME."""
    count = parameter_count(size) if size else None
    if size_range is None or count is None:
        return None
    least, most = (parameter_count(bound) for bound in size_range)
    if (least is None or least <= count) and (most is None or count <= most):
        return None
    bounds = " to ".join(bound or "any" for bound in size_range)
    return Mismatch("modelParameterSize", f"the model has {size} parameters, the runtime supports {bounds}")


def size_distance(size_range: tuple[str, str] | None, size: str) -> float:
    """Return how far the bounds lie from the model: the narrowest range wins a tie. 0 if either is not given."""
    count = parameter_count(size) if size else None
    if size_range is None or count is None:
        return 0.0
    return sum(abs(bound - count) for bound in map(parameter_count, size_range) if bound is not None)


def _pipeline(offered: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mismatch | None:
    """Compare diffusion pipelines: the model must have every part that the entry names."""
    if not offered:
        return None
    if not wanted:
        message = "the model has no diffusion pipeline, the runtime requires one"
        return Mismatch("diffusionPipeline", message, unspecified=True)
    if offered.get("className") and offered["className"] != wanted.get("className"):
        message = f"the model's pipeline is {wanted.get('className')}, the runtime supports {offered['className']}"
        return Mismatch("diffusionPipeline.className", message)
    required = {**offered.get("additionalComponents", {}), **{p: offered[p] for p in _PIPELINE_PARTS if offered.get(p)}}
    present = {**wanted.get("additionalComponents", {}), **{p: wanted[p] for p in _PIPELINE_PARTS if wanted.get(p)}}
    for part, needed in sorted(required.items()):
        had = present.get(part, {})
        if any(value and had.get(key) != value for key, value in needed.items()):
            return Mismatch(f"diffusionPipeline.{part}", f"the model's {part} does not match the runtime's")
    return None


class Objection(NamedTuple):
    """A reason against a runtime: problem code, path in the service's document ("": the reference), mismatch."""

    code: str
    path: str
    mismatch: Mismatch


@dataclass(frozen=True, slots=True)
class RuntimeHost:
    """What a target runs: any image, or our own predictor alone; on `local` also engines that are installed."""

    target: str = ""
    images: bool = True
    engines: frozenset[str] | None = None  # installed; None: not known

    def refusal(self, runtime: Runtime) -> str:
        """Return why the target cannot run a runtime; empty if it can."""
        if self.images or runtime.is_pilotlight:
            return ""
        if self.target == "local" and (engine := engine_of(runtime)):
            return "" if self.engines is None or engine in self.engines else missing_program(engine)
        return f"{self.target} runs only the Pilotlight predictor image"


ANY_HOST: Final = RuntimeHost()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One evaluated runtime. `score` is OME's sum or KServe's priority; 0 if rejected."""

    runtime: Runtime
    accepted: bool
    score: int
    reason: str
    format: SupportedFormat | None = None


def evaluate_runtime(
    runtime: Runtime, service: Service, component: Component, model: BaseModel | None, explicit: bool = False,
    host: RuntimeHost = ANY_HOST,
) -> Candidate:  # fmt: skip
    """Evaluate a runtime; a rejected one has the first reason. `explicit`: the service names it."""
    entry = _best_format(runtime, model, explicit)
    if runtime.disabled:
        return Candidate(runtime, False, 0, "it is disabled", entry)
    reasons = [objection.mismatch for objection in objections(entry, runtime, service, component, model)]
    hard = next((mismatch for mismatch in reasons if not (explicit and mismatch.unspecified)), None)
    if hard is not None:
        return Candidate(runtime, False, 0, hard.message, entry)
    if explicit:
        return Candidate(runtime, True, _score(runtime, entry), "it is named by the service", entry)
    # A host that runs only our predictor has no other runtime for a format without autoSelect.
    if entry is None or not (entry.auto_select or (runtime.is_pilotlight and not host.images)):
        return Candidate(runtime, False, 0, "autoSelect is off; it must be set explicitly", entry)
    pickles = runtime.is_pilotlight and host.images
    if refusal := host.refusal(runtime) or (_pickle_refusal(component, model) if pickles else ""):
        return Candidate(runtime, False, 0, refusal, entry)
    score = _score(runtime, entry)
    what = entry.name if entry.version in ("", ANY) else f"{entry.name} {entry.version}".strip()
    reason = f"serves {what}, {'score' if runtime.group == 'ome' else 'priority'} {score}"
    return Candidate(runtime, True, score, reason, entry)


def _pickle_refusal(component: Component, model: BaseModel | None) -> str:
    """Return why our predictor leaves a model that may be a pickle to runtimes that load any; empty if it does not."""
    if model is None or canonical_name(model.format) not in PICKLED or model.storage_uri.endswith(".skops"):
        return ""
    containers = [component.runner or {}, *component.pod.get("containers", ())]
    containers += [component.model.container] if component.model is not None else []
    if any(variable.get("name") == ENV_TRUST_PICKLE for each in containers for variable in each.get("env") or ()):
        return ""
    return f"the model may be a pickle, which it loads only by its SHA-256: set {ENV_TRUST_PICKLE} in env, or name it"


def _best_format(runtime: Runtime, model: BaseModel | None, explicit: bool) -> SupportedFormat | None:
    """Return the format that serves the model with the highest score, else the closest one."""
    if model is None:
        return None

    def nearness(entry: SupportedFormat) -> tuple[object, ...]:
        reasons = _format_mismatches(runtime, entry, model)
        hard = sum(not (explicit and mismatch.unspecified) for mismatch in reasons)
        wrong_name = any(mismatch.field == "modelFormat.name" for mismatch in reasons)
        return (hard > 0, wrong_name, not (entry.auto_select or explicit), hard, len(reasons), -_score(runtime, entry))

    return min(runtime.formats, key=nearness, default=None)


def _format_mismatches(runtime: Runtime, entry: SupportedFormat, model: BaseModel) -> tuple[Mismatch, ...]:
    if runtime.group == "ome":
        return mismatches(entry, model)
    if canonical_name(entry.name) != canonical_name(model.format):
        message = f"the model has format {model.format}, the runtime supports {entry.name}"
        return (Mismatch("modelFormat.name", message, unspecified=model.guessed),)
    if model.format_version and model.format_version != entry.version != ANY:
        served = entry.version or "none"
        message = f"the model has {entry.name} version {model.format_version}, the runtime supports {served}"
        return (Mismatch("modelFormat.version", message),)
    return ()


def _score(runtime: Runtime, entry: SupportedFormat | None) -> int:
    """Return OME's weight × priority over format and framework, or KServe's priority of the format's first entry."""
    if entry is None:
        return 0
    if runtime.group == "ome":
        framework = entry.framework_weight if entry.framework else 0
        return (entry.format_weight + framework) * max(entry.priority, 1)
    return next((other.priority for other in runtime.formats if other.name == entry.name), 0)


def objections(
    entry: SupportedFormat | None, runtime: Runtime, service: Service, component: Component, model: BaseModel | None
) -> Iterable[Objection]:
    if model is not None:
        path = reference_path(service)
        if entry is None:
            yield Objection("PL222", path, Mismatch("supportedModelFormats", "the runtime lists no model format"))
        else:
            yield from (Objection("PL222", path, mismatch) for mismatch in _format_mismatches(runtime, entry, model))
        if mismatch := size_mismatch(runtime.size_range, model.parameter_size):
            yield Objection("PL222", path, mismatch)
    yield from _deployment_objections(runtime, service, component)


def _deployment_objections(runtime: Runtime, service: Service, component: Component) -> Iterable[Objection]:
    if component.model is not None and runtime.group == "kserve":
        yield from _kserve_objections(runtime, component, component.model)
    if runtime.group == "ome" and service.runtime is None:
        yield from _topology_objections(runtime, service, component)
    offered = runtime.accelerators.get("acceleratorClasses", [])
    for path, name in _requested_classes(service):
        if ANY not in offered and name not in offered:
            supported = ", ".join(offered) or "none"
            message = f"the service requires accelerator class {name}, the runtime supports {supported}"
            yield Objection("PL227", path, Mismatch("acceleratorClasses", message))


def _topology_objections(runtime: Runtime, service: Service, component: Component) -> Iterable[Objection]:
    """Check decoder and workers. OME itself would choose a runtime without a container for them."""
    decoder = service.components.get("decoder")
    if decoder is not None and not runtime.decoder and not brings_image(decoder):
        message = "the service has a decoder, the runtime has no decoderConfig"
        yield Objection("PL226", "spec.decoder", Mismatch("decoderConfig", message))
    if decoder is None and runtime.decoder:
        message = "it separates prefill and decode, the service has no decoder"
        yield Objection("PL226", "", Mismatch("decoderConfig", message))
    groups = [group for group in (component.leader, component.worker) if group is not None]
    for_nodes = is_for_nodes(runtime) or node_engine(runtime.engine.get("runner") or {})
    if groups and not for_nodes and not any((group.runner or {}).get("image") for group in groups):
        message = "the service has workers, the runtime has none and is neither SGLang nor `vllm serve`"
        yield Objection("PL225", f"spec.{component.role}.worker", Mismatch("engineConfig", message))


def is_for_nodes(runtime: Runtime) -> bool:
    """Return whether an OME runtime configures the leader or worker of a multi-node engine."""
    return bool({"leader", "worker"} & runtime.engine.keys())


def brings_image(component: Component) -> bool:
    """Return whether the component has a container image of its own."""
    containers = [*component.pod.get("containers", []), component.runner or {}]
    return any(container.get("image") for container in containers)


def _kserve_objections(runtime: Runtime, component: Component, model: ModelSpec) -> Iterable[Objection]:
    protocol = model.protocol or ("" if model.runtime else DEFAULT_PROTOCOL)
    if protocol and runtime.protocols and protocol not in runtime.protocols:
        path = f"spec.{component.role}.model.protocolVersion"
        spoken = ", ".join(runtime.protocols)
        message = f"protocol {protocol} is required, the runtime supports {spoken}"
        yield Objection("PL223", path, Mismatch("protocolVersions", message))
    ending = PurePosixPath(model.storage_uri).suffix
    if runtime.server_type == "torchserve" and ending != ".mar" and by_name(model.storage_uri) is not None:
        message = f"TorchServe reads folders of .mar archives, the storageUri ends in {ending}"
        yield Objection("PL222", "", Mismatch("storageUri", message))
    if runtime.multi_model:
        message = "it is for ModelMesh"
        yield Objection("PL222", "", Mismatch("multiModel", message))
    if bool(runtime.workers) != (component.worker is not None) and not (model.runtime and component.worker is None):
        message = "it is for several nodes" if runtime.workers else "the service has workers, it has no workerSpec"
        yield Objection("PL225", f"spec.{component.role}.workerSpec", Mismatch("workerSpec", message))


def _requested_classes(service: Service) -> list[tuple[str, str]]:
    """Return (path, name) of the accelerator classes that annotation, service and components name."""
    selectors = {"spec.acceleratorSelector": service.accelerator}
    selectors |= {f"spec.{role}.acceleratorOverride": each.accelerator for role, each in service.components.items()}
    requests = [(child_path("metadata.annotations", ANNOTATION_CLASS), service.annotations.get(ANNOTATION_CLASS))]
    requests += [(f"{path}.acceleratorClass", (each or {}).get("acceleratorClass")) for path, each in selectors.items()]
    return [(path, name) for path, name in requests if name]

"""One runtime against one model and component: taken with a score, or passed over with the reason. Pure.

select.py asks for every runtime of the catalogue, or for the one that a service names. OME and KServe differ in what
they compare; what each asks is in `_line_mismatches` and `_kserve_objections`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from pilotlight.spec.fit import ANY, Mismatch, mismatches, size_mismatch
from pilotlight.spec.model import BaseModel, Component, ModelSpec, Runtime, Service, SupportedFormat
from pilotlight.spec.models import reference_path
from pilotlight.spec.paths import under

ANNOTATION_CLASS: Final = "ome.io/accelerator-class"
DEFAULT_PROTOCOL: Final = "v1"


class Objection(NamedTuple):
    """What stands against a runtime: a problem's code and the path in the service's document ("": the reference)."""

    code: str
    path: str
    mismatch: Mismatch


@dataclass(frozen=True, slots=True)
class Candidate:
    """One runtime that was looked at. `score` is OME's sum or KServe's priority; 0 where it was passed over."""

    runtime: Runtime
    accepted: bool
    score: int
    reason: str
    format: SupportedFormat | None = None


def judge(
    runtime: Runtime, service: Service, component: Component, model: BaseModel | None, explicit: bool = False
) -> Candidate:
    """One runtime against the model: taken with a score, or passed over with the first reason why."""
    line = _best_line(runtime, model, explicit)
    if runtime.disabled:
        return Candidate(runtime, False, 0, "it is disabled", line)
    found = [objection.mismatch for objection in objections(line, runtime, service, component, model)]
    hard = next((mismatch for mismatch in found if not (explicit and mismatch.unsaid)), None)
    if hard is not None:
        return Candidate(runtime, False, 0, hard.message, line)
    if explicit:
        return Candidate(runtime, True, _score(runtime, line), "it is named by the service", line)
    if line is None or not line.auto_select:
        return Candidate(runtime, False, 0, "autoSelect is off; it must be named to be used", line)
    score = _score(runtime, line)
    return Candidate(runtime, True, score, _praise(runtime, line, score), line)


def _best_line(runtime: Runtime, model: BaseModel | None, explicit: bool) -> SupportedFormat | None:
    """The line that serves the model, the highest score first; without one, that which comes nearest."""
    if model is None:
        return None

    def nearness(line: SupportedFormat) -> tuple[object, ...]:
        found = _line_mismatches(runtime, line, model)
        hard = sum(not (explicit and mismatch.unsaid) for mismatch in found)
        wrong_name = any(mismatch.field == "modelFormat.name" for mismatch in found)
        return (hard > 0, wrong_name, not (line.auto_select or explicit), hard, len(found), -_score(runtime, line))

    return min(runtime.formats, key=nearness, default=None)


def _line_mismatches(runtime: Runtime, line: SupportedFormat, model: BaseModel) -> tuple[Mismatch, ...]:
    if runtime.group == "ome":
        return mismatches(line, model)
    if line.name != model.format:
        message = f"the model has format {model.format}, the runtime serves {line.name}"
        return (Mismatch("modelFormat.name", message, unsaid=model.guessed),)
    if model.format_version and model.format_version != line.version != ANY:
        served = line.version or "none"
        message = f"the model has {line.name} version {model.format_version}, the runtime serves {served}"
        return (Mismatch("modelFormat.version", message),)
    return ()


def _score(runtime: Runtime, line: SupportedFormat | None) -> int:
    """OME: weight × priority over format and framework. KServe: the priority of the format's first line; 0 is none."""
    if line is None:
        return 0
    if runtime.group == "ome":
        framework = line.framework_weight if line.framework else 0
        return (line.format_weight + framework) * max(line.priority, 1)
    return next((other.priority for other in runtime.formats if other.name == line.name), 0)


def _praise(runtime: Runtime, line: SupportedFormat, score: int) -> str:
    what = " ".join(part for part in (line.name, line.version if line.version != ANY else "") if part)
    return f"serves {what}, {'score' if runtime.group == 'ome' else 'priority'} {score}"


def objections(
    line: SupportedFormat | None, runtime: Runtime, service: Service, component: Component, model: BaseModel | None
) -> Iterable[Objection]:
    """Everything that stands against a runtime: code, path in the service's document ("": the reference), sentence."""
    if model is not None:
        path = reference_path(service)
        if line is None:
            yield Objection("PL222", path, Mismatch("supportedModelFormats", "the runtime names no model format"))
        else:
            yield from (Objection("PL222", path, found) for found in _line_mismatches(runtime, line, model))
        if found := size_mismatch(runtime.size_range, model.parameter_size):
            yield Objection("PL222", path, found)
    yield from _deployment_objections(runtime, service, component)


def _deployment_objections(runtime: Runtime, service: Service, component: Component) -> Iterable[Objection]:
    if component.model is not None and runtime.group == "kserve":
        yield from _kserve_objections(runtime, component, component.model)
    if runtime.group == "ome" and service.runtime is None:
        yield from _shape_objections(runtime, service, component)
    offered = runtime.accelerators.get("acceleratorClasses", [])
    for path, name in _demanded_classes(service):
        if ANY not in offered and name not in offered:
            supported = ", ".join(offered) or "none"
            message = f"the service asks for accelerator class {name}, the runtime supports {supported}"
            yield Objection("PL227", path, Mismatch("acceleratorClasses", message))


def _shape_objections(runtime: Runtime, service: Service, component: Component) -> Iterable[Objection]:
    """Beyond OME, which would choose a runtime that has no container for the decoder or the workers asked for."""
    decoder = service.components.get("decoder")
    if decoder is not None and not runtime.decoder and not brings_image(decoder):
        message = "the service has a decoder, the runtime has no decoderConfig"
        yield Objection("PL226", "spec.decoder", Mismatch("decoderConfig", message))
    if decoder is None and runtime.decoder:
        message = "it runs prefill and decode apart, the service has no decoder"
        yield Objection("PL226", "", Mismatch("decoderConfig", message))
    groups = [group for group in (component.leader, component.worker) if group is not None]
    for_nodes = {"leader", "worker"} & runtime.engine.keys()
    if groups and not for_nodes and not any((group.runner or {}).get("image") for group in groups):
        message = "the service asks for workers, the runtime is for one node"
        yield Objection("PL225", f"spec.{component.role}.worker", Mismatch("engineConfig", message))


def brings_image(component: Component) -> bool:
    """Is the component's container complete in itself?"""
    containers = [*component.pod.get("containers", []), component.runner or {}]
    return any(container.get("image") for container in containers)


def _kserve_objections(runtime: Runtime, component: Component, model: ModelSpec) -> Iterable[Objection]:
    protocol = model.protocol or ("" if model.runtime else DEFAULT_PROTOCOL)
    if protocol and runtime.protocols and protocol not in runtime.protocols:
        path = f"spec.{component.role}.model.protocolVersion"
        spoken = ", ".join(runtime.protocols)
        message = f"protocol {protocol} is asked for, the runtime speaks {spoken}"
        yield Objection("PL223", path, Mismatch("protocolVersions", message))
    if runtime.multi_model:
        message = "it is for ModelMesh, which shares one runtime among models"
        yield Objection("PL222", "", Mismatch("multiModel", message))
    if bool(runtime.workers) != (component.worker is not None) and not (model.runtime and component.worker is None):
        message = "it is for several nodes" if runtime.workers else "the service asks for workers, it has no workerSpec"
        yield Objection("PL225", f"spec.{component.role}.workerSpec", Mismatch("workerSpec", message))


def _demanded_classes(service: Service) -> list[tuple[str, str]]:
    """Accelerator classes that the service names, with the place of each: annotation, service, component."""
    demands = [(under("metadata.annotations", ANNOTATION_CLASS), service.annotations.get(ANNOTATION_CLASS))]
    demands.append(("spec.acceleratorSelector.acceleratorClass", (service.accelerator or {}).get("acceleratorClass")))
    for role, component in service.components.items():
        path = f"spec.{role}.acceleratorOverride.acceleratorClass"
        demands.append((path, (component.accelerator or {}).get("acceleratorClass")))
    return [(path, name) for path, name in demands if name]

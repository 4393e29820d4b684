"""Selection of a component's runtime by OME's scoring or KServe's rules, after the service's API group. Pure.

Every runtime of the group is among the candidates with the sentence that `explain --runtime` prints. The result does
not depend on the order of the catalogue.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from pilotlight.catalogue.model_documents import group_of, reference_path, resolve_model
from pilotlight.catalogue.runtime_score import (
    ANY_HOST,
    Candidate,
    RuntimeHost,
    brings_image,
    evaluate_runtime,
    is_for_nodes,
    objections,
    size_distance,
)
from pilotlight.spec.problems import Problem, Problems
from pilotlight.spec.service import BaseModel, Catalogue, Component, Group, Runtime, Service, SupportedFormat
from pilotlight.wire.messages import suggestion

# Breaks ties, the first wins: KServe prefers the protocol of its defaults.
PROTOCOL_ORDER: Final = ("v1", "v2", "grpc-v1", "grpc-v2")


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected runtime, and the candidates, best first. `problems` explain a missing runtime that is required."""

    runtime: Runtime | None
    format: SupportedFormat | None
    candidates: tuple[Candidate, ...] = ()
    model: BaseModel | None = None
    problems: tuple[Problem, ...] = ()
    reason: str = ""


def select_runtime(
    service: Service, component: Component, catalogue: Catalogue, host: RuntimeHost = ANY_HOST
) -> Selection:
    """Select the named runtime after validating it, else the best that fits and that the host runs, else none.

    Engine, decoder and router share one runtime: a selection for one of them reports every problem.
    """
    problems = Problems()
    if component.role in ("transformer", "explainer"):
        return Selection(None, None, reason=f"the {component.role} has its own container")
    model = resolve_model(service, catalogue, problems, component)
    name = component.model.runtime if component.model is not None else ""
    if service.runtime is not None:
        name = service.runtime.name
    if name:
        selection = _validate_named(name, service, component, model, catalogue, problems)
    elif model is None:
        selection = _without_model(service, component, problems)
    else:
        selection = _select_best(service, component, model, catalogue, host, problems)
    return replace(selection, model=model, problems=tuple(problems.items))


def _validate_named(
    name: str, service: Service, component: Component, model: BaseModel | None, catalogue: Catalogue, problems: Problems
) -> Selection:
    path = "spec.runtime.name" if service.runtime else f"spec.{component.role}.model.runtime"
    location = service.location(path)
    reachable = _reachable(service, catalogue)
    same_name = [runtime for runtime in reachable if runtime.name == name]
    of_kind = [runtime for runtime in same_name if service.runtime is not None and runtime.kind == service.runtime.kind]
    # Namespaced before cluster-wide, as in both projects.
    named = min(of_kind or same_name, key=lambda runtime: runtime.namespace == "", default=None)
    if named is None:
        hint = suggestion(name, tuple(runtime.name for runtime in reachable))
        hint = f"{hint} Else" if hint else ";"
        message = f"unknown runtime {name}{hint} add its manifest to the files or with --catalog"
        problems.error("PL220", location, path, message)
        return Selection(None, None)
    candidate = evaluate_runtime(named, service, component, model, explicit=True)
    if named.disabled:
        problems.error("PL221", location, path, f"runtime {name} is disabled; choose another or enable it")
    reasons = list(objections(candidate.format, named, service, component, model))
    for code, field, mismatch in (objection for objection in reasons if not objection.mismatch.unspecified):
        where = field or path
        problems.error(code, service.location(where), where, f"runtime {name} does not fit: {mismatch.message}")
    unsaid = ", ".join(objection.mismatch.field for objection in reasons if objection.mismatch.unspecified)
    if unsaid:
        message = f"runtime {name} cannot be checked: the model's manifest does not set {unsaid}"
        problems.warn("PL229", location, path, message)
    return Selection(named, candidate.format, (candidate,), reason=f"set in {path}")


def _reachable(service: Service, catalogue: Catalogue) -> list[Runtime]:
    """Return the runtimes of the service's API group in its namespace or cluster-wide."""
    group: Group = group_of(service.runtime) if service.runtime is not None else service.group
    return [
        runtime
        for runtime in catalogue.runtimes
        if runtime.group == group and runtime.namespace in ("", service.namespace)
    ]


def _without_model(service: Service, component: Component, problems: Problems) -> Selection:
    """Select nothing for a component with an image of its own; anything else is an error (PL228)."""
    if problems.errors:
        return Selection(None, None)
    if brings_image(component) or component.role == "router":
        return Selection(None, None, reason="the component has its own container")
    path = f"spec.{component.role}"
    message = f"has neither a model nor a runtime; add {reference_path(service)} or an image to {path}"
    problems.error("PL228", service.location(path), path, message)
    return Selection(None, None)


def _select_best(
    service: Service, component: Component, model: BaseModel, catalogue: Catalogue, host: RuntimeHost,
    problems: Problems,
) -> Selection:  # fmt: skip
    runtimes = _reachable(service, catalogue)
    candidates = [evaluate_runtime(runtime, service, component, model, host=host) for runtime in runtimes]
    rank = _rank(service, component, model)
    ordered = sorted(candidates, key=lambda candidate: (not candidate.accepted, *rank(candidate)))
    best = next((candidate for candidate in ordered if candidate.accepted), None)
    if best is not None:
        return Selection(best.runtime, best.format, tuple(ordered), reason=best.reason)
    if brings_image(component):
        return Selection(None, None, tuple(ordered), reason="no runtime fits; the component has its own container")
    path = reference_path(service)
    runtime_path = "spec.runtime.name" if service.group == "ome" else "spec.predictor.model.runtime"
    properties = {
        "format": f"{model.format} {model.format_version}".strip(), "framework": model.framework,
        "architecture": model.architecture, "quantization": model.quantization, "size": model.parameter_size,
    }  # fmt: skip
    described = ", ".join(f"{what} {value}" for what, value in properties.items() if value) or f"model {model.name}"
    subject, remedy = _misfit(ordered, service, component, model, host) or ("no runtime serves {}", "")
    served = sorted({entry.name for runtime in runtimes for entry in runtime.formats} - {model.format})
    near = "" if remedy else suggestion(model.format, tuple(served))
    remedy = f"{near} Else" if near else f"; {remedy or f'name one in {runtime_path}'}, or"
    message = f"{subject.format(described)}{remedy} see explain --runtime"
    problems.error("PL224", service.location(path), path, message)
    return Selection(None, None, tuple(ordered))


def _misfit(
    candidates: list[Candidate], service: Service, component: Component, model: BaseModel, host: RuntimeHost
) -> tuple[str, str] | None:
    """Return what keeps a runtime of the model's format from serving it here, workers or the target, and a remedy."""
    for candidate in candidates:
        runtime = candidate.runtime
        reasons = list(objections(candidate.format, runtime, service, component, model))
        if candidate.format is None or not candidate.format.auto_select or runtime.disabled:
            continue
        if reasons and all(reason.code in ("PL223", "PL225", "PL226") for reason in reasons):
            return f"{runtime.name} serves {{}}, but {reasons[0].mismatch.message}", ""
        if not reasons and (refusal := host.refusal(runtime)):
            return f"{runtime.name} serves {{}}, but {refusal}", "use --target kubernetes or docker"
    return None


def _rank(service: Service, component: Component, model: BaseModel) -> Callable[[Candidate], tuple[object, ...]]:
    """Return the sort key of candidates. Namespaced runtimes rank first in both projects, whatever their score.

    Runtimes made for several nodes rank before those that get their ranks by flags.
    """

    def rank(candidate: Candidate) -> tuple[object, ...]:
        runtime = candidate.runtime
        if service.group == "ome":
            tie_break = size_distance(runtime.size_range, model.parameter_size)
        else:
            known = [PROTOCOL_ORDER.index(protocol) for protocol in runtime.protocols if protocol in PROTOCOL_ORDER]
            tie_break = min(known, default=len(PROTOCOL_ORDER))
        single = component.worker is not None and not is_for_nodes(runtime)
        return (single, runtime.namespace == "", -candidate.score, tie_break, runtime.name, runtime.kind)

    return rank

"""Which runtime serves a component: OME's scoring or KServe's rules, after the service's API group. Pure.

Takes the service and the merged catalogue; plan() takes the Selection. Every runtime of the group appears among the
candidates with the one sentence that `explain --runtime` prints. The outcome does not depend on the catalogue's order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pilotlight.spec.fit import size_distance
from pilotlight.spec.judge import Candidate, brings_image, judge, objections
from pilotlight.spec.model import BaseModel, Catalogue, Component, Group, Runtime, Service, SupportedFormat
from pilotlight.spec.models import group_of, reference_path, resolve_model
from pilotlight.spec.problems import Problem, Problems
from pilotlight.spec.types import suggestion

# Lower goes first among equals; KServe prefers the protocol that its defaults speak.
PROTOCOL_ORDER: Final = ("v1", "v2", "grpc-v1", "grpc-v2")


@dataclass(frozen=True, slots=True)
class Selection:
    """The outcome: accepted candidates first, best first. `problems` says why `runtime` is None, if it must not be."""

    runtime: Runtime | None
    format: SupportedFormat | None
    candidates: tuple[Candidate, ...] = ()
    model: BaseModel | None = None
    problems: tuple[Problem, ...] = ()
    reason: str = ""


def select_runtime(service: Service, component: Component, catalogue: Catalogue) -> Selection:
    """The runtime of a component: the one that is named, validated; else the best that fits; else None.

    Engine, decoder and router share one: asking for one of them tells every problem.
    """
    problems = Problems()
    if component.role in ("transformer", "explainer"):
        return Selection(None, None, reason=f"the {component.role} brings its own container")
    model = resolve_model(service, catalogue, problems, component)
    name = _named_runtime(service, component)
    if name:
        selection = _explicit(name, service, component, model, catalogue, problems)
    elif model is None:
        selection = _without_model(service, component, problems)
    else:
        selection = _automatic(service, component, model, catalogue, problems)
    return Selection(
        selection.runtime, selection.format, selection.candidates, model, tuple(problems.found), selection.reason
    )


def _named_runtime(service: Service, component: Component) -> str:
    if service.runtime is not None:
        return service.runtime.name
    return component.model.runtime if component.model is not None else ""


def _explicit(
    name: str, service: Service, component: Component, model: BaseModel | None, catalogue: Catalogue, problems: Problems
) -> Selection:
    path = "spec.runtime.name" if service.runtime else f"spec.{component.role}.model.runtime"
    place = service.place(path)
    named = _lookup(name, service, catalogue)
    if named is None:
        hint = suggestion(name, tuple(runtime.name for runtime in _reachable(service, catalogue)))
        hint = f"{hint} Else" if hint else ";"
        message = f"no runtime is called {name}{hint} add its document to the files or with --catalog"
        problems.error("PL220", place, path, message)
        return Selection(None, None)
    candidate = judge(named, service, component, model, explicit=True)
    if named.disabled:
        problems.error("PL221", place, path, f"runtime {name} is disabled; choose another or enable it")
    found = list(objections(candidate.format, named, service, component, model))
    for code, field, mismatch in (objection for objection in found if not objection.mismatch.unsaid):
        where = field or path
        problems.error(code, service.place(where), where, f"runtime {name} does not fit: {mismatch.message}")
    unsaid = ", ".join(objection.mismatch.field for objection in found if objection.mismatch.unsaid)
    if unsaid:
        message = f"runtime {name} cannot be checked: the model's document does not say {unsaid}"
        problems.warn("PL229", place, path, message)
    return Selection(named, candidate.format, (candidate,), reason=f"{path} names it")


def _lookup(name: str, service: Service, catalogue: Catalogue) -> Runtime | None:
    """Namespaced before cluster-wide, as both projects look it up; an explicit kind is obeyed."""
    found = [runtime for runtime in _reachable(service, catalogue) if runtime.name == name]
    kind = service.runtime.kind if service.runtime is not None else ""
    of_kind = [runtime for runtime in found if runtime.kind == kind]
    return min(of_kind or found, key=lambda runtime: runtime.namespace == "", default=None)


def _reachable(service: Service, catalogue: Catalogue) -> list[Runtime]:
    """Runtimes of the service's API group that it may see: its own namespace's, and the cluster's."""
    group: Group = group_of(service.runtime) if service.runtime is not None else service.group
    return [
        runtime
        for runtime in catalogue.runtimes
        if runtime.group == group and runtime.namespace in ("", service.namespace)
    ]


def _without_model(service: Service, component: Component, problems: Problems) -> Selection:
    """No model and no runtime is named: then the container must be complete in itself."""
    if problems.errors:
        return Selection(None, None)
    if brings_image(component) or component.role == "router":
        return Selection(None, None, reason="the component brings its own container")
    path = f"spec.{component.role}"
    message = f"names neither a model nor a runtime; add {reference_path(service)} or an image to {path}"
    problems.error("PL228", service.place(path), path, message)
    return Selection(None, None)


def _automatic(
    service: Service, component: Component, model: BaseModel, catalogue: Catalogue, problems: Problems
) -> Selection:
    judged = [judge(runtime, service, component, model) for runtime in _reachable(service, catalogue)]
    rank = _rank(service, model)
    ordered = sorted(judged, key=lambda candidate: (not candidate.accepted, *rank(candidate)))
    best = next((candidate for candidate in ordered if candidate.accepted), None)
    if best is not None:
        return Selection(best.runtime, best.format, tuple(ordered), reason=best.reason)
    if brings_image(component):
        return Selection(None, None, tuple(ordered), reason="no runtime fits; the component brings its own container")
    path = reference_path(service)
    message = f"no runtime serves {_described(model)}; name one in {_runtime_path(service)}, or see explain --runtime"
    problems.error("PL224", service.place(path), path, message)
    return Selection(None, None, tuple(ordered))


def _rank(service: Service, model: BaseModel) -> Callable[[Candidate], tuple[object, ...]]:
    """The order among the accepted. The namespace's own come first in both projects, whatever their score."""

    def ome(candidate: Candidate) -> tuple[object, ...]:
        runtime = candidate.runtime
        distance = size_distance(runtime.size_range, model.parameter_size)
        return (runtime.namespace == "", -candidate.score, distance, runtime.name, runtime.kind)

    def kserve(candidate: Candidate) -> tuple[object, ...]:
        runtime = candidate.runtime
        return (runtime.namespace == "", -candidate.score, _protocol_rank(runtime), runtime.name, runtime.kind)

    return ome if service.group == "ome" else kserve


def _protocol_rank(runtime: Runtime) -> int:
    known = [PROTOCOL_ORDER.index(protocol) for protocol in runtime.protocols if protocol in PROTOCOL_ORDER]
    return min(known, default=len(PROTOCOL_ORDER))


def _runtime_path(service: Service) -> str:
    return "spec.runtime.name" if service.group == "ome" else "spec.predictor.model.runtime"


def _described(model: BaseModel) -> str:
    told = {
        "format": f"{model.format} {model.format_version}".strip(), "framework": model.framework,
        "architecture": model.architecture, "quantization": model.quantization, "size": model.parameter_size,
    }  # fmt: skip
    return ", ".join(f"{what} {value}" for what, value in told.items() if value) or f"model {model.name}"

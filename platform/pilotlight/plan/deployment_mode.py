"""Deployment mode of each component, by the rules of the document's project.

OME: the component's annotation, then leader and worker, then minReplicas 0. KServe: the service's annotation, then the
cluster's default.
"""

from collections.abc import Mapping
from typing import Final

from pilotlight.plan import document_annotations
from pilotlight.plan.types import Capabilities, DecisionLog, Mode, field_path
from pilotlight.spec.service import Component, Role, Service

# Values of the deploymentMode annotation in both projects. PDDisaggregated follows from engine + decoder.
MODE_NAMES: Final[Mapping[str, Mode]] = {
    "RawDeployment": "raw",
    "Standard": "raw",
    "Serverless": "serverless",
    "Knative": "serverless",
    "MultiNode": "multi-node",
    "MultiNodeRayVLLM": "multi-node",
    "Stateful": "stateful",
    "VirtualDeployment": "virtual",
}
RAY: Final = "MultiNodeRayVLLM"
DISAGGREGATED: Final = "PDDisaggregated"


def decide_modes(service: Service, capabilities: Capabilities, log: DecisionLog) -> dict[Role, Mode]:
    """Return the mode of each component; record it with its reason."""
    if service.group == "ome":
        chosen = _ome_modes(service, log)
    else:
        main = next(iter(service.components.values()))
        explicit = _mode_from_annotation(main, service.annotations, "metadata.annotations", log)
        general = explicit or (capabilities.default_mode, "default mode")
        chosen = {role: _kserve_mode(component, *general, log) for role, component in service.components.items()}
    for role, (mode, reason) in chosen.items():
        log.decide(role, "mode", mode, reason)
        _check_available(service.components[role], mode, reason, capabilities, log)
    return {role: mode for role, (mode, _) in chosen.items()}


def service_mode(modes: Mapping[Role, Mode]) -> str:
    """Return the mode of the whole service, as `explain` shows it."""
    if "decoder" in modes:
        return "disaggregated"
    return modes.get("engine") or modes.get("predictor") or next(iter(modes.values()), "virtual")


def wants_ray(service: Service, component: Component) -> bool:
    return document_annotations.lookup(service, component, *document_annotations.DEPLOYMENT_MODE)[1] == RAY


def _ome_modes(service: Service, log: DecisionLog) -> dict[Role, tuple[Mode, str]]:
    if service.annotations.get(document_annotations.DEPLOYMENT_MODE[0]) == "VirtualDeployment":
        reason = "metadata.annotations ome.io/deploymentMode = VirtualDeployment"
        return dict.fromkeys(service.components, ("virtual", reason))
    modes = {role: _ome_mode(service, component, log) for role, component in service.components.items()}
    _check_service_annotation(service, modes, log)
    return modes


def _ome_mode(service: Service, component: Component, log: DecisionLog) -> tuple[Mode, str]:
    role = component.role
    explicit = _mode_from_annotation(component, component.annotations, field_path(component, "annotations"), log)
    if explicit and role != "decoder":
        return _raw_with_decoder(service, component, *explicit)
    if component.leader or component.worker:
        return "multi-node", f"{role}.{'worker' if component.worker else 'leader'} is set"
    if role == "decoder":
        return "raw", "a decoder without leader or worker is a Deployment"
    if component.min_replicas == 0:
        return _raw_with_decoder(service, component, "serverless", f"{role}.minReplicas = 0")
    return "raw", f"{role}.minReplicas = {component.min_replicas or 1}, and no annotation overrides it"


def _raw_with_decoder(service: Service, component: Component, mode: Mode, reason: str) -> tuple[Mode, str]:
    """Replace serverless by raw for an engine with a decoder: they connect by address, not through an activator."""
    if component.role == "engine" and mode == "serverless" and "decoder" in service.components:
        return "raw", f"{reason}, but an engine with a decoder is never serverless"
    return mode, reason


def _check_service_annotation(service: Service, modes: dict[Role, tuple[Mode, str]], log: DecisionLog) -> None:
    """Warn about a service annotation without effect: OME's webhook writes it, its controller ignores it."""
    key = document_annotations.DEPLOYMENT_MODE[0]
    written = service.annotations.get(key, "")
    decided = modes.get("engine", ("raw", ""))[0]
    if written and written != DISAGGREGATED and MODE_NAMES.get(written) != decided:
        message = f"{written} has no effect and the engine is {decided}; set it in spec.engine.annotations"
        log.warn("PL302", f"metadata.annotations.{key}", message)


def _kserve_mode(component: Component, mode: Mode, reason: str, log: DecisionLog) -> tuple[Mode, str]:
    if component.worker is None or mode == "multi-node":
        return mode, reason
    if mode == "serverless" and "default" not in reason:
        fix = "set serving.kserve.io/deploymentMode: Standard or remove workerSpec"
        log.error("PL303", field_path(component, "workerSpec"), f"several nodes cannot be serverless; {fix}")
    return "multi-node", f"{component.role}.workerSpec is set"


def _mode_from_annotation(
    component: Component, written: Mapping[str, str], path: str, log: DecisionLog
) -> tuple[Mode, str] | None:
    key, value = document_annotations.first(document_annotations.DEPLOYMENT_MODE, written)
    if not key or value == DISAGGREGATED:
        return None
    mode = MODE_NAMES.get(value)
    if mode is None:
        known = ", ".join(MODE_NAMES)
        hint = "ModelMesh is not supported; " if value == "ModelMesh" else ""
        log.error("PL301", f"{path}.{key}", f"{value} is not a deployment mode; {hint}use one of {known}")
        return None
    if mode == "serverless" and (component.leader or component.worker):
        log.error("PL303", f"{path}.{key}", f"{value} excludes leader and worker; remove one")
    return mode, f"annotation {key} = {value}"


def _check_available(
    component: Component, mode: Mode, reason: str, capabilities: Capabilities, log: DecisionLog
) -> None:
    needs = {
        "serverless": ("Knative", capabilities.knative),
        "multi-node": ("LeaderWorkerSet", capabilities.leader_worker_set),
    }
    name, present = needs.get(mode, ("", True))
    if not present:
        message = f"{mode} ({reason}) needs {name}, which the target does not have; install it or choose raw"
        log.error("PL304", field_path(component, ""), message)

"""Which mode each component runs in, by the rules of the project whose document it is, each with the rule that decided.

OME looks at the engine's own annotation, then at leader and worker, then at minReplicas 0. KServe looks at the
service's annotation, then at the cluster's default. First stage of plan(); everything later depends on it.
"""

from collections.abc import Mapping
from typing import Final

from pilotlight.plan import annotations
from pilotlight.plan.ledger import Ledger, field_path
from pilotlight.plan.model import Capabilities, Mode
from pilotlight.spec.model import Component, Role, Service

# What both projects' users write in their deploymentMode annotation. PDDisaggregated follows from engine + decoder.
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


def decide_modes(service: Service, capabilities: Capabilities, ledger: Ledger) -> dict[Role, Mode]:
    """One mode per component, recorded with its reason; problems go to the ledger."""
    ome = service.group == "ome"
    chosen = _ome_modes(service, ledger) if ome else _kserve_modes(service, capabilities, ledger)
    for role, (mode, reason) in chosen.items():
        ledger.decide(role, "mode", mode, reason)
        _check_available(service.components[role], mode, reason, capabilities, ledger)
    return {role: mode for role, (mode, _) in chosen.items()}


def service_mode(modes: Mapping[Role, Mode]) -> str:
    """What `explain` calls the whole."""
    if "decoder" in modes:
        return "disaggregated"
    return modes.get("engine") or modes.get("predictor") or next(iter(modes.values()), "virtual")


def wants_ray(service: Service, component: Component) -> bool:
    return annotations.of(service, component, *annotations.DEPLOYMENT_MODE)[1] == RAY


def _ome_modes(service: Service, ledger: Ledger) -> dict[Role, tuple[Mode, str]]:
    if service.annotations.get(annotations.DEPLOYMENT_MODE[0]) == "VirtualDeployment":
        reason = "metadata.annotations ome.io/deploymentMode = VirtualDeployment"
        return dict.fromkeys(service.components, ("virtual", reason))
    modes = {role: _ome_mode(service, component, ledger) for role, component in service.components.items()}
    _note_service_annotation(service, modes, ledger)
    return modes


def _ome_mode(service: Service, component: Component, ledger: Ledger) -> tuple[Mode, str]:
    role = component.role
    explicit = _annotated(component, component.annotations, field_path(component, "annotations"), ledger)
    if explicit and role != "decoder":
        return _beside_decoder(service, component, *explicit)
    if component.leader or component.worker:
        return "multi-node", f"{role}.{'worker' if component.worker else 'leader'} is set"
    if role == "decoder":
        return "raw", "a decoder without leader or worker is a Deployment"
    if component.min_replicas == 0:
        return _beside_decoder(service, component, "serverless", f"{role}.minReplicas = 0")
    return "raw", f"{role}.minReplicas = {component.min_replicas or 1}, and no annotation says otherwise"


def _beside_decoder(service: Service, component: Component, mode: Mode, reason: str) -> tuple[Mode, str]:
    """Prefill and decode talk to each other by address: an engine beside a decoder cannot hide behind an activator."""
    if component.role == "engine" and mode == "serverless" and "decoder" in service.components:
        return "raw", f"{reason}, but an engine beside a decoder is never serverless"
    return mode, reason


def _note_service_annotation(service: Service, modes: dict[Role, tuple[Mode, str]], ledger: Ledger) -> None:
    """OME's webhook writes this annotation and its controller ignores it; a document that relies on it misleads."""
    key = annotations.DEPLOYMENT_MODE[0]
    written = service.annotations.get(key, "")
    decided = modes.get("engine", ("raw", ""))[0]
    if written and written != DISAGGREGATED and MODE_NAMES.get(written) != decided:
        ledger.warn(
            "PL302", f"metadata.annotations.{key}",
            f"{written} has no effect here and the engine is {decided}; write it in spec.engine.annotations",
        )  # fmt: skip


def _kserve_modes(service: Service, capabilities: Capabilities, ledger: Ledger) -> dict[Role, tuple[Mode, str]]:
    main = next(iter(service.components.values()))
    explicit = _annotated(main, service.annotations, "metadata.annotations", ledger)
    general = explicit or (capabilities.default_mode, "no annotation says otherwise: the default mode")
    return {role: _kserve_mode(component, *general, ledger) for role, component in service.components.items()}


def _kserve_mode(component: Component, mode: Mode, reason: str, ledger: Ledger) -> tuple[Mode, str]:
    if component.worker is None or mode == "multi-node":
        return mode, reason
    if mode == "serverless" and "default" not in reason:
        ledger.error(
            "PL303", field_path(component, "workerSpec"),
            "several nodes cannot be serverless; set serving.kserve.io/deploymentMode: Standard or remove workerSpec",
        )  # fmt: skip
    return "multi-node", f"{component.role}.workerSpec is set"


def _annotated(component: Component, written: Mapping[str, str], path: str, ledger: Ledger) -> tuple[Mode, str] | None:
    key, value = annotations.first(annotations.DEPLOYMENT_MODE, written)
    if not key or value == DISAGGREGATED:
        return None
    mode = MODE_NAMES.get(value)
    if mode is None:
        known = ", ".join(MODE_NAMES)
        hint = "ModelMesh is not served here; " if value == "ModelMesh" else ""
        ledger.error("PL301", f"{path}.{key}", f"{value} is no deployment mode; {hint}use one of {known}")
        return None
    if mode == "serverless" and (component.leader or component.worker):
        ledger.error("PL303", f"{path}.{key}", f"{value} excludes leader and worker; remove one or the other")
    return mode, f"annotation {key} = {value}"


def _check_available(component: Component, mode: Mode, reason: str, capabilities: Capabilities, ledger: Ledger) -> None:
    needs = {
        "serverless": ("Knative", capabilities.knative),
        "multi-node": ("LeaderWorkerSet", capabilities.leader_worker_set),
    }
    name, present = needs.get(mode, ("", True))
    if not present:
        message = f"{mode} ({reason}) needs {name}, which the target does not have; install it or choose raw"
        ledger.error("PL304", field_path(component, ""), message)

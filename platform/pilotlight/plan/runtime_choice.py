"""Runtime, model and accelerator of a component, merged into one pod and one main container.

Selection and merging are spec's; here they meet the service's modes. A router without an image of its own is our
gateway in router mode; a component that brings its container needs no runtime at all.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pilotlight import quantities
from pilotlight.contract import ours
from pilotlight.plan.fine_tuning import fine_tuned, with_adapter
from pilotlight.plan.ledger import Ledger, field_path
from pilotlight.plan.subject import Choice
from pilotlight.spec.accelerators import Class, devices_needed, name_of, pool, select_accelerator
from pilotlight.spec.catalogue import BUILT_IN
from pilotlight.spec.merge import Merged, group_size, merge_component, merge_group, strategic, with_runtime_defaults
from pilotlight.spec.model import BaseModel, Catalogue, Component, NodeGroup, Runtime, Service
from pilotlight.spec.placeholders import expand, implied_env
from pilotlight.spec.select import Selection, select_runtime
from pilotlight.spec.tuning import image_for, with_accelerator_config, with_parallelism

Json = Any
SERVES_MODEL = ("engine", "decoder", "predictor")


def choose_runtime(service: Service, catalogue: Catalogue, ledger: Ledger) -> Selection:
    """The one runtime of a service; engine, decoder and router are three parts of it."""
    main = service.components.get("engine") or service.components.get("predictor")
    if main is None:
        path = "spec.engine" if service.group == "ome" else "spec.predictor"
        ledger.error("PL305", path, "is missing: it is the component that serves the model")
        return Selection(None, None)
    selection = select_runtime(service, main, catalogue)
    ledger.problems.found.extend(selection.problems)
    if selection.runtime is not None:
        ledger.decide("", "runtime", selection.runtime.name, _told(selection.reason, selection.runtime))
        selection = replace(selection, runtime=_expanded(selection.runtime, service, ledger))
    for reason in _of_model(selection.model) if selection.model else ():
        ledger.decide("", "model", selection.model.name if selection.model else "", reason)
    return selection


def _of_model(model: BaseModel) -> tuple[str, ...]:
    """What was derived of it, and where it is from, unless everybody has it or the service describes it itself."""
    told = model.origin == BUILT_IN or model.kind == "InferenceService"
    return model.reasons if told else (*model.reasons, f"from {model.origin}")


def _told(reason: str, runtime: Runtime) -> str:
    """With where it is from, unless everybody has it."""
    return reason if runtime.origin == BUILT_IN else f"{reason}; from {runtime.origin}"


def _expanded(runtime: Runtime, service: Service, ledger: Ledger) -> Runtime:
    """Placeholders are the runtime's: filled in before the user's own texts join, which may hold any braces."""
    paths = {
        "pod": "spec",
        "engine": "spec.engineConfig",
        "decoder": "spec.decoderConfig",
        "router": "spec.routerConfig",
        "workers": "spec.workers" if runtime.group == "ome" else "spec.workerSpec",
    }
    parts = {
        part: expand(getattr(runtime, part), service, runtime, ledger.problems, path) for part, path in paths.items()
    }
    return replace(runtime, **parts)


def with_defaults(service: Service, runtime: Runtime | None) -> Service:
    """The service with what its runtime says where the document is silent: OME decides modes on the two merged."""
    components = {role: with_runtime_defaults(runtime, part) for role, part in service.components.items()}
    return replace(service, components=components)


def merged_choice(
    service: Service, component: Component, selection: Selection, catalogue: Catalogue, multi_node: bool, ledger: Ledger
) -> Choice:
    """What runs in this component's pods."""
    runtime, serves = _runtime_for(component, selection), component.role in SERVES_MODEL
    if component.role == "router" and runtime is None and not _brings_image(component):
        pod, container = merge_component(None, component)
        return Choice(None, None, pod, container, ours=True, gateway=True, reason="our gateway routes")
    merged = merge_group(runtime, component, "leader") if multi_node else merge_component(runtime, component)
    worker = merge_group(runtime, component, "worker") if multi_node else Merged({}, {})
    parts = [_finished(part, service, component, runtime) for part in (merged, worker)]
    model, adapter = fine_tuned(service, selection.model, catalogue, ledger) if serves else (None, None)
    own = runtime is not None and runtime.ours and _same_image(runtime, parts[0].container)
    choice = Choice(runtime, model, *parts[0], *parts[1], ours=own, reason=selection.reason, adapter=adapter)
    tuned = _tuned(component, _on_accelerator(service, component, choice, selection, catalogue, ledger))
    return _adapted(tuned, ledger)


def _adapted(choice: Choice, ledger: Ledger) -> Choice:
    """Every node that runs the engine is told of the adapter."""
    if choice.adapter is None:
        return choice
    container = with_adapter(choice.container, choice.adapter, ledger)
    worker = with_adapter(choice.worker_container, choice.adapter, ledger) if choice.worker_container else {}
    return replace(choice, container=container, worker_container=worker)


def _runtime_for(component: Component, selection: Selection) -> Runtime | None:
    runtime = selection.runtime
    if component.role in ("transformer", "explainer") or runtime is None:
        return None
    return runtime if component.role != "router" or runtime.router else None


def _brings_image(component: Component) -> bool:
    return bool((component.runner or {}).get("image") or component.pod.get("containers"))


def _same_image(runtime: Runtime, container: Mapping[str, Json]) -> bool:
    """Our runtime with an image of the user's is somebody else's program, unless its name says that it is ours."""
    configured = [runtime.engine.get("runner") or {}, *runtime.pod.get("containers", ())]
    image = container.get("image")
    return image in {item.get("image") for item in configured} | {None, ""} or ours(str(image))


def _finished(merged: Merged, service: Service, component: Component, runtime: Runtime | None) -> Merged:
    """With the variables that KServe's defaulting would add; the container's own win."""
    if runtime is None or component.model is None or not merged.container:
        return merged
    implied = implied_env(service, runtime, component.model)
    return Merged(merged.pod, strategic({"env": implied}, merged.container)) if implied else merged


def _tuned(component: Component, choice: Choice) -> Choice:
    """KServe's image by version and device; OME's number of devices over all nodes, where several share a model."""
    runtime, container = choice.runtime, dict(choice.container)
    if runtime is None:
        return choice
    gpus, version = quantities.gpus(container), component.model.runtime_version if component.model else ""
    if container.get("image"):
        container["image"] = image_for(container["image"], runtime, version, gpus)
    worker, nodes = dict(choice.worker_container), _nodes(component, choice)
    if runtime.group == "ome" and not runtime.ours and gpus * nodes > 1:
        container = with_parallelism(container, gpus, nodes)
        worker = with_parallelism(worker, gpus, nodes) if worker else worker
    if runtime.group == "kserve" and component.worker is not None and worker:
        container, worker = (_parallel(part, component.worker) for part in (container, worker))
    return replace(choice, container=container, worker_container=worker)


def _nodes(component: Component, choice: Choice) -> int:
    """Pods that share one model: the leader and its workers."""
    return 1 + (group_size(choice.runtime, component) if choice.worker_container else 0)


def _parallel(container: Mapping[str, Json], group: NodeGroup) -> dict[str, Json]:
    """KServe's workerSpec: stages over nodes, shards over the devices of each, told by variables."""
    sizes = {f"{name.upper()}_PARALLEL_SIZE": str(size) for name, size in group.parallelism.items() if size}
    tuned = strategic({"env": [{"name": name, "value": value} for name, value in sizes.items()]}, container)
    shards = group.parallelism.get("tensor", 0)
    if not shards or quantities.gpus(container):
        return tuned
    return strategic(tuned, {"resources": {part: {"nvidia.com/gpu": str(shards)} for part in ("limits", "requests")}})


def _on_accelerator(
    service: Service, component: Component, choice: Choice, selection: Selection, catalogue: Catalogue, ledger: Ledger
) -> Choice:
    """The chosen class's node selector and devices, where the document asks for one by class or constraint."""
    selector = {**(service.accelerator or {}), **(component.accelerator or {})}
    named = service.annotations.get("ome.io/accelerator-class")
    if named:
        selector.setdefault("acceleratorClass", named)
    if not selector or component.role not in SERVES_MODEL:
        return choice
    found, reasons = select_accelerator(selector, pool(choice.runtime, catalogue.accelerators), choice.model)
    path = field_path(component, "acceleratorOverride") if component.accelerator else "spec.acceleratorSelector"
    if found is None:
        ledger.error("PL306", path, "; ".join(reasons))
        return choice
    ledger.decide(component.role, "accelerator", name_of(found), reasons[-1])
    tuned = with_accelerator_config(choice.container, selection.format, name_of(found))
    return _with_devices(component, replace(choice, container=tuned), found, ledger)


def _with_devices(component: Component, choice: Choice, found: Class, ledger: Ledger) -> Choice:
    """A count that the user wrote stands; a runtime's is what its smallest model needs, and this one may need more."""
    spec = found.get("spec") or {}
    selector = (spec.get("discovery") or {}).get("nodeSelector") or {}
    pod = {**choice.pod, "nodeSelector": {**selector, **choice.pod.get("nodeSelector", {})}}
    choice, had = replace(choice, pod=pod), quantities.gpus(choice.container)
    needed = -(-devices_needed(found, choice.model) // _nodes(component, choice))
    if _names_devices(component) or had >= needed:
        return choice
    if had:
        reason = f"the model does not fit into the {had} that the runtime asks for"
        ledger.decide(component.role, "devices", f"{needed} per pod", reason)
    resource = next((item["name"] for item in spec.get("resources") or () if item.get("name")), "nvidia.com/gpu")
    wanted = {"resources": {part: {resource: str(needed)} for part in ("limits", "requests")}}
    worker = strategic(choice.worker_container, wanted) if choice.worker_container else {}
    return replace(choice, container=strategic(choice.container, wanted), worker_container=worker)


def _names_devices(component: Component) -> bool:
    groups = [group.runner or {} for group in (component.leader, component.worker) if group is not None]
    inline = component.model.container if component.model else {}
    written = [component.runner or {}, inline, *component.pod.get("containers", ()), *groups]
    return any(quantities.gpus(container) for container in written)

"""Runtime, model and accelerator of a component, merged into one pod and one main container.

A router without an image of its own is our gateway in router mode; a component with its own container needs no runtime.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pilotlight.catalogue import accelerator_selection
from pilotlight.catalogue.accelerator_selection import AcceleratorClass
from pilotlight.catalogue.catalogue import BUILT_IN
from pilotlight.catalogue.model_documents import reference_path
from pilotlight.catalogue.model_memory import memory_of
from pilotlight.catalogue.runtime_documents import expand, implied_env
from pilotlight.catalogue.runtime_merge import (
    MergedPod,
    group_size,
    image_for,
    knows_its_nodes,
    merge_component,
    merge_group,
    node_engine,
    strategic_merge,
    with_accelerator_config,
    with_node_rank,
    with_parallelism,
    with_runtime_defaults,
)
from pilotlight.catalogue.runtime_score import RuntimeHost
from pilotlight.catalogue.runtime_selection import Selection, select_runtime
from pilotlight.contract import is_predictor_image
from pilotlight.k8s import quantities
from pilotlight.k8s.names import ANNOTATION_IMAGE_VARIANT as IMAGE_VARIANT
from pilotlight.k8s.names import MODEL_ROLES
from pilotlight.plan.capacity import memory_fit
from pilotlight.plan.component_context import RuntimeChoice, written_containers
from pilotlight.plan.deployment_mode import wants_ray
from pilotlight.plan.support.adapters import check_engine, decide_adapters, located, with_adapters
from pilotlight.plan.support.image_variants import select_variant, variants_for
from pilotlight.plan.types import PUBLISHED_IMAGE, Capabilities, DecisionLog, PlannedAdapter, field_path
from pilotlight.spec.service import BaseModel, Catalogue, Component, NodeGroup, Runtime, Service

Json = Any


def runs_images(capabilities: Capabilities) -> bool:
    """Whether the target runs containers; else it runs processes of the machine's own installation."""
    container = capabilities.target_options.get("container", "none")
    return capabilities.target != "local" and (capabilities.target != "slurm" or container != "none")


def runtime_host(capabilities: Capabilities, service: Service) -> RuntimeHost:
    """Return what the target runs. Clouds run other images only without a model, which those cannot fetch there."""
    parts = service.components.values()
    has_model = service.model is not None or any(part.model and part.model.storage_uri for part in parts)
    images = runs_images(capabilities) and not (capabilities.target in ("lepton", "brev") and has_model)
    return RuntimeHost(capabilities.target, images, capabilities.engines)


def choose_runtime(service: Service, catalogue: Catalogue, capabilities: Capabilities, log: DecisionLog) -> Selection:
    """Select the runtime of a service, which engine, decoder and router share."""
    main = service.components.get("engine") or service.components.get("predictor")
    if main is None and any(part.graph for part in service.components.values()):
        return Selection(None, None)
    if main is None:
        path = "spec.engine" if service.group == "ome" else "spec.predictor"
        log.error("PL305", path, "is missing: it serves the model")
        return Selection(None, None)
    selection = select_runtime(service, main, catalogue, runtime_host(capabilities, service))
    log.problems.items.extend(selection.problems)
    if selection.runtime is not None:
        origin = "" if selection.runtime.origin == BUILT_IN else f"; from {selection.runtime.origin}"
        log.decide("", "runtime", selection.runtime.name, f"{selection.reason}{origin}")
        selection = replace(selection, runtime=_expanded(selection.runtime, service, log))
    if (model := selection.model) is not None:
        for reason in model.reasons:
            log.decide("", "model", model.name, reason)
        if model.origin != BUILT_IN and model.kind != "InferenceService":
            log.decide("", "model", model.name, f"from {model.origin}")
    return selection


def _expanded(runtime: Runtime, service: Service, log: DecisionLog) -> Runtime:
    """Fill in placeholders of the runtime before merging: the user's own fields may hold any braces."""
    paths = {
        "pod": "spec",
        "engine": "spec.engineConfig",
        "decoder": "spec.decoderConfig",
        "router": "spec.routerConfig",
        "workers": "spec.workers" if runtime.group == "ome" else "spec.workerSpec",
    }
    parts = {part: expand(getattr(runtime, part), service, runtime, log.problems, path) for part, path in paths.items()}
    return replace(runtime, **parts)


def with_defaults(service: Service, runtime: Runtime | None) -> Service:
    """Fill unset fields of the components from the runtime; OME derives modes from the merged fields."""
    components = {role: with_runtime_defaults(runtime, part) for role, part in service.components.items()}
    return replace(service, components=components)


def merged_choice(
    service: Service,
    component: Component,
    selection: Selection,
    catalogue: Catalogue,
    capabilities: Capabilities,
    multi_node: bool,
    log: DecisionLog,
) -> RuntimeChoice:
    """Merge runtime, model and accelerator into the pods of a component."""
    runtime = selection.runtime
    no_router = component.role == "router" and runtime is not None and not runtime.router
    if component.role in ("transformer", "explainer") or no_router:
        runtime = None
    if is_gateway(component, runtime):
        pod, container = merge_component(None, component)
        return RuntimeChoice(None, None, pod, container, is_pilotlight=True, gateway=True)
    merged = merge_group(runtime, component, "leader") if multi_node else merge_component(runtime, component)
    worker = merge_group(runtime, component, "worker") if multi_node else MergedPod({}, {})
    has_workers = multi_node and service.group == "ome" and group_size(runtime, component) > 0
    if has_workers and not wants_ray(service, component):
        merged, worker = _with_ranks(merged, worker, component, log)
    parts = [_with_implied_env(part, service, component, runtime) for part in (merged, worker)]
    model: BaseModel | None = None
    adapters: tuple[PlannedAdapter, ...] = ()
    if component.role in MODEL_ROLES:
        model, adapters = decide_adapters(service, selection.model, catalogue, log)
    own = runtime is not None and runtime.is_pilotlight and _runs_own_image(runtime, parts[0].container)
    pods = (*parts[0], *parts[1])
    choice = RuntimeChoice(runtime, model, *pods, is_pilotlight=own, caches=catalogue.caches)
    choice, accelerator = _on_accelerator(service, component, choice, selection, catalogue, log)
    choice = _with_gpus(service, component, choice, accelerator, catalogue, capabilities, log)
    choice = _with_own_image(service, component, _tuned(component, choice), capabilities, log)
    return _with_adapters(choice, adapters, capabilities, log)


def _with_adapters(
    choice: RuntimeChoice, adapters: tuple[PlannedAdapter, ...], capabilities: Capabilities, log: DecisionLog
) -> RuntimeChoice:
    support = check_engine(choice.container, adapters, log) if adapters else None
    if support is None:
        return choice
    adapters, dynamic = located(adapters, support, capabilities.target), False
    if capabilities.target == "local":
        dynamic = bool(support.load) and not choice.worker_container
        reason = "the engine loads them while it runs" if dynamic else "the engine loads them at its start only"
        log.decide("", "adapters", "no new revision" if dynamic else "a new revision each time", reason)
    container, worker = (
        with_adapters(part, adapters, support, dynamic=dynamic) if part else {}
        for part in (choice.container, choice.worker_container)
    )
    return replace(
        choice, container=container, worker_container=worker, adapters=adapters, adapter_support=support,
        dynamic_adapters=dynamic,
    )  # fmt: skip


def _with_ranks(
    leader: MergedPod, worker: MergedPod, component: Component, log: DecisionLog
) -> tuple[MergedPod, MergedPod]:
    """Give leader and workers their ranks, unless the runtime or the document does; PL378 if the engine takes none."""
    if knows_its_nodes(leader.container, worker.container):
        return leader, worker
    engines = [node_engine(part.container) for part in (leader, worker)]
    if not all(engines):
        message = "leader and workers cannot find each other: use LWS_LEADER_ADDRESS and LWS_WORKER_INDEX in"
        log.error("PL378", field_path(component, "worker"), f"{message} their arguments, or use SGLang or `vllm serve`")
        return leader, worker
    ranked = [
        MergedPod(part.pod, with_node_rank(part.container, engine, part is worker))
        for part, engine in zip((leader, worker), engines, strict=True)
    ]
    return ranked[0], ranked[1]


def is_gateway(component: Component, runtime: Runtime | None) -> bool:
    """Return whether a router is our gateway: neither the document nor the runtime has an image for it."""
    brings_image = bool((component.runner or {}).get("image") or component.pod.get("containers"))
    return component.role == "router" and not brings_image and not (runtime and runtime.router)


def _runs_own_image(runtime: Runtime, container: Mapping[str, Json]) -> bool:
    """Return whether the image is the runtime's or named as our predictor; the user may have replaced it."""
    configured = [runtime.engine.get("runner") or {}, *runtime.pod.get("containers", ())]
    image = container.get("image")
    return image in {item.get("image") for item in configured} | {None, ""} or is_predictor_image(str(image))


def _with_implied_env(merged: MergedPod, service: Service, component: Component, runtime: Runtime | None) -> MergedPod:
    """Add the variables of KServe's defaulting; the container's own win."""
    if runtime is None or component.model is None or not merged.container:
        return merged
    implied = implied_env(service, runtime, component.model)
    return MergedPod(merged.pod, strategic_merge({"env": implied}, merged.container)) if implied else merged


def _tuned(component: Component, choice: RuntimeChoice) -> RuntimeChoice:
    """Set KServe's image by version and device, and the parallelism variables of both projects."""
    runtime, container = choice.runtime, dict(choice.container)
    if runtime is None:
        return choice
    gpus, version = quantities.gpu_count(container), component.model.runtime_version if component.model else ""
    if container.get("image"):
        container["image"] = image_for(container["image"], runtime, version, gpus)
    worker, nodes = dict(choice.worker_container), _nodes(component, choice)
    if runtime.group == "ome" and not runtime.is_pilotlight and gpus * nodes > 1:
        container = with_parallelism(container, gpus, nodes)
        worker = with_parallelism(worker, gpus, nodes) if worker else worker
    if runtime.group == "kserve" and component.worker is not None and worker:
        container, worker = (_parallel(part, component.worker) for part in (container, worker))
    return replace(choice, container=container, worker_container=worker)


def _with_own_image(
    service: Service, component: Component, choice: RuntimeChoice, capabilities: Capabilities, log: DecisionLog
) -> RuntimeChoice:
    """Set the variant of our image that loads the model (PL390); any other image that the document names stays."""
    published = (None, "", PUBLISHED_IMAGE)
    if not choice.is_pilotlight or choice.container.get("image") not in published:
        return choice
    image = capabilities.own_image()
    if capabilities.image == PUBLISHED_IMAGE and component.role in MODEL_ROLES and runs_images(capabilities):
        model_format, named = choice.model.format if choice.model else "", service.annotations.get(IMAGE_VARIANT, "")
        variant = select_variant(model_format, quantities.gpu_count(choice.container), named)
        if variant is None:
            _refuse_format(service, component, model_format, named, log)
            return choice
        image, packages = capabilities.own_image(variant.name), ", ".join(variant.packages)
        why = f"annotation {IMAGE_VARIANT}" if named else f"variant {variant.name} loads {model_format or 'any model'}"
        log.decide(component.role, "image", image, f"{why}; it has {packages}")
    worker = choice.worker_container
    worker = {**worker, "image": image} if worker and worker.get("image") in published else worker
    return replace(choice, container={**choice.container, "image": image}, worker_container=worker)


def _refuse_format(service: Service, component: Component, model_format: str, named: str, log: DecisionLog) -> None:
    variants = ", ".join(variant.name for variant in variants_for(model_format))
    if named and variants:
        message = f"= {named}, which cannot load {model_format}; use one of {variants}"
        log.error("PL390", f"metadata.annotations.{IMAGE_VARIANT}", message)
        return
    field = field_path(component, "runner.image" if service.group == "ome" else "model.image")
    message = f"= {model_format}, which no variant of the predictor image can load; set {field} to your own image"
    log.error("PL390", reference_path(service), message)


def _nodes(component: Component, choice: RuntimeChoice) -> int:
    """Return the number of pods that share one model: the leader and its workers."""
    return 1 + (group_size(choice.runtime, component) if choice.worker_container else 0)


def _parallel(container: Mapping[str, Json], group: NodeGroup) -> dict[str, Json]:
    """Apply KServe's workerSpec: variables for pipeline and tensor parallelism, GPUs for the shards."""
    sizes = {f"{name.upper()}_PARALLEL_SIZE": str(size) for name, size in group.parallelism.items() if size}
    tuned = strategic_merge({"env": [{"name": name, "value": value} for name, value in sizes.items()]}, container)
    shards = group.parallelism.get("tensor", 0)
    if not shards or quantities.gpu_count(container):
        return tuned
    devices = {part: {"nvidia.com/gpu": str(shards)} for part in ("limits", "requests")}
    return strategic_merge(tuned, {"resources": devices})


def _on_accelerator(
    service: Service,
    component: Component,
    choice: RuntimeChoice,
    selection: Selection,
    catalogue: Catalogue,
    log: DecisionLog,
) -> tuple[RuntimeChoice, AcceleratorClass | None]:
    """Apply node selector and arguments of the accelerator class that the document selects, and return it."""
    selector = {**(service.accelerator or {}), **(component.accelerator or {})}
    named = service.annotations.get("ome.io/accelerator-class")
    if named:
        selector.setdefault("acceleratorClass", named)
    if not selector or component.role not in MODEL_ROLES:
        return choice, None
    classes = accelerator_selection.supported_classes(choice.runtime, catalogue.accelerators)
    memory = memory_of(choice.model, choice.container)
    accelerator, reasons = accelerator_selection.select_accelerator(selector, classes, memory)
    path = field_path(component, "acceleratorOverride") if component.accelerator else "spec.acceleratorSelector"
    if accelerator is None:
        log.error("PL306", path, "; ".join(reasons))
        return choice, None
    log.decide(component.role, "accelerator", accelerator_selection.name_of(accelerator), reasons[-1])
    tuned = with_accelerator_config(choice.container, selection.format, accelerator_selection.name_of(accelerator))
    nodes = (accelerator["spec"].get("discovery") or {}).get("nodeSelector") or {}
    pod = {**choice.pod, "nodeSelector": {**nodes, **choice.pod.get("nodeSelector", {})}}
    return replace(choice, pod=pod, container=tuned), accelerator


def _with_gpus(
    service: Service,
    component: Component,
    choice: RuntimeChoice,
    accelerator: AcceleratorClass | None,
    catalogue: Catalogue,
    capabilities: Capabilities,
    log: DecisionLog,
) -> RuntimeChoice:
    """Set the GPUs that hold the model unless the document counts them; a class without a model's size gives one."""
    had, resources = quantities.gpu_count(choice.container), choice.container.get("resources") or {}
    requested = [
        name for part in ("limits", "requests") for name in resources.get(part) or {} if quantities.is_gpu(name)
    ]
    items = (accelerator["spec"].get("resources") or ()) if accelerator is not None else ()
    name = next((item["name"] for item in items if item.get("name")), next(iter(requested), "nvidia.com/gpu"))
    # What a claimed device or a slice of one holds is unknown.
    unknown = bool(resources.get("claims")) or any("/mig-" in resource for resource in requested)
    if component.role not in MODEL_ROLES or not (had or accelerator) or unknown:
        return choice
    counted, gpus = any(map(quantities.gpu_count, written_containers(component))), max(had, 1)
    if (memory := memory_of(choice.model, choice.container)) is not None:
        available = memory_fit.gpu_memory(choice.pod, accelerator, catalogue.accelerators, capabilities)
        fit = memory_fit.Fit(memory, had, _nodes(component, choice), *available)
        gpus = memory_fit.decide_gpus(service, component, fit, counted, catalogue.accelerators, log)
    if counted or gpus <= had:
        return choice
    devices = {"resources": {part: {name: str(gpus)} for part in ("limits", "requests")}}
    worker = strategic_merge(choice.worker_container, devices) if choice.worker_container else {}
    return replace(choice, container=strategic_merge(choice.container, devices), worker_container=worker)

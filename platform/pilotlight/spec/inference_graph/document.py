"""Reader of KServe's InferenceGraph into the internal model: a service with a router alone.

The router is our gateway, which executes the graph (gateway/engine_router/graph.py).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pilotlight.spec.component_fields import DocumentContext, check_component, check_name, component, service
from pilotlight.spec.field_tables import GRAPH
from pilotlight.spec.field_types import child_path, read, source_locations
from pilotlight.spec.inference_graph.condition import MAX_LENGTH, SYNTAX, parse
from pilotlight.spec.problems import Problems
from pilotlight.spec.service import Service
from pilotlight.spec.yaml_nodes import Node
from pilotlight.wire.messages import suggestion

Json = Any
Nodes = Mapping[str, Mapping[str, Json]]
KIND: Final = "InferenceGraph"
VERSION: Final = "serving.kserve.io/v1alpha1"
ROOT: Final = "root"
MAX_NODES: Final = 100
MAX_BYTES: Final = 100_000  # as JSON: the router has it in one variable, of which Linux allows 128 KiB
MAX_CALLS: Final = 1000  # for one request: nodes that share nodes multiply
_TARGETS: Final = ("nodeName", "serviceName", "serviceUrl")
# The router types in which a field has an effect.
_EFFECTIVE: Final = {
    "weight": ("Splitter",), "condition": ("Switch", "Sequence"), "data": ("Sequence",),
    "mapPredictionsToInstances": ("Sequence",),
}  # fmt: skip


def read_service(node: Node, problems: Problems, namespace: str = "default") -> Service:
    """Return the service as far as it is valid; add its problems."""
    value = read(node, GRAPH.record(KIND), problems) or {}
    metadata, spec = value.get("metadata", {}), value.get("spec", {})
    context = DocumentContext(problems, source_locations(node))
    check_name(metadata, context)
    nodes: Nodes = spec.get("nodes") or {}
    if "nodes" in spec:
        _check_nodes(nodes, context)
    timeouts = spec.get("routerTimeouts", {})
    for name in (each for each in timeouts if each != "serviceClient"):
        context.warn("PL114", f"spec.routerTimeouts.{name}", "has no effect: the router has the gateway's; use timeout")
    resources = {"resources": spec["resources"]} if "resources" in spec else {}
    router = component(
        "router",
        {name: field for name, field in spec.items() if name != "resources"},
        runner=resources or None,
        timeout_seconds=spec.get("timeout"),
        graph={"nodes": nodes, "stepTimeout": timeouts.get("serviceClient", 0)},
    )
    check_component(router, "spec", context)
    return service("kserve", value, namespace, {"router": router}, context)


def steps_of(nodes: Nodes) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Yield each step with its path in the document."""
    for name, node in nodes.items():
        for index, step in enumerate(node.get("steps", ())):
            yield f"{child_path('spec.nodes', name)}.steps[{index}]", step


def _check_nodes(nodes: Nodes, context: DocumentContext) -> None:
    """Check KServe's rules, and those that its router finds only when it executes the graph."""
    if ROOT not in nodes:
        message = f"is required: a request starts there; add a node {ROOT}"
        context.error("PL103", f"spec.nodes.{ROOT}", message)
    for name, node in nodes.items():
        path, steps, router_type = child_path("spec.nodes", name), node.get("steps", ()), node.get("routerType", "")
        if "steps" in node and not steps:
            context.error("PL103", f"{path}.steps", "is empty; a node needs a step")
        names = [step.get("name") for step in steps]
        for index, step in enumerate(steps):
            if step.get("name") and step["name"] in names[:index]:
                message = f'is "{step["name"]}", which another step of the node has; choose another name'
                context.error("PL104", f"{path}.steps[{index}].name", message)
            _check_step(step, f"{path}.steps[{index}]", router_type, index, context)
        total = sum(step.get("weight", 0) for step in steps)
        if router_type == "Splitter" and steps and all("weight" in step for step in steps) and total != 100:
            context.error("PL104", f"{path}.steps", f"have weights of {total} in all, must be 100")
    for path, step in steps_of(nodes):
        if (target := step.get("nodeName")) and target not in nodes:
            mended = suggestion(target, tuple(nodes)) or "; add a node of this name to spec.nodes"
            message = f'is "{target}", and no node has this name{mended}'
            context.error("PL104", f"{path}.nodeName", message)
    if len(nodes) > MAX_NODES:
        context.error("PL104", "spec.nodes", f"has {len(nodes)} nodes, must have at most {MAX_NODES}")
        return
    if (size := len(json.dumps(nodes, ensure_ascii=False).encode(errors="replace"))) > MAX_BYTES:
        context.error("PL104", "spec.nodes", f"has {size} bytes as JSON, must have at most {MAX_BYTES}")
    calls: dict[str, int] = {}
    if _count_calls(nodes, ROOT, (), context, calls) > MAX_CALLS:
        message = f"calls up to {calls[ROOT]} services for one request, must be at most {MAX_CALLS}"
        context.error("PL104", "spec.nodes", message)
    for name in (each for each in nodes if each not in calls and ROOT in nodes):
        context.warn("PL114", child_path("spec.nodes", name), f"has no effect: no step leads to it from {ROOT}")


def _check_step(step: Mapping[str, Json], path: str, router_type: str, index: int, context: DocumentContext) -> None:
    targets = [name for name in _TARGETS if step.get(name)]
    refused = {problem.path for problem in context.problems.errors}
    if not targets and not any(f"{path}.{name}" in refused for name in _TARGETS):
        context.error("PL103", path, f"has no target; give one of {', '.join(_TARGETS)}")
    elif len(targets) > 1:
        context.error("PL111", f"{path}.{targets[1]}", f"excludes {targets[0]}: a step has one target; keep one")
    for name, types in _EFFECTIVE.items():
        if name in step and router_type and router_type not in types:
            message = f"has no effect in a node of type {router_type}; it is for {' and '.join(types)}"
            context.warn("PL114", f"{path}.{name}", message)
    if router_type == "Splitter" and "weight" not in step:
        context.error("PL103", f"{path}.weight", "is missing; the weights of a Splitter add up to 100")
    condition = step.get("condition")
    if condition is None:
        if router_type == "Switch":
            context.error("PL103", f"{path}.condition", f"is missing: it would never be chosen; give {SYNTAX}")
        return
    if router_type == "Sequence" and index == 0:
        context.error("PL104", f"{path}.condition", "needs a previous response; remove it from the first step")
    try:
        parse(condition)
    except ValueError:
        message = f'is "{condition[:100]}", must be {SYNTAX}, of at most {MAX_LENGTH} characters'
        context.error("PL104", f"{path}.condition", message)


def _count_calls(
    nodes: Nodes, name: str, before: tuple[str, ...], context: DocumentContext, calls: dict[str, int]
) -> int:
    """Return how many services one request may call from a node on, noted in `calls`; report cycles."""
    numbers = [0]
    for index, step in enumerate(nodes.get(name, {}).get("steps", ())):
        target, around = step.get("nodeName"), (*before, name)
        if target in around:
            path = f"{child_path('spec.nodes', name)}.steps[{index}].nodeName"
            cycle = " → ".join((*around[around.index(target) :], target))
            context.error("PL104", path, f"forms a cycle: {cycle}; a graph must end")
        elif target in calls:
            numbers.append(calls[target])
        else:
            numbers.append(_count_calls(nodes, target, around, context, calls) if target in nodes else 1)
    one = nodes.get(name, {}).get("routerType") in ("Splitter", "Switch")
    calls[name] = max(numbers) if one else sum(numbers)
    return calls[name]

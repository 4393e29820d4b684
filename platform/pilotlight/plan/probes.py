"""Probes and progress deadlines, derived from the model's size.

Raw: the startup probe allows for the model load, readiness controls traffic, liveness restarts a hung replica.
Serverless: Knative probes every few milliseconds unless there is a startupProbe or a periodSeconds on readiness, so
neither is set, and the startup budget goes into the progress deadline.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from pilotlight.contract import GRPC_PORT
from pilotlight.k8s.quantities import unsigned_duration
from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.pod_security import without_timing
from pilotlight.plan.types import DecisionLog

Json = Any
PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")
STARTUP_PERIOD_S: Final = 1  # the minimum of Kubernetes: a request may be waiting
READY_PATH: Final = "/v2/health/ready"
LIVE_PATH: Final = "/v2/health/live"
LEAST_DEADLINE_S: Final = 600


def decide_probes(context: PlanContext, port: int, log: DecisionLog) -> dict[str, Json]:
    """Return the probes of the main container for the mode; the container's own win."""
    container = context.choice.container
    brought = {name: dict(container[name]) for name in PROBES if container.get(name)}
    _check_restrictions(context, port, log)
    for probe in brought.values():
        for action in ("httpGet", "tcpSocket"):
            # Knative adds the serving port to a probe without one; Kubernetes would reject it.
            if probe.get(action) is not None and "port" not in probe[action]:
                probe[action] = {**probe[action], "port": port}
    if context.serverless:
        return _for_knative(context, port, brought, log)
    log.decide(context.component.role, "startup budget", f"{context.allowed_start_s} s", _budget_reason(context))
    return {**_default(context, port, context.start_budget_s), **brought}


def _check_restrictions(context: PlanContext, port: int, log: DecisionLog) -> None:
    """Refuse a key for health calls, which no probe has."""
    flag = "--grpc-restricted-protocol" if "grpc" in _handlers(context, port)[0] else "--http-restricted-api"
    pairs = " ".join(context.predictor_setting(flag)).split()
    if any("health" in pair.partition(":")[0].split(",") for pair in pairs):
        message = f"{flag} restricts health, so no probe would pass and the service would never be ready"
        log.error("PL392", context.path(), f"{message}; leave health out of the groups")


def _budget_reason(context: PlanContext) -> str:
    if context.choice.container.get("startupProbe"):
        return "the container's own startupProbe"
    if context.choice.gateway:
        return "no model to load"
    if not context.model_bytes:
        return "the model's size is unknown"
    rate = context.capabilities.load_rate_bytes_s
    return f"{context.model_bytes / 1e9:.1f} GB at {rate / 1e6:.0f} MB/s, twice, plus startup"


def _default(context: PlanContext, port: int, budget: int) -> dict[str, Json]:
    ready, live = _handlers(context, port)
    startup = {**ready, "periodSeconds": STARTUP_PERIOD_S, "failureThreshold": math.ceil(budget / STARTUP_PERIOD_S)}
    probes: dict[str, Json] = {
        "startupProbe": startup,
        "readinessProbe": {**ready, "periodSeconds": 5, "failureThreshold": 3, "timeoutSeconds": 5},
    }
    if live:
        probes["livenessProbe"] = {**live, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5}
    return probes


def _handlers(context: PlanContext, port: int) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the readiness and liveness actions. Foreign servers get no liveness: a hung one still accepts."""
    if context.choice.gateway:
        return {"httpGet": {"path": "/ready", "port": port}}, {"httpGet": {"path": "/healthz", "port": port}}
    if not context.choice.is_pilotlight:
        return {"tcpSocket": {"port": port}}, {}
    if context.serverless and port == GRPC_PORT:
        return {"grpc": {"port": port}}, {}
    return {"httpGet": {"path": READY_PATH, "port": port}}, {"httpGet": {"path": LIVE_PATH, "port": port}}


def _for_knative(context: PlanContext, port: int, brought: Mapping[str, Json], log: DecisionLog) -> dict[str, Json]:
    ready, live = _handlers(context, port)
    probes: dict[str, Json] = {"readinessProbe": ready} if context.choice.is_pilotlight else {}
    if live:
        probes["livenessProbe"] = {**live, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5}
    if "readinessProbe" in brought:
        probes["readinessProbe"] = without_timing(brought["readinessProbe"])
    if "livenessProbe" in brought:
        probes["livenessProbe"] = brought["livenessProbe"]
    if "startupProbe" in brought:
        reason = "a startupProbe would turn off Knative's fast probing"
        budget = f"its {context.allowed_start_s} s are counted into the progress deadline"
        log.decide(context.component.role, "startup probe", budget, reason)
    return probes


def progress_deadline(context: PlanContext, log: DecisionLog) -> int:
    """Return the progress deadline in seconds: the annotation, else the startup budget and 5 min for image and node."""
    key = document_annotations.PROGRESS_DEADLINE
    written = context.annotation(key)
    if written:
        seconds = unsigned_duration(written)
        if seconds and seconds.is_integer():
            log.decide(context.component.role, "progress deadline", f"{seconds:g} s", f"annotation {key}")
            return int(seconds)
        log.error("PL343", context.annotation_path(key), f"{written}, must be a duration of whole seconds such as 20m")
    budget = max(context.start_budget_s, context.allowed_start_s)
    deadline = max(LEAST_DEADLINE_S, budget + 300)
    above_least = f"{budget} s for the start and 5 minutes for image and node"
    reason = above_least if deadline > LEAST_DEADLINE_S else "the least"
    log.decide(context.component.role, "progress deadline", f"{deadline} s", reason)
    return deadline

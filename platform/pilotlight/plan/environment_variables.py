"""Environment variables of our predictor, and request timeouts."""

import json
from collections.abc import Iterator
from typing import Any, Final

from pilotlight import contract
from pilotlight.k8s import names
from pilotlight.k8s.names import ANNOTATION_PARK
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.support import request_logs
from pilotlight.plan.types import DecisionLog
from pilotlight.spec.example_request import WARMUP_KEYS

Json = Any
DRAIN_DELAY_S: Final = 10
LONG_ANSWERS_S: Final = 300
DEFAULT_TIMEOUT_S: Final = 300
PARK_MEMORY: Final = "25%"
PARK_AFTER_S: Final = 60
# Where ingress, activator and gateway run: a client is the last address in X-Forwarded-For that is none of these.
CLUSTER_NETWORKS: Final = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,127.0.0.0/8,fc00::/7,::1/128"


def decide_timeout(context: PlanContext, log: DecisionLog) -> int:
    """Return the request timeout in seconds. Generative models get at least LONG_ANSWERS_S."""
    written = context.component.timeout_seconds
    role = context.component.role
    if written is None:
        log.decide(role, "request timeout", f"{DEFAULT_TIMEOUT_S} s", "the default")
        return DEFAULT_TIMEOUT_S
    if written < LONG_ANSWERS_S and context.generative:
        name = "timeoutSeconds" if context.service.group == "ome" else "timeout"
        message = f"{written} s would cut off responses of a generative model; {LONG_ANSWERS_S} s is used"
        log.warn("PL345", context.path(name), message)
        return LONG_ANSWERS_S
    log.decide(role, "request timeout", f"{written} s", f"{role}.timeout is set")
    return written


def identity(context: PlanContext) -> list[dict[str, Json]]:
    """Return service and namespace for metrics and logs. In serverless mode Knative provides the revision."""
    return [
        {"name": contract.ENV_SERVICE, "value": context.service.name},
        {"name": contract.ENV_NAMESPACE, "value": context.service.namespace},
    ]


def access(context: PlanContext) -> list[dict[str, str]]:
    """Return the variables of a predictor or router that enforces the access rules of the service."""
    if not context.enforces_access:
        return []
    values = {contract.ENV_ACCESS_FILE: f"{names.ACCESS_DIR}/{names.ACCESS_KEY}"}
    if names.ANNOTATION_RATE in context.service.annotations:
        values[contract.ENV_TRUSTED_PROXIES] = CLUSTER_NETWORKS
    return [{"name": name, "value": value} for name, value in values.items()]


def settings(context: PlanContext, timeout_s: int) -> list[dict[str, str]]:
    """Return the settings of our predictor; none for other servers."""
    if not context.choice.is_pilotlight or context.choice.gateway:
        return []
    return [
        {"name": f"{contract.ENV_SETTINGS_PREFIX}{name}", "value": value}
        for name, value in _settings(context, timeout_s)
    ]


def _settings(context: PlanContext, timeout_s: int) -> Iterator[tuple[str, str]]:
    component = context.component
    yield "MODEL_NAME", context.service.name
    yield "HTTP_PORT", str(contract.HTTP_PORT)
    yield "GRPC_PORT", str(contract.GRPC_PORT)
    yield "METRICS_PORT", str(contract.METRICS_PORT)
    if component.timeout_seconds is not None or context.generative:
        yield "TIMEOUT_SECONDS", str(timeout_s)
    yield "EXIT_TIMEOUT_SECS", str(timeout_s)
    if not context.serverless:
        yield "DRAIN_DELAY", str(DRAIN_DELAY_S)
        if component.container_concurrency:
            yield "MAX_QUEUE_SIZE", str(component.container_concurrency)
    if component.batcher is not None:  # a sidecar in KServe; our predictor batches itself
        yield "MAX_BATCH_SIZE", str(component.batcher.get("maxBatchSize") or 32)
        yield "BATCH_TIMEOUT_MS", str(component.batcher.get("maxLatency") or 5000)
    if component.example.keys() & set(WARMUP_KEYS):
        yield "EXAMPLE", json.dumps(component.example, separators=(",", ":"))
    if component.warmup:
        yield "WARMUP", component.warmup
    if context.service.annotations.get(ANNOTATION_PARK) == "true":
        yield "PARK_MEMORY", PARK_MEMORY
        yield "PARK_AFTER_S", str(PARK_AFTER_S)
    yield from request_logs.predictor_setting(context).items()


def decide_warmup(context: PlanContext, log: DecisionLog) -> None:
    """Record what a model must answer before it is ready; warn if another server than ours will not do it (PL360)."""
    component = context.component
    if not component.example and not component.warmup:
        return
    model = "spec.model" if context.service.group == "ome" else context.path("model")
    if not context.choice.is_pilotlight:
        field = "example" if component.example else "warmup"
        probes = "; probes of a canary use it" if component.example else ""
        log.warn("PL360", f"{model}.{field}", f"has no effect on readiness: this image has no warm-up{probes}")
    elif component.example.keys() & set(WARMUP_KEYS):
        log.decide(component.role, "warm-up", "the example", f"{model}.example is set")
    elif component.warmup == "none":
        log.decide(component.role, "warm-up", "none", f"{model}.warmup is set: ready without a warm-up request")
    else:
        log.decide(component.role, "warm-up", "zeros", f"{model}.example is for canary probes: it is an OpenAI request")


def grace_seconds(timeout_s: int) -> int:
    """Return the seconds from SIGTERM to SIGKILL: drain delay, longest request, and 5 s to exit."""
    return DRAIN_DELAY_S + timeout_s + 5

"""Environment variables of our predictor: its identity, settings and limits; request timeouts."""

from collections.abc import Iterator
from typing import Any, Final

from pilotlight.contract import (
    ENV_NAMESPACE,
    ENV_REVISION,
    ENV_SERVICE,
    ENV_SETTINGS_PREFIX,
    GRPC_PORT,
    HTTP_PORT,
    METRICS_PORT,
)
from pilotlight.names import ANNOTATION_PARK
from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.subject import PlanContext

Json = Any
DRAIN_DELAY_S: Final = 10
LONG_ANSWERS_S: Final = 300
DEFAULT_TIMEOUT_S: Final = 300
PARK_MEMORY: Final = "25%"
PARK_AFTER_S: Final = 60


def decide_timeout(context: PlanContext, log: DecisionLog) -> int:
    """Return the request timeout in seconds. Generative models get at least LONG_ANSWERS_S."""
    written = context.component.timeout_seconds
    role = context.component.role
    if written is None:
        log.decide(role, "request timeout", f"{DEFAULT_TIMEOUT_S} s", "the default")
        return DEFAULT_TIMEOUT_S
    if written < LONG_ANSWERS_S and context.generative:
        name = "timeoutSeconds" if context.service.group == "ome" else "timeout"
        message = f"{written} s would cut answers of a generative model short; {LONG_ANSWERS_S} s is used"
        log.warn("PL345", context.path(name), message)
        return LONG_ANSWERS_S
    log.decide(role, "request timeout", f"{written} s", f"{role}.timeout is set")
    return written


def identity(context: PlanContext) -> list[dict[str, Json]]:
    """Return service and namespace for metrics and logs. In serverless mode Knative provides the revision."""
    return [
        {"name": ENV_SERVICE, "value": context.service.name},
        {"name": ENV_NAMESPACE, "value": context.service.namespace},
    ]


def revision_variable(revision: str) -> dict[str, str]:
    return {"name": ENV_REVISION, "value": revision}


def settings(context: PlanContext, timeout_s: int) -> list[dict[str, str]]:
    """Return the settings of our predictor; none for other servers."""
    if not context.choice.is_pilotlight or context.choice.gateway:
        return []
    return [{"name": f"{ENV_SETTINGS_PREFIX}{name}", "value": value} for name, value in _settings(context, timeout_s)]


def _settings(context: PlanContext, timeout_s: int) -> Iterator[tuple[str, str]]:
    component = context.component
    yield "MODEL_NAME", context.service.name
    yield "HTTP_PORT", str(HTTP_PORT)
    yield "GRPC_PORT", str(GRPC_PORT)
    yield "METRICS_PORT", str(METRICS_PORT)
    if component.timeout_seconds is not None or context.generative:
        yield "TIMEOUT_SECONDS", str(timeout_s)
    yield "EXIT_TIMEOUT_SECS", str(timeout_s)
    if not context.serverless:
        yield "DRAIN_DELAY", str(DRAIN_DELAY_S)
        if component.container_concurrency:
            yield "MAX_QUEUE_SIZE", str(component.container_concurrency)
    yield from _batching(context)
    if context.service.annotations.get(ANNOTATION_PARK) == "true":
        yield "PARK_MEMORY", PARK_MEMORY
        yield "PARK_AFTER_S", str(PARK_AFTER_S)


def _batching(context: PlanContext) -> Iterator[tuple[str, str]]:
    """Yield the settings of KServe's batcher, which is a sidecar there; our predictor batches itself."""
    batcher = context.component.batcher
    if batcher is None:
        return
    yield "MAX_BATCH_SIZE", str(batcher.get("maxBatchSize") or 32)
    yield "BATCH_TIMEOUT_MS", str(batcher.get("maxLatency") or 5000)


def grace_seconds(timeout_s: int) -> int:
    """Return the seconds from SIGTERM to SIGKILL: drain delay, longest request, and 5 s to exit."""
    return DRAIN_DELAY_S + timeout_s + 5

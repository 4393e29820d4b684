"""What our predictor is told by variables: who it is, what it serves, and the limits that the document sets."""

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
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.subject import Subject

Json = Any
DRAIN_DELAY_S: Final = 10
LONG_ANSWERS_S: Final = 300
DEFAULT_TIMEOUT_S: Final = 300
PARK_MEMORY: Final = "25%"
PARK_AFTER_S: Final = 60


def decide_timeout(subject: Subject, ledger: Ledger) -> int:
    """Seconds for one request along the whole way. Chat, generation and vision answer for minutes."""
    written = subject.component.timeout_seconds
    role = subject.component.role
    if written is None:
        ledger.decide(role, "request timeout", f"{DEFAULT_TIMEOUT_S} s", "the default")
        return DEFAULT_TIMEOUT_S
    if written < LONG_ANSWERS_S and subject.generative:
        name = "timeoutSeconds" if subject.service.group == "ome" else "timeout"
        message = f"{written} s would cut answers of a generative model short; {LONG_ANSWERS_S} s is used"
        ledger.warn("PL345", subject.path(name), message)
        return LONG_ANSWERS_S
    ledger.decide(role, "request timeout", f"{written} s", f"{role}.timeout is set")
    return written


def identity(subject: Subject) -> list[dict[str, Json]]:
    """Names that metrics and logs carry. In serverless mode Knative itself gives the revision."""
    return [
        {"name": ENV_SERVICE, "value": subject.service.name},
        {"name": ENV_NAMESPACE, "value": subject.service.namespace},
    ]


def revision_variable(revision: str) -> dict[str, str]:
    return {"name": ENV_REVISION, "value": revision}


def settings(subject: Subject, timeout_s: int) -> list[dict[str, str]]:
    """Settings of our predictor; a foreign server gets none."""
    if not subject.choice.ours or subject.choice.gateway:
        return []
    return [{"name": f"{ENV_SETTINGS_PREFIX}{name}", "value": value} for name, value in _settings(subject, timeout_s)]


def _settings(subject: Subject, timeout_s: int) -> Iterator[tuple[str, str]]:
    component = subject.component
    yield "MODEL_NAME", subject.service.name
    yield "HTTP_PORT", str(HTTP_PORT)
    yield "GRPC_PORT", str(GRPC_PORT)
    yield "METRICS_PORT", str(METRICS_PORT)
    if component.timeout_seconds is not None or subject.generative:
        yield "TIMEOUT_SECONDS", str(timeout_s)
    yield "EXIT_TIMEOUT_SECS", str(timeout_s)
    if not subject.serverless:
        yield "DRAIN_DELAY", str(DRAIN_DELAY_S)
        if component.container_concurrency:
            yield "MAX_QUEUE_SIZE", str(component.container_concurrency)
    yield from _batching(subject)
    if subject.service.annotations.get(ANNOTATION_PARK) == "true":
        yield "PARK_MEMORY", PARK_MEMORY
        yield "PARK_AFTER_S", str(PARK_AFTER_S)


def _batching(subject: Subject) -> Iterator[tuple[str, str]]:
    """KServe's batcher is a sidecar there; our predictor batches itself."""
    batcher = subject.component.batcher
    if batcher is None:
        return
    yield "MAX_BATCH_SIZE", str(batcher.get("maxBatchSize") or 32)
    yield "BATCH_TIMEOUT_MS", str(batcher.get("maxLatency") or 5000)


def grace_seconds(timeout_s: int) -> int:
    """SIGTERM to SIGKILL: the drain delay, the longest request, and a little to write the last log line."""
    return DRAIN_DELAY_S + timeout_s + 5

"""Probes and deadlines: how a replica that starts, serves or hangs is told apart, from the model's size.

Raw: startup waits as long as the model may load, readiness takes a replica out of traffic, liveness ends a hung one.
Serverless: Knative probes every few milliseconds, unless a startupProbe or a periodSeconds on readiness switches that
off; so neither is written and the budget goes into the progress deadline.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from pilotlight.contract import GRPC_PORT
from pilotlight.plan import annotations
from pilotlight.plan.knative_pods import quick
from pilotlight.plan.kpa import seconds_of
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.subject import Subject

Json = Any
PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")
STARTUP_PERIOD_S: Final = 1  # the least that Kubernetes takes: somebody waits for it
READY_PATH: Final = "/v2/health/ready"
LIVE_PATH: Final = "/v2/health/live"
LEAST_DEADLINE_S: Final = 600


def decide_probes(subject: Subject, port: int, ledger: Ledger) -> dict[str, Json]:
    """The three probes of the main container, as far as the mode wants them. What the container brings is kept."""
    container = subject.choice.container
    brought = {name: _with_port(container[name], port) for name in PROBES if container.get(name)}
    if subject.serverless:
        return _for_knative(subject, port, brought, ledger)
    ledger.decide(subject.component.role, "startup budget", f"{subject.allowed_start_s} s", _budget_reason(subject))
    return {**_default(subject, port, subject.start_budget_s), **brought}


def _with_port(probe: Mapping[str, Json], port: int) -> dict[str, Json]:
    """A probe without a port means the serving port, as Knative has it; Kubernetes itself would refuse it."""
    asks = {name: probe[name] for name in ("httpGet", "tcpSocket") if probe.get(name) is not None}
    return {**probe, **{name: ask if "port" in ask else {**ask, "port": port} for name, ask in asks.items()}}


def _budget_reason(subject: Subject) -> str:
    if subject.choice.container.get("startupProbe"):
        return "the startupProbe that the container brings"
    if subject.choice.gateway:
        return "no model to load"
    if not subject.model_bytes:
        return "the model's size is unknown"
    rate = subject.capabilities.load_rate_bytes_s
    return f"{subject.model_bytes / 1e9:.1f} GB at {rate / 1e6:.0f} MB/s, twice, and the boot"


def _default(subject: Subject, port: int, budget: int) -> dict[str, Json]:
    ready, live = _handlers(subject, port)
    startup = {**ready, "periodSeconds": STARTUP_PERIOD_S, "failureThreshold": math.ceil(budget / STARTUP_PERIOD_S)}
    probes: dict[str, Json] = {
        "startupProbe": startup,
        "readinessProbe": {**ready, "periodSeconds": 5, "failureThreshold": 3, "timeoutSeconds": 5},
    }
    if live:
        probes["livenessProbe"] = {**live, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5}
    return probes


def _handlers(subject: Subject, port: int) -> tuple[dict[str, Json], dict[str, Json]]:
    """How to ask for ready and for live. A foreign server is only known to listen; hanging, it listens too."""
    if subject.choice.gateway:
        return {"httpGet": {"path": "/ready", "port": port}}, {"httpGet": {"path": "/healthz", "port": port}}
    if not subject.choice.ours:
        return {"tcpSocket": {"port": port}}, {}
    if subject.serverless and port == GRPC_PORT:
        return {"grpc": {"port": port}}, {}
    return {"httpGet": {"path": READY_PATH, "port": port}}, {"httpGet": {"path": LIVE_PATH, "port": port}}


def _for_knative(subject: Subject, port: int, brought: Mapping[str, Json], ledger: Ledger) -> dict[str, Json]:
    ready, live = _handlers(subject, port)
    probes: dict[str, Json] = {"readinessProbe": ready} if subject.choice.ours else {}
    if live:
        probes["livenessProbe"] = {**live, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5}
    if "readinessProbe" in brought:
        probes["readinessProbe"] = quick(brought["readinessProbe"])
    if "livenessProbe" in brought:
        probes["livenessProbe"] = brought["livenessProbe"]
    if "startupProbe" in brought:
        reason = "a startupProbe would switch off Knative's own quick probing"
        counted = f"its {subject.allowed_start_s} s are counted into the progress deadline"
        ledger.decide(subject.component.role, "startup probe", counted, reason)
    return probes


def progress_deadline(subject: Subject, ledger: Ledger) -> int:
    """How long a rollout may stand still: the user's word, else the startup budget and room for image and node."""
    key = annotations.PROGRESS_DEADLINE
    written = subject.annotation(key)
    if written:
        seconds = seconds_of(written)
        if seconds:
            ledger.decide(subject.component.role, "progress deadline", f"{seconds} s", f"annotation {key}")
            return seconds
        ledger.error(
            "PL343", subject.annotation_path(key), f"{written}, must be a duration of whole seconds such as 20m"
        )
    budget = max(subject.start_budget_s, subject.allowed_start_s)
    deadline = max(LEAST_DEADLINE_S, budget + 300)
    reason = (
        f"{budget} s for the start and 5 minutes for image and node" if deadline > LEAST_DEADLINE_S else "the least"
    )
    ledger.decide(subject.component.role, "progress deadline", f"{deadline} s", reason)
    return deadline

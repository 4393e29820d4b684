"""How long a replica takes to start, and whether timeouts and the devices of the cluster allow for that. Pure."""

import math
from collections.abc import Iterator
from typing import Final

from pilotlight.plan.component_context import BOOT_S, NODE_RATE, PlanContext
from pilotlight.plan.model_storage import VOLUME
from pilotlight.plan.types import DecisionLog, Workload

KNATIVE_LONGEST_S: Final = 600  # max-revision-timeout-seconds, unless the cluster raises it
DRAIN_S: Final = 30  # how long Knative's queue-proxy drains a pod


def check_cold_start(context: PlanContext, workload: Workload, log: DecisionLog) -> None:
    """Record how long the first request after an idle time waits; warn about limits below (PL381, PL382)."""
    if not context.serves_model or workload.canary:
        return
    volumes = workload.template["spec"].get("volumes") or ()
    on_node = any("hostPath" in volume for volume in volumes if volume["name"] == VOLUME)
    rate = max(context.capabilities.load_rate_bytes_s, NODE_RATE if on_node else 1)
    seconds = BOOT_S // 4 + math.ceil(context.model_bytes / rate) if context.model_bytes else 0
    source = f"{context.model_bytes / 1e9:.1f} GB at {rate / 1e6:.0f} MB/s{' from the node' * on_node}, plus startup"
    if workload.scaling.min_replicas == 0:
        wait = f"about {seconds} s" if seconds else "as long as the model loads"
        reason = "the first request after an idle time waits for process start and model load"
        log.decide(context.component.role, "cold start", wait, f"{reason}: {source}" if seconds else reason)
        _check_drain(context, log)
    for path, limit, fix in _limits(context, workload, seconds):
        log.warn("PL381", path, f"{limit}, but a start takes about {seconds} s ({source}); {fix}")


def _limits(context: PlanContext, workload: Workload, seconds: int) -> Iterator[tuple[str, str, str]]:
    """Yield path, limit and fix of each limit that a start exceeds."""
    idle = workload.scaling.min_replicas == 0
    timeout = workload.timeout_seconds or 0
    # In a cluster our gateway holds requests for raw pods until the progress deadline.
    if idle and timeout < seconds and (context.serverless or not context.capabilities.is_cluster):
        name = "timeoutSeconds" if context.service.group == "ome" else "timeout"
        beyond = f" and Knative's max-revision-timeout-seconds, which is {KNATIVE_LONGEST_S}"
        beyond *= context.serverless and seconds > KNATIVE_LONGEST_S
        fix = f"set it to {-(-seconds // 60) * 60}{beyond}, or minReplicas to 1"
        yield context.path(name), f"the first request after an idle time may wait {timeout} s", fix
    if workload.progress_deadline_seconds < seconds:
        limit = f"the progress deadline is {workload.progress_deadline_seconds} s"
        yield context.path(), limit, "remove its annotation, or raise it"
    if not context.serverless and context.allowed_start_s < seconds:
        limit, cooldown = f"its startupProbe allows {context.allowed_start_s} s", workload.scaling.cooldown_period
        if idle and workload.scaling.scaler == "keda" and cooldown < seconds:
            limit += f", KEDA's cooldown {cooldown} s"
        yield context.path(), limit, "raise the failureThreshold of the probe, or remove the probe"


def _check_drain(context: PlanContext, log: DecisionLog) -> None:
    """Warn where a new replica cannot start while Knative drains the last one: it holds the devices."""
    total, needed = context.capabilities.gpus_total, context.gpus
    if context.serverless and needed and total is not None and total < 2 * needed:
        drain = f"for {DRAIN_S} s after a scale to zero Knative drains the old replica, which holds {needed} of the"
        effect = f"cluster's {total} GPUs, and a new one waits"
        log.warn("PL382", context.path("minReplicas"), f"{drain} {effect}; use RawDeployment, or set it to 1")

"""CPU, memory and devices of the main container, and shared memory for GPU processes."""

from collections.abc import Mapping
from typing import Any, Final

from pilotlight import quantities
from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.subject import PlanContext

Json = Any
LEAST_MEMORY: Final = 1 << 30
SHM_BYTES: Final = 1 << 30
SHM_VOLUME: Final = "shared-memory"
SHM_PATH: Final = "/dev/shm"  # noqa: S108 - the mount point that every CUDA program knows


def decide_resources(context: PlanContext, log: DecisionLog) -> dict[str, Json]:
    """Return the document's resources with defaults: a cpu request for the HPA, memory for the model, device limits."""
    written = context.choice.container.get("resources") or {}
    requests, limits = dict(written.get("requests") or {}), dict(written.get("limits") or {})
    for name in [name for name in requests if quantities.is_gpu(name)]:
        # The API server rejects a device without a limit, and OME's documents often have only the request.
        limits.setdefault(name, requests[name])
    requests.setdefault("cpu", limits.get("cpu", "1"))
    if "memory" not in requests and "memory" not in limits:
        limits["memory"] = requests["memory"] = _memory(context, log)
    requests.setdefault("memory", limits.get("memory"))
    _check_memory(context, limits, log)
    return {**written, "requests": requests, "limits": limits} if limits else {**written, "requests": requests}


def _memory(context: PlanContext, log: DecisionLog) -> str:
    if context.choice.gateway:
        size, reason = LEAST_MEMORY, "no model in it"
    elif not context.model_bytes:
        size, reason = 2 * LEAST_MEMORY, "the model's size is unknown"
    else:
        size = max(LEAST_MEMORY, 2 * context.model_bytes)
        reason = f"twice the model's {context.model_bytes / 1e9:.1f} GB"
    if context.gpus:
        size, reason = size + SHM_BYTES, f"{reason}, and {SHM_PATH}, which counts as memory"
    memory = quantities.mebibytes(size)
    log.decide(context.component.role, "memory", memory, reason)
    return memory


def _check_memory(context: PlanContext, limits: Mapping[str, Json], log: DecisionLog) -> None:
    """Warn if the weights do not fit into memory; with a GPU they only pass through it in parts."""
    limit = quantities.quantity_or_zero(limits["memory"]) if "memory" in limits else None
    if limit is not None and context.model_bytes and not context.gpus and limit < context.model_bytes:
        log.warn(
            "PL344", context.path("runner.resources.limits.memory"),
            f"{limits['memory']} is less than the model's {quantities.mebibytes(context.model_bytes)}; raise it",
        )  # fmt: skip


def shared_memory(container: Mapping[str, Json], has_gpus: bool) -> tuple[list[Json], list[Json]]:
    """Return volume and mount of a memory-backed /dev/shm, unless the container has one; the default is 64 MB."""
    mounted = any(mount.get("mountPath") == SHM_PATH for mount in container.get("volumeMounts") or ())
    if mounted or not has_gpus:
        return [], []
    size = quantities.mebibytes(SHM_BYTES)
    return (
        [{"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}}],
        [{"name": SHM_VOLUME, "mountPath": SHM_PATH}],
    )

"""CPU, memory and devices of the main container, and the shared memory that GPU processes exchange tensors through."""

from collections.abc import Mapping
from typing import Any, Final

from pilotlight import quantities
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.subject import Subject

Json = Any
LEAST_MEMORY: Final = 1 << 30
SHM_BYTES: Final = 1 << 30
SHM_VOLUME: Final = "shared-memory"
SHM_PATH: Final = "/dev/shm"  # noqa: S108 - the mount point that every CUDA program knows


def decide_resources(subject: Subject, ledger: Ledger) -> dict[str, Json]:
    """What the document says, completed: a cpu request for an HPA to divide by, memory for the model, device limits."""
    written = subject.choice.container.get("resources") or {}
    requests, limits = dict(written.get("requests") or {}), dict(written.get("limits") or {})
    for name in [name for name in requests if quantities.is_gpu(name)]:
        # The API refuses a device without a limit, and OME's documents often have only the request.
        limits.setdefault(name, requests[name])
    requests.setdefault("cpu", limits.get("cpu", "1"))
    if "memory" not in requests and "memory" not in limits:
        limits["memory"] = requests["memory"] = _memory(subject, ledger)
    requests.setdefault("memory", limits.get("memory"))
    _check_memory(subject, limits, ledger)
    return {**written, "requests": requests, "limits": limits} if limits else {**written, "requests": requests}


def _memory(subject: Subject, ledger: Ledger) -> str:
    if subject.choice.gateway:
        size, reason = LEAST_MEMORY, "no model in it"
    elif not subject.model_bytes:
        size, reason = 2 * LEAST_MEMORY, "the model's size is unknown"
    else:
        size = max(LEAST_MEMORY, 2 * subject.model_bytes)
        reason = f"twice the model's {subject.model_bytes / 1e9:.1f} GB"
    if subject.gpus:
        size, reason = size + SHM_BYTES, f"{reason}, and {SHM_PATH}, which counts as memory"
    memory = quantities.mebibytes(size)
    ledger.decide(subject.component.role, "memory", memory, reason)
    return memory


def _check_memory(subject: Subject, limits: Mapping[str, Json], ledger: Ledger) -> None:
    """On a device the weights pass through memory in parts; without one they stay there."""
    limit = quantities.number(limits["memory"]) if "memory" in limits else None
    if limit is not None and subject.model_bytes and not subject.gpus and limit < subject.model_bytes:
        ledger.warn(
            "PL344", subject.path("runner.resources.limits.memory"),
            f"{limits['memory']} is less than the model's {quantities.mebibytes(subject.model_bytes)}; raise it",
        )  # fmt: skip


def shared_memory(container: Mapping[str, Json], has_gpus: bool) -> tuple[list[Json], list[Json]]:
    """Volume and mount of a memory-backed /dev/shm, unless the container brings one; without it there are 64 MB."""
    mounted = any(mount.get("mountPath") == SHM_PATH for mount in container.get("volumeMounts") or ())
    if mounted or not has_gpus:
        return [], []
    size = quantities.mebibytes(SHM_BYTES)
    return (
        [{"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}}],
        [{"name": SHM_VOLUME, "mountPath": SHM_PATH}],
    )

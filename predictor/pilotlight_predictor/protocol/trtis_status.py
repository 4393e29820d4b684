"""Values of the TRTIS protocol's ServerStatus and RequestStatus. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.lifecycle import ServerState
from pilotlight_predictor.protocol.trtis_schema import CODES, MODEL_STATES
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.stats import ModelStats

MAX_MESSAGE: Final = 1000  # characters: many clients reject headers of 8 KiB
SERVER_STATES: Final = {
    ServerState.INITIALIZING: "SERVER_INITIALIZING",
    ServerState.LOADING: "SERVER_INITIALIZING",
    ServerState.READY: "SERVER_READY",
    ServerState.FAILED: "SERVER_FAILED_TO_INITIALIZE",
    ServerState.STOPPING: "SERVER_EXITING",
}
_OTHER_CODES: Final = {"DEADLINE": "UNAVAILABLE", "CANCELLED": "UNAVAILABLE"}
_OTHER_STATES: Final = {"PARKED": "MODEL_READY"}  # it accepts requests
ALL_SIZES: Final = 0  # key of statistics that are not recorded by batch size


def error_status(error: PredictorError) -> dict[str, Any]:
    """Return the values of a RequestStatus; codes that TRTIS does not have are UNKNOWN."""
    code = _OTHER_CODES.get(error.code, error.code)
    return {"code": code if code in CODES.numbers else "UNKNOWN", "msg": str(error)[:MAX_MESSAGE]}


def model_status(
    name: str,
    config: ModelConfig | None,
    rows: Iterable[Mapping[str, str]],
    stats: Mapping[int, ModelStats],
) -> dict[str, Any]:
    """Return the values of a ModelStatus from rows of the repository index and statistics by served version."""
    versions = {int(row["version"]): row["state"] for row in rows if "version" in row}
    return {
        "config": {"name": name} if config is None else _config(config),
        "version_status": {version: _version(state, stats.get(version)) for version, state in versions.items()},
    }


def _config(config: ModelConfig) -> dict[str, Any]:
    raw = dict(config.raw)
    return {
        **raw,
        "name": config.name,
        "platform": config.platform or config.backend,
        "tags": raw.get("metric_tags"),
    }


def _version(state: str, stats: ModelStats | None) -> dict[str, Any]:
    name = _OTHER_STATES.get(state, f"MODEL_{state}")
    values: dict[str, Any] = {"ready_state": name if name in MODEL_STATES.numbers else "MODEL_UNKNOWN"}
    if stats is not None:
        values["infer_stats"] = _infer_stats(stats)
        values["model_execution_count"] = stats.execution_count
        values["model_inference_count"] = stats.inference_count
    return values


def _infer_stats(stats: ModelStats) -> dict[int, dict[str, Any]]:
    """Return compute times by batch size, and request times, which batches share, under ALL_SIZES.

    A client that sums over the sizes thus gets each figure once.
    """
    if not stats.success_count and not stats.failure_count:
        return {}
    totals = {
        "success": _duration(stats.success_count, stats.success_ns),
        "failed": _duration(stats.failure_count, stats.failure_ns),
        "queue": _duration(stats.success_count, stats.queue_ns),
    }
    sizes = {size: {"compute": _duration(batch[0], sum(batch[1:4]))} for size, batch in sorted(stats.batches.items())}
    return {ALL_SIZES: totals, **sizes}


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "total_time_ns": ns}

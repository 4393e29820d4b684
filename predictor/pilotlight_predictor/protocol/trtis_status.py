"""What the server knows of its models → the values of the TensorRT Inference Server's ServerStatus. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.lifecycle import State
from pilotlight_predictor.protocol.trtis_schema import CODES, MODEL_STATES
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.stats import ModelStats

MAX_MESSAGE: Final = 1000  # characters: a header of 8 KiB is more than many clients take
SERVER_STATES: Final = {
    State.INITIALIZING: "SERVER_INITIALIZING",
    State.LOADING: "SERVER_INITIALIZING",
    State.READY: "SERVER_READY",
    State.FAILED: "SERVER_FAILED_TO_INITIALIZE",
    State.STOPPING: "SERVER_EXITING",
}
_OTHER_CODES: Final = {"DEADLINE": "UNAVAILABLE", "CANCELLED": "UNAVAILABLE"}
_OTHER_STATES: Final = {"PARKED": "MODEL_READY"}  # it answers
ALL_SIZES: Final = 0  # the key of figures that are not kept by batch size


def refusal(error: PredictorError) -> dict[str, Any]:
    """The values of a RequestStatus; codes that were never heard of in 2018 are UNKNOWN."""
    code = _OTHER_CODES.get(error.code, error.code)
    return {"code": code if code in CODES.numbers else "UNKNOWN", "msg": str(error)[:MAX_MESSAGE]}


def model_status(
    name: str,
    config: ModelConfig | None,
    rows: Iterable[Mapping[str, str]],
    stats: Mapping[int, ModelStats],
) -> dict[str, Any]:
    """`rows` are those of the repository index; `stats` those of the versions that serve."""
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
    known = _OTHER_STATES.get(state, f"MODEL_{state}")
    values: dict[str, Any] = {"ready_state": known if known in MODEL_STATES.numbers else "MODEL_UNKNOWN"}
    if stats is not None:
        values["infer_stats"] = _infer_stats(stats)
        values["model_execution_count"] = stats.execution_count
        values["model_inference_count"] = stats.inference_count
    return values


def _infer_stats(stats: ModelStats) -> dict[int, dict[str, Any]]:
    """Compute time by the size of the batch that was executed; requests, which may share one, all together.

    So a client that sums over the sizes gets each figure once.
    """
    if not stats.success_count and not stats.failure_count:
        return {}
    together = {
        "success": _duration(stats.success_count, stats.success_ns),
        "failed": _duration(stats.failure_count, stats.failure_ns),
        "queue": _duration(stats.success_count, stats.queue_ns),
    }
    sizes = {size: {"compute": _duration(batch[0], sum(batch[1:4]))} for size, batch in sorted(stats.batches.items())}
    return {ALL_SIZES: together, **sizes}


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "total_time_ns": ns}

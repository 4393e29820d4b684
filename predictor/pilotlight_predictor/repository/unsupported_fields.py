"""Unsupported configuration fields: rejected where responses would be wrong, else reported as ignored. Pure.

`check_source` rejects after validation; the loader logs the ignored ones. docs/reference/http-api.md lists
both under Differences.
"""

from collections.abc import Iterator
from typing import Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig, raw_config

_BLOCKS: Final = ("runtime", "model_operations", "model_repository_agents", "model_metrics")
_OF_CUDA: Final = ("busy_wait_events", "output_copy_stream")
_OF_INSTANCES: Final = ("rate_limiter", "secondary_devices", "profile", "passive", "host_policy")


def reject_unsupported(config: ModelConfig) -> None:
    """Raise LoadFailed for fields that change the outputs of a model, since clients could not detect wrong results."""
    unsupported = {
        "sequence_batching of a decoupled model": config.sequence_batching is not None and config.decoupled,
        "batch_input": bool(config.raw.get("batch_input")),
        "batch_output": bool(config.raw.get("batch_output")),
    }
    for field, is_set in unsupported.items():
        if is_set:
            page = "docs/reference/http-api.md, Differences"
            raise LoadFailed(f"{config.name}: {field} is not supported; remove it ({page})")


def ignored_fields(config: ModelConfig, *, graphs: bool = False) -> list[str]:
    """Return the fields that are set and ignored; `graphs`: the backend captures CUDA graphs."""
    ignored = [field for field in _BLOCKS if config.raw.get(field)]
    if config.raw.get("ensemble_scheduling", {}).get("max_inflight_requests"):
        ignored.append("ensemble_scheduling.max_inflight_requests")
    ignored += _optimizations(config, graphs)
    if any(tensor.allow_ragged for tensor in config.inputs):
        ignored.append("input.allow_ragged_batch")
    groups = config.raw.get("instance_group", [])
    return ignored + [f"instance_group.{field}" for field in _OF_INSTANCES if any(group.get(field) for group in groups)]


def _optimizations(config: ModelConfig, graphs: bool) -> Iterator[str]:
    if "optimization" not in config.explicit_fields:
        return
    defaults = raw_config({})["optimization"]
    for field, value in config.raw["optimization"].items():
        if field == "cuda" and graphs:
            yield from (f"optimization.cuda.{name}" for name in _OF_CUDA if value.get(name))
        elif value != defaults.get(field):
            yield f"optimization.{field}"

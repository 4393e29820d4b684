"""What a configuration may say but this server does not do: refused where answers would be wrong, else told. Pure.

`check_source` refuses, after the configuration was found valid; the loader tells the rest. docs/v2.md lists both under
Differences.
"""

from collections.abc import Iterator
from typing import Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig

_BLOCKS: Final = ("runtime", "model_operations", "model_repository_agents", "model_metrics")
_OF_CUDA: Final = ("busy_wait_events", "output_copy_stream")
_OF_INSTANCES: Final = ("rate_limiter", "secondary_devices", "profile", "passive", "host_policy")


def refuse_unserved(config: ModelConfig) -> None:
    """Raises LoadFailed for what changes a model's answers, which a client could not tell from right ones."""
    refused = {
        "sequence_batching of a decoupled model": config.sequence_batching is not None and config.decoupled,
        "batch_input": bool(config.raw.get("batch_input")),
        "batch_output": bool(config.raw.get("batch_output")),
    }
    for field, asked in refused.items():
        if asked:
            raise LoadFailed(f"{config.name}: {field} is not served yet; remove it (docs/v2.md, Differences)")


def without_effect(config: ModelConfig, *, graphs: bool = False) -> list[str]:
    """The fields that the author set and that change nothing here; `graphs`: the backend captures CUDA graphs."""
    return [*_blocks(config), *_optimizations(config, graphs), *_of_tensors_and_instances(config)]


def _blocks(config: ModelConfig) -> Iterator[str]:
    yield from (field for field in _BLOCKS if config.raw.get(field))
    if config.raw.get("ensemble_scheduling", {}).get("max_inflight_requests"):
        yield "ensemble_scheduling.max_inflight_requests"


def _optimizations(config: ModelConfig, graphs: bool) -> Iterator[str]:
    if "optimization" not in config.given:
        return
    from pilotlight_predictor.repository.raw import raw_config

    usual = raw_config({})["optimization"]
    for field, value in config.raw["optimization"].items():
        if field == "cuda" and graphs:
            yield from (f"optimization.cuda.{name}" for name in _OF_CUDA if value.get(name))
        elif value != usual.get(field):
            yield f"optimization.{field}"


def _of_tensors_and_instances(config: ModelConfig) -> Iterator[str]:
    if any(tensor.allow_ragged for tensor in config.inputs):
        yield "input.allow_ragged_batch"
    groups = config.raw.get("instance_group", [])
    yield from (f"instance_group.{field}" for field in _OF_INSTANCES if any(group.get(field) for group in groups))

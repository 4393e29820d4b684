"""Configuration as Triton's configuration endpoint prints it, with Triton's defaults."""

from collections.abc import Mapping
from typing import Any, Final

from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.repository.field_types import with_defaults
from pilotlight_predictor.repository.schema import MODEL_CONFIG

# Triton's backend of a platform, for `raw`; the typed view has the written values.
PLATFORM_BACKENDS: Final = {
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "caffe2_netdef": "caffe2",
}
_SEQUENCE_IDLE_US: Final = 1_000_000


def raw_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with Triton's defaults, in Triton's order."""
    full = dict(values)
    full.setdefault("backend", PLATFORM_BACKENDS.get(full.get("platform", ""), ""))
    full.setdefault("version_policy", {"latest": {"num_versions": 1}})
    largest = full.get("max_batch_size", 0)
    if "dynamic_batching" in full and largest:
        full["dynamic_batching"] = {"preferred_batch_size": [largest], **full["dynamic_batching"]}
    if "sequence_batching" in full:
        full["sequence_batching"] = {
            "max_sequence_idle_microseconds": _SEQUENCE_IDLE_US,
            **full["sequence_batching"],
        }
    if "instance_group" in full:
        full["instance_group"] = [{"count": 1, **group} for group in full["instance_group"]]
    if "ensemble_scheduling" in full:
        full["ensemble_scheduling"] = _steps_with_versions(full["ensemble_scheduling"])
    else:
        full["optimization"] = {
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            **full.get("optimization", {}),
        }
    return with_defaults(full, MODEL_CONFIG)


def _steps_with_versions(scheduling: Mapping[str, Any]) -> dict[str, Any]:
    """Write missing versions as -1 (newest): the default 0 of protobuf is a version, and the JSON may be sent back."""
    steps = [{"model_version": NEWEST, **step} for step in scheduling.get("step", [])]
    return {**scheduling, "step": steps}

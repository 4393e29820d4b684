"""From text or JSON to a ModelConfig: both generations, the typed view, `raw`, and every refusal with its place."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.config_reader import config_from_json, config_from_pbtxt
from pilotlight_predictor.repository.model_config import (
    DynamicBatching,
    EnsembleStep,
    InstanceGroup,
    QueuePolicy,
    TensorConfig,
    VersionPolicy,
    Warmup,
    WarmupInput,
)

TRT_MNIST = """
name: "trt_mnist"
platform: "tensorrt_plan"
max_batch_size: 8
input [
  {
    name: "data"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 1, 28, 28 ]
  }
]
output [
  {
    name: "prob"
    data_type: TYPE_FP32
    dims: [ 10, 1, 1 ]
    label_filename: "mnist_labels.txt"
  }
]
cc_model_filenames [
  {
    key: "6.1"
    value: "model6_1.plan"
  },
  {
    key: "7.0"
    value: "model7_0.plan"
  }
]
instance_group [
  {
    count: 2
    gpus: [ 0 ]
  }
]
"""
RESNET50 = """
name: "resnet50"
platform: "tensorflow_graphdef"
max_batch_size: 128
input [
  {
    name: "input"
    data_type: TYPE_FP32
    format: FORMAT_NHWC
    dims: [ 224, 224, 3 ]
  }
]
output [
  {
    name: "output"
    data_type: TYPE_FP32
    dims: [ 1000 ]
  }
]
"""
TODAY = """
name: "text"
backend: "python"
max_batch_size: 16
input { name: "TEXT" data_type: TYPE_STRING dims: 1 reshape { } optional: true }
input { name: "IDS" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }
output { name: "SCORE" data_type: TYPE_BF16 dims: [ 2 ] }
version_policy { specific { versions: [ 3, 1 ] } }
instance_group [ { kind: KIND_CPU count: 2 name: "cpu" }, { kind: KIND_GPU gpus: [ 0, 1 ] } ]
dynamic_batching {
  preferred_batch_size: [ 8, 4 ]
  max_queue_delay_microseconds: 100
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5000 max_queue_size: 7 }
  priority_queue_policy { key: 1 value { allow_timeout_override: true } }
}
model_warmup {
  name: "one"
  batch_size: 4
  count: 3
  inputs { key: "TEXT" value { data_type: TYPE_STRING dims: 1 input_data_file: "text.bin" } }
  inputs { key: "IDS" value { data_type: TYPE_INT64 dims: 8 random_data: true } }
}
parameters { key: "EXECUTION_ENV" value { string_value: "env.tar.gz" } }
metric_tags { key: "team" value: "search" }
response_cache { enable: true }
model_transaction_policy { decoupled: false }
default_model_filename: "text.py"
"""


def test_the_first_generation_gives_the_typed_view() -> None:
    config = config_from_pbtxt(TRT_MNIST, "config.pbtxt")
    assert (config.name, config.platform, config.max_batch_size) == ("trt_mnist", "tensorrt_plan", 8)
    assert config.inputs == (TensorConfig("data", "FP32", (1, 28, 28)),)
    assert config.outputs == (TensorConfig("prob", "FP32", (10, 1, 1), label_filename="mnist_labels.txt"),)
    assert config.cc_model_filenames == {"6.1": "model6_1.plan", "7.0": "model7_0.plan"}
    assert config.instance_groups == (InstanceGroup(count=2, gpus=(0,)),)
    assert config.version_policy == VersionPolicy("latest", 1)


def test_the_other_examples_of_the_first_generation_are_read() -> None:
    both = RESNET50 + "instance_group [ { gpus: [ 0 ] }, { gpus: [ 1 ] } ]"
    assert config_from_pbtxt(RESNET50, "f").instance_groups == ()
    assert config_from_pbtxt(both, "f").instance_groups == (InstanceGroup(gpus=(0,)), InstanceGroup(gpus=(1,)))
    assert config_from_pbtxt('tags { key: "a" value: "b" }', "f").metric_tags == {"a": "b"}


def test_todays_generation_gives_the_typed_view() -> None:
    config = config_from_pbtxt(TODAY, "config.pbtxt")
    assert config.inputs == (
        TensorConfig("TEXT", "BYTES", (1,), reshape=(), optional=True),
        TensorConfig("IDS", "INT64", (-1,), allow_ragged=True),
    )
    assert config.outputs == (TensorConfig("SCORE", "BF16", (2,)),)
    assert config.version_policy == VersionPolicy("specific", versions=(3, 1))
    assert config.instance_groups == (InstanceGroup(2, "CPU", name="cpu"), InstanceGroup(1, "GPU", (0, 1)))
    assert config.dynamic_batching == DynamicBatching(
        (4, 8), 100, False, 2, 2, QueuePolicy("DELAY", 5000, False, 7), {1: QueuePolicy(allow_timeout_override=True)}
    )
    inputs = {
        "TEXT": WarmupInput("BYTES", (1,), "file", "text.bin"),
        "IDS": WarmupInput("INT64", (8,), "random"),
    }
    assert config.warmups == (Warmup("one", inputs, 4, 3),)
    assert config.parameters == {"EXECUTION_ENV": "env.tar.gz"}
    assert config.metric_tags == {"team": "search"}
    assert config.response_cache
    assert not config.decoupled
    assert config.default_model_filename == "text.py"


def test_an_ensemble_gives_its_steps_and_unset_versions_mean_the_newest() -> None:
    config = config_from_pbtxt(ENSEMBLE, "f")
    assert config.ensemble == (
        EnsembleStep("clean", -1, {"IN": "raw"}, {"OUT": "clean"}),
        EnsembleStep("score", 2, {"X": "clean"}, {"Y": "score"}),
    )
    pinned = config_from_pbtxt(ENSEMBLE.replace("model_version: 2", "model_version: 0"), "f")
    unset = config_from_pbtxt(ENSEMBLE.replace("model_version: 2", ""), "f")
    assert (pinned.ensemble[1].version, unset.ensemble[1].version) == (0, -1)


def test_a_printed_ensemble_means_the_same_when_it_is_sent_back() -> None:
    """Triton prints 0 for a version that was left out; sent back, that would be version 0."""
    config = config_from_pbtxt(ENSEMBLE.replace("model_version: 2", ""), "f")
    assert config_from_json(config.raw, "f").ensemble == config.ensemble


ENSEMBLE = """
platform: "ensemble"
input { name: "raw" data_type: TYPE_FP32 dims: 4 }
output { name: "score" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step [
    { model_name: "clean" model_version: -1
      input_map { key: "IN" value: "raw" } output_map { key: "OUT" value: "clean" } },
    { model_name: "score" model_version: 2
      input_map { key: "X" value: "clean" } output_map { key: "Y" value: "score" } }
  ]
}
"""


def test_raw_is_printed_as_triton_prints_it() -> None:
    raw = config_from_pbtxt(RESNET50 + "dynamic_batching { }", "f").raw
    assert json.loads(json.dumps(raw)) == {
        "name": "resnet50",
        "platform": "tensorflow_graphdef",
        "backend": "tensorflow",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 128,
        "input": [
            {
                "name": "input",
                "data_type": "TYPE_FP32",
                "format": "FORMAT_NHWC",
                "dims": [224, 224, 3],
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
                "is_non_linear_format_io": False,
            }
        ],
        "output": [
            {
                "name": "output",
                "data_type": "TYPE_FP32",
                "dims": [1000],
                "label_filename": "",
                "is_shape_tensor": False,
                "is_non_linear_format_io": False,
            }
        ],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "dynamic_batching": {
            "preferred_batch_size": [128],
            "max_queue_delay_microseconds": 0,
            "preserve_ordering": False,
            "priority_levels": 0,
            "default_priority_level": 0,
            "priority_queue_policy": {},
        },
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


@pytest.mark.parametrize("text", [TRT_MNIST, RESNET50, TODAY, ENSEMBLE])
def test_raw_read_as_json_gives_the_same_configuration(text: str) -> None:
    config = config_from_pbtxt(text, "f")
    again = config_from_json(json.loads(json.dumps(config.raw)), "override")
    assert again.raw == config.raw
    assert again.inputs == config.inputs
    assert again.warmups == config.warmups
    assert again.ensemble == config.ensemble


def test_json_takes_both_spellings_strings_for_integers_and_null_for_unset() -> None:
    config = config_from_json(
        {
            "maxBatchSize": "8",
            "name": None,
            "input": [{"name": "x", "dataType": "TYPE_FP32", "dims": ["-1", 4.0]}],
            "dynamicBatching": {"maxQueueDelayMicroseconds": "100", "priorityLevels": 1, "defaultPriorityLevel": 1,
                                "priorityQueuePolicy": {"1": {"timeoutAction": 1}}},
            "sequence_batching": None,
        },
        "override",
    )  # fmt: skip
    assert config.max_batch_size == 8
    assert config.inputs == (TensorConfig("x", "FP32", (-1, 4)),)
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.max_queue_delay_us == 100
    assert config.dynamic_batching.priority_queue_policy == {1: QueuePolicy("DELAY")}


def test_queue_settings_are_accepted_for_a_model_that_does_not_batch() -> None:
    text = "max_batch_size: 0 dynamic_batching { default_queue_policy { max_queue_size: 4 } }"
    batching = config_from_pbtxt(text, "f").dynamic_batching
    assert batching is not None
    assert batching.default_queue_policy.max_queue_size == 4


_NAMES = st.sampled_from(
    ["name", "input", "output", "dims", "maxBatchSize", "max_batch_size", "dynamic_batching", "priority_queue_policy",
     "parameters", "string_value", "version_policy", "specific", "versions", "model_warmup", "inputs", "key", "1"]
)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["TYPE_FP32", "8", "-1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(_NAMES, _JSON, max_size=5))
def test_any_json_gives_a_configuration_or_a_failure(document: dict[str, Any]) -> None:
    try:
        config_from_json(document, "override")
    except LoadFailed as failure:
        assert str(failure).startswith("override: ")  # noqa: PT017

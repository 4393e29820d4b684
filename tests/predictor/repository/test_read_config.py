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


REFUSED = [
    # the schema
    ("inptu { }", "1:1", "did you mean 'input'?"),
    ("input { nam: 'x' }", "1:9", "did you mean 'name'?"),
    ("max_batch_size: 'a'", "1:17", "must be an integer"),
    ("max_batch_size: 1.5", "1:17", "must be an integer"),
    ("max_batch_size: 3000000000", "1:17", "must be an integer"),
    ("max_batch_size: 1 max_batch_size: 2", "1:19", "given twice"),
    ("max_batch_size: [1]", "1:1", "takes one value"),
    ("name: 3", "1:7", "a string in quotes"),
    (r"name: '\377'", "1:7", "a string in quotes"),
    ("input: 3", "1:8", "a message"),
    ("name { }", "1:6", "a string"),
    ("input { name: 'x' optional: maybe }", "1:29", "true or false"),
    ("input { name: 'x' data_type: TYPE_FP31 }", "1:30", "did you mean TYPE_FP3"),
    ("input { name: 'x' data_type: 99 }", "1:30", "one of TYPE_INVALID"),
    ("parameters { key: 'a' value { strin_value: 'x' } }", "1:31", "did you mean 'string_value'?"),
    ("parameters: 'a'", "1:13", "key"),
    ("version_policy { all { } latest { } }", "1:26", "cannot stand beside all"),
    # tensors
    ("input { data_type: TYPE_FP32 dims: 1 }", "1:7", "has no name"),
    ("input { name: 'x' dims: 1 } input { name: 'x' dims: 1 }", "1:43", "names must differ"),
    ("input { name: 'x' dims: [ 1, 0 ] }", "1:30", "dims[1] = 0"),
    ("input { name: 'x' dims: -2 }", "1:25", "must be 1 or more"),
    ("output { name: 'x' data_type: TYPE_INVALID }", "1:31", "TYPE_INVALID"),
    ("input { name: 'x' format: FORMAT_NCHW dims: [ 1, 2 ] }", "1:27", "three dims"),
    ("input { name: 'x' dims: [ 4 ] reshape { shape: [ 2, 3 ] } }", "1:39", "as many elements"),
    ("input { name: 'x' dims: [ -1, 4 ] reshape { shape: [ 4 ] } }", "1:43", "as many elements"),
    ("max_batch_size: 0 input { name: 'x' dims: [ 1 ] reshape { } }", "1:57", "is empty"),
    ("input { name: 'x' dims: 1 is_shape_tensor: true }", "1:44", "tensorrt_plan"),
    ("output { name: 'x' label_filename: '../../etc/passwd' }", "1:36", "inside the model's directory"),
    ("input { name: 'x' dims: 1 } batch_input { source_input: 'y' data_type: TYPE_FP32 }", "1:57", "no input"),
    ("batch_input { source_input: 'y' data_type: TYPE_FP64 }", "1:44", "TYPE_INT32"),
    # instances
    ("instance_group { count: 0 }", "1:25", "must be 1 or more"),
    ("instance_group { count: 1000000 }", "1:25", "must leave 1,024 instances or fewer in all"),
    ("instance_group { } instance_group { count: 512 gpus: [ 0, 1 ] }", "1:44", "1,024 instances or fewer"),
    # names and files
    ("max_batch_size: -1", "1:17", "must be 0"),
    ("backend: 'a b'", "1:10", "a name such as"),
    ("default_model_filename: '/etc/passwd'", "1:25", "inside the version's directory"),
    ("cc_model_filenames { key: '7.0' value: '../x' }", "1:40", "inside the version's directory"),
    # batching
    ("max_batch_size: 0 dynamic_batching { }", "1:36", "needs max_batch_size > 0"),
    ("max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 4, 8 ] }", "1:65", "at most max_batch_size"),
    ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }", "1:60", "1 or more"),
    ("max_batch_size: 4 dynamic_batching { priority_levels: 2 }", "1:36", "from 1 to priority_levels"),
    ("max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 3 }", "1:81", "which is 2"),
    ("max_batch_size: 4 dynamic_batching { priority_queue_policy { key: 1 value { } } }", "1:75", "which is 0"),
    (
        "max_batch_size: 4 dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
        "1:57",
        "priority_levels > 1",
    ),
    (
        "max_batch_size: 4 dynamic_batching { preserve_ordering: true "
        "default_queue_policy { default_timeout_microseconds: 1 timeout_action: DELAY } }",
        "1:133",
        "use REJECT",
    ),
    ("max_batch_size: 4 dynamic_batching { } sequence_batching { }", "1:40", "cannot stand beside dynamic_batching"),
    ("sequence_batching { direct { minimum_slot_utilization: 1.5 } }", "1:56", "from 0 to 1"),
    ("max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 3 } }", "1:70", "at most max_batch_size"),
    ("sequence_batching { oldest { max_candidate_sequences: -1 } }", "1:55", "must be 0 or more"),
    ("sequence_batching { iterative_sequence: true }", "1:41", "is not served"),
    ("sequence_batching { control_input { name: 'x' } }", "1:35", "has 0 controls"),
    (
        "sequence_batching { control_input { name: 'x' control { int32_false_true: 1 } } }",
        "1:55",
        "must have two values in one of int32_false_true",
    ),
    (
        "sequence_batching { control_input { name: 'x' control { kind: CONTROL_SEQUENCE_CORRID } } }",
        "1:55",
        "must have a data_type, one of TYPE_UINT64",
    ),
    ("sequence_batching { state { input_name: 'x' output_name: 'y' dims: 1 } }", "1:27", "has no data_type"),
    (
        "sequence_batching { state { input_name: 'x' output_name: 'y' dims: 1 data_type: TYPE_FP32 "
        "initial_state { data_file: '../x' } } }",
        "1:118",
        "inside <model>/initial_state",
    ),
    # instances and versions
    ("instance_group { count: 0 }", "1:25", "1 or more"),
    ("instance_group { kind: KIND_CPU gpus: 0 }", "1:33", "cannot stand beside kind: KIND_CPU"),
    ("instance_group { kind: KIND_MODEL gpus: 0 }", "1:35", "KIND_MODEL"),
    ("instance_group { gpus: -1 }", "1:24", "0 or more"),
    ("version_policy { latest { num_versions: 0 } }", "1:41", "1 or more"),
    ("version_policy { specific { } }", "1:27", "lists no versions"),
    ("version_policy { specific { versions: [ 1, -1 ] } }", "1:44", "0 or more"),
    # warm-up and cache
    (
        "input { name: 'x' dims: 1 } model_warmup { inputs { key: 'y' value { data_type: TYPE_FP32 zero_data: 1 } } }",
        "1:68",
        "no input",
    ),
    ("model_warmup { inputs { key: 'x' value { zero_data: true } } }", "1:40", "no data_type"),
    ("model_warmup { inputs { key: 'x' value { data_type: TYPE_FP32 } } }", "1:40", "no data"),
    (
        "model_warmup { inputs { key: 'x' value { data_type: TYPE_FP32 dims: -1 zero_data: true } } }",
        "1:69",
        "1 or more",
    ),
    (
        "model_warmup { inputs { key: 'x' value { data_type: TYPE_FP32 input_data_file: '../x' } } }",
        "1:80",
        "inside <model>/warmup",
    ),
    ("max_batch_size: 4 model_warmup { batch_size: 5 }", "1:46", "from 1 to max_batch_size"),
    ("response_cache { enable: true } sequence_batching { }", "1:16", "cannot serve"),
    ("response_cache { enable: true } model_transaction_policy { decoupled: true }", "1:16", "decoupled"),
    # ensembles
    ("platform: 'ensemble'", "1:1", "ensemble_scheduling"),
    ("backend: 'python' ensemble_scheduling { }", "1:39", "ensembles alone"),
    ("platform: 'ensemble' ensemble_scheduling { }", "1:42", "no step"),
    ("platform: 'ensemble' ensemble_scheduling { step { model_name: 'a' } }", "1:49", "is missing"),
    ("platform: 'ensemble' instance_group { count: 1 } ensemble_scheduling { step { } }", "1:22", "no meaning"),
]


@pytest.mark.parametrize(("text", "place", "says"), REFUSED)
def test_a_mistake_is_refused_with_its_place(text: str, place: str, says: str) -> None:
    with pytest.raises(LoadFailed) as failure:
        config_from_pbtxt(text, "m/config.pbtxt")
    assert says in str(failure.value)
    assert str(failure.value).startswith(f"m/config.pbtxt:{place}: ")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('value: "raw"', 'value: "rwa"', "input[0] 'raw' is not read by any step"),
        ('value: "clean" } }', 'value: "score" } }', "a tensor has one writer"),
        ('{ key: "X" value: "clean" }', '{ key: "X" value: "score" }', "missing, or in a circle"),
        ('output { name: "score"', 'output { name: "other"', "output[0] 'other' is not written by any step"),
        ('{ key: "X" value: "clean" }', '{ key: "X" value: "raw" }', "which nothing reads"),
    ],
)
def test_an_ensembles_tensors_must_flow_from_inputs_to_outputs(old: str, new: str, says: str) -> None:
    with pytest.raises(LoadFailed) as failure:
        config_from_pbtxt(ENSEMBLE.replace(old, new, 1), "f")
    assert says in str(failure.value)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"maxBatchSize": 1, "max_batch_size": 1}, "override: max_batch_size is given twice"),
        ({"inptu": []}, "override: unknown field 'inptu' in a model configuration; did you mean 'input'?"),
        ({"input": {}}, "override: input = an object, must be a list"),
        ({"input": [3]}, "override: input[0] is 3, must be an object"),
        ({"max_batch_size": True}, "override: max_batch_size = True, must be an integer"),
        ({"max_batch_size": 2**31}, "override: max_batch_size = 2147483648, must be an integer"),
        ({"max_batch_size": -1}, "override: max_batch_size = -1, must be 0"),
        ({"parameters": {"a": "b"}}, "override: parameters.a is 'b', must be an object"),
        (
            {"dynamic_batching": {"priority_queue_policy": {"x": {}}}},
            "priority_queue_policy.x = 'x', must be an integer",
        ),
        ([], "override: is a list, must be an object"),
    ],
)
def test_a_mistake_in_json_is_refused_with_its_path(document: Any, says: str) -> None:
    with pytest.raises(LoadFailed) as failure:
        config_from_json(document, "override")
    assert says in str(failure.value)


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

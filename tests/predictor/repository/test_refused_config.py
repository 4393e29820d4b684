"""Configurations that are refused: the place of the mistake, and what it should be."""

from typing import Any

import pytest
from tests.predictor.repository.test_read_config import ENSEMBLE

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.config_reader import config_from_json, config_from_pbtxt

REFUSED = [
    # the schema
    ("inptu { }", "1:1", "did you mean input?"),
    ("input { nam: 'x' }", "1:9", "did you mean name?"),
    ("max_batch_size: 'a'", "1:17", "must be an integer"),
    ("max_batch_size: 1.5", "1:17", "must be an integer"),
    ("max_batch_size: 3000000000", "1:17", "must be an integer"),
    ("max_batch_size: 1 max_batch_size: 2", "1:19", "max_batch_size is set twice; keep one"),
    ("max_batch_size: [1]", "1:1", "takes one value"),
    ("name: 3", "1:7", "a string in quotes"),
    (r"name: '\377'", "1:7", "a string in quotes"),
    ("input: 3", "1:8", "a message"),
    ("name { }", "1:6", "a string"),
    ("input { name: 'x' optional: maybe }", "1:29", "true or false"),
    ("input { name: 'x' data_type: TYPE_FP31 }", "1:30", "did you mean TYPE_FP3"),
    ("input { name: 'x' data_type: 99 }", "1:30", "one of TYPE_INVALID"),
    ("parameters { key: 'a' value { strin_value: 'x' } }", "1:31", "did you mean string_value?"),
    ("parameters: 'a'", "1:13", "key"),
    ("version_policy { all { } latest { } }", "1:26", "cannot be combined with all"),
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
    (
        "input { name: 'x' dims: 1 } batch_input { source_input: 'y' data_type: TYPE_FP32 }",
        "1:57",
        "is not an input of this model",
    ),
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
    (
        "max_batch_size: 4 dynamic_batching { } sequence_batching { }",
        "1:40",
        "cannot be combined with dynamic_batching",
    ),
    ("sequence_batching { direct { minimum_slot_utilization: 1.5 } }", "1:56", "from 0 to 1"),
    ("max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 3 } }", "1:70", "at most max_batch_size"),
    ("sequence_batching { oldest { max_candidate_sequences: -1 } }", "1:55", "must be 0 or more"),
    ("sequence_batching { iterative_sequence: true }", "1:41", "is not supported"),
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
    ("instance_group { kind: KIND_CPU gpus: 0 }", "1:33", "cannot be combined with kind: KIND_CPU"),
    ("instance_group { kind: KIND_MODEL gpus: 0 }", "1:35", "KIND_MODEL"),
    ("instance_group { gpus: -1 }", "1:24", "0 or more"),
    ("version_policy { latest { num_versions: 0 } }", "1:41", "1 or more"),
    ("version_policy { specific { } }", "1:27", "lists no versions"),
    ("version_policy { specific { versions: [ 1, -1 ] } }", "1:44", "0 or more"),
    # warm-up and cache
    (
        "input { name: 'x' dims: 1 } model_warmup { inputs { key: 'y' value { data_type: TYPE_FP32 zero_data: 1 } } }",
        "1:68",
        "which is not an input; known: x",
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
    ("response_cache { enable: true } sequence_batching { }", "1:16", "cannot be combined with sequence_batching"),
    ("response_cache { enable: true } model_transaction_policy { decoupled: true }", "1:16", "decoupled"),
    # ensembles
    ("platform: 'ensemble'", "1:1", "ensemble_scheduling"),
    ("backend: 'python' ensemble_scheduling { }", "1:39", "ensembles only"),
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
        ('{ key: "X" value: "clean" }', '{ key: "X" value: "score" }', "missing, or in a cycle"),
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
        ({"maxBatchSize": 1, "max_batch_size": 1}, "override: max_batch_size is set twice"),
        ({"inptu": []}, "override: unknown field 'inptu'; did you mean input?"),
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

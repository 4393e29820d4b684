"""Completion from the model file: what is derived, what is respected, and what is refused as a contradiction."""

import pytest

from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.autocomplete import BatchDefaults, ModelFileInfo, complete, metadata_specs
from pilotlight_predictor.repository.config_reader import config_from_json, config_from_pbtxt
from pilotlight_predictor.repository.model_config import DynamicBatching, ModelConfig, TensorConfig

BATCHES = ModelFileInfo("onnxruntime", [TensorSpec("x", "FP32", (-1, 4))], [TensorSpec("y", "BYTES", (-1, 3))], True)
FIXED = ModelFileInfo("onnxruntime", [TensorSpec("x", "FP32", (1, 4))], [TensorSpec("y", "BYTES", (1, 3))], False)
NOTHING = ModelFileInfo("python")
DEFAULTS = BatchDefaults(32, 250)


def served(text: str, found: ModelFileInfo = BATCHES, defaults: BatchDefaults = DEFAULTS) -> ModelConfig:
    return complete(config_from_pbtxt(text, "config.pbtxt"), "m", found, defaults)


def refusal(text: str, found: ModelFileInfo = BATCHES) -> str:
    with pytest.raises(LoadFailed) as failure:
        served(text, found)
    return str(failure.value)


def test_a_bare_model_that_can_batch_gets_the_default_batching() -> None:
    config = complete(None, "iris", BATCHES, DEFAULTS)
    assert (config.name, config.backend, config.platform) == ("iris", "onnxruntime", "onnxruntime_onnx")
    assert config.max_batch_size == 32
    assert config.inputs == (TensorConfig("x", "FP32", (4,)),)
    assert config.outputs == (TensorConfig("y", "BYTES", (3,)),)
    assert config.dynamic_batching == DynamicBatching(max_queue_delay_us=250)


@pytest.mark.parametrize("size", [0, 1])
def test_a_default_of_none_leaves_the_shapes_whole(size: int) -> None:
    config = complete(None, "iris", BATCHES, BatchDefaults(size))
    assert (config.max_batch_size, config.dynamic_batching) == (0, None)
    assert config.inputs[0].dims == (-1, 4)


def test_a_bare_model_that_cannot_batch_keeps_its_shapes() -> None:
    config = complete(None, "iris", FIXED, DEFAULTS)
    assert (config.max_batch_size, config.dynamic_batching) == (0, None)
    assert config.inputs[0].dims == (1, 4)


def test_raw_follows_what_was_derived() -> None:
    raw = complete(None, "iris", BATCHES, DEFAULTS).raw
    assert (raw["name"], raw["backend"], raw["max_batch_size"]) == ("iris", "onnxruntime", 32)
    assert raw["input"][0]["data_type"] == "TYPE_FP32"
    assert raw["output"][0] == {
        "name": "y", "data_type": "TYPE_STRING", "dims": [3], "label_filename": "",
        "is_shape_tensor": False, "is_non_linear_format_io": False,
    }  # fmt: skip
    assert raw["dynamic_batching"]["preferred_batch_size"] == [32]
    assert raw["dynamic_batching"]["max_queue_delay_microseconds"] == 250
    again = config_from_json(dict(raw), "override")
    assert again.inputs == (TensorConfig("x", "FP32", (4,)),)


def test_a_written_max_batch_size_is_respected() -> None:
    assert served("max_batch_size: 8").max_batch_size == 8
    assert served("max_batch_size: 8").dynamic_batching == DynamicBatching(max_queue_delay_us=250)
    assert served("max_batch_size: 1").dynamic_batching is None
    alone = served("max_batch_size: 0")
    assert (alone.max_batch_size, alone.dynamic_batching, alone.inputs[0].dims) == (0, None, (-1, 4))


def test_written_batching_is_kept_and_makes_room_for_its_preferred_sizes() -> None:
    config = served("dynamic_batching { preferred_batch_size: 64 max_queue_delay_microseconds: 9 }")
    assert config.max_batch_size == 64
    assert config.dynamic_batching == DynamicBatching((64,), 9)
    assert config.raw["dynamic_batching"]["preferred_batch_size"] == [64]


def test_preferred_sizes_that_the_model_cannot_batch_are_refused() -> None:
    assert "preferred_batch_size has 64" in refusal("dynamic_batching { preferred_batch_size: 64 }", FIXED)


def test_other_schedulers_are_left_alone() -> None:
    assert served("max_batch_size: 8 sequence_batching { }").dynamic_batching is None


def test_a_full_configuration_is_not_given_batching() -> None:
    text = "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 4 } "
    assert served(text + "output { name: 'y' data_type: TYPE_STRING dims: 3 }").dynamic_batching is None


def test_missing_halves_and_details_are_filled_from_the_file() -> None:
    config = served("max_batch_size: 8 input { name: 'x' } output { name: 'y' label_filename: 'l.txt' dims: 3 }")
    assert config.inputs == (TensorConfig("x", "FP32", (4,)),)
    assert config.outputs == (TensorConfig("y", "BYTES", (3,), label_filename="l.txt"),)
    assert config.raw["output"][0]["label_filename"] == "l.txt"


def test_a_model_that_cannot_batch_refuses_max_batch_size() -> None:
    assert "max_batch_size is 8, but the model does not batch" in refusal("max_batch_size: 8", FIXED)
    full = "max_batch_size: 8 input { name: 'x' dims: 4 } output { name: 'y' dims: 3 }"
    assert "[1, 4] in the model file, which does not batch" in refusal(full, FIXED)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("input { name: 'X' dims: [ -1, 4 ] }", "'X' is in the configuration but not in the model file"),
        ("input { name: 'x' data_type: TYPE_INT64 dims: [ -1, 4 ] }", "is FP32 in the model file but INT64"),
        ("input { name: 'x' dims: [ -1, 5 ] }", "[-1, 4] in the model file but [-1, 5]"),
        ("input { name: 'x' dims: [ -1, -1 ] }", "[-1, 4] in the model file but [-1, -1]"),
        ("input { name: 'x' dims: 4 }", "set max_batch_size > 0"),
        ("max_batch_size: 2 input { name: 'x' dims: [ -1, 4 ] }", "leave the batch dimension out"),
        ("output { name: 'z' dims: [ -1, 3 ] }", "whose outputs are y"),
    ],
)
def test_a_contradiction_names_both_sides(text: str, says: str) -> None:
    assert says in refusal(text)


def test_a_required_input_may_not_be_left_out_but_an_optional_one_may() -> None:
    extra = [*BATCHES.inputs, TensorSpec("mask", "FP32", (-1, 4))]
    text = "max_batch_size: 8 input { name: 'x' }"
    assert "needs input 'mask'" in refusal(text, ModelFileInfo("onnxruntime", extra, BATCHES.outputs, True))
    extra[1] = TensorSpec("mask", "FP32", (-1, 4), optional=True)
    assert len(served(text, ModelFileInfo("onnxruntime", extra, BATCHES.outputs, True)).inputs) == 1
    control = "control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }"
    made = text + f" sequence_batching {{ control_input {{ name: 'mask' {control} }} }}"
    extra[1] = TensorSpec("mask", "FP32", (-1, 4))
    assert len(served(made, ModelFileInfo("onnxruntime", extra, BATCHES.outputs, True)).inputs) == 1


def test_fixed_sizes_may_stand_for_variable_ones_and_reshape_is_what_the_file_sees() -> None:
    found = ModelFileInfo("onnxruntime", [TensorSpec("x", "FP32", (-1, -1))], [TensorSpec("y", "FP32", (-1,))], True)
    text = "max_batch_size: 8 input { name: 'x' dims: 7 } output { name: 'y' dims: 1 reshape { } }"
    config = served(text, found)
    assert config.inputs[0].dims == (7,)
    assert config.outputs[0].dims == (1,)


def test_without_findings_the_configuration_is_taken_as_it_is() -> None:
    text = "backend: 'python' max_batch_size: 4 input { name: 'x' data_type: TYPE_FP32 dims: 4 }"
    assert served(text, NOTHING).inputs == (TensorConfig("x", "FP32", (4,)),)
    assert complete(None, "m", NOTHING, DEFAULTS).backend == "python"
    assert "input 'x' has no data_type" in refusal("input { name: 'x' dims: 4 }", NOTHING)
    assert "input 'x' has no dims" in refusal("input { name: 'x' data_type: TYPE_FP32 }", NOTHING)


def test_metadata_has_the_batch_dimension_in_front() -> None:
    assert metadata_specs(complete(None, "m", BATCHES, DEFAULTS)) == (
        (TensorSpec("x", "FP32", (-1, 4)),),
        (TensorSpec("y", "BYTES", (-1, 3)),),
    )
    assert metadata_specs(complete(None, "m", FIXED, DEFAULTS))[0] == (TensorSpec("x", "FP32", (1, 4)),)

"""Schema of model configurations: Triton's, with the TensorRT Inference Server's as a subset.

One superset reads both generations, because no field ever changed its meaning; `tags` is the old name of
`metric_tags`. Fields are in the order in which Triton prints them.
"""

from collections.abc import Mapping
from math import isfinite, isnan
from typing import Any, Final, Literal, NamedTuple


class ScalarType(NamedTuple):
    """Built-in type; `low` and `high` bound the integers."""

    name: Literal["string", "bool", "integer", "float"]
    default: Any
    low: int = 0
    high: int = 0


class EnumType(NamedTuple):
    """Names in the order of their numbers; the first is the default."""

    values: tuple[str, ...]


class MessageType(NamedTuple):
    """Message; a `choice` is a protobuf oneof: at most one of its fields is set, and none has a default."""

    fields: "Mapping[str, FieldType]"
    choices: tuple[tuple[str, ...], ...] = ()


ValueType = ScalarType | EnumType | MessageType


class FieldType(NamedTuple):
    """Field of a message; `key` is the type of the keys of a map, only for the shape `map`."""

    type: ValueType
    shape: Literal["one", "many", "map"] = "one"
    key: ScalarType | None = None


STRING: Final = ScalarType("string", "")
BOOL: Final = ScalarType("bool", False)
FLOAT: Final = ScalarType("float", 0.0)
INT32: Final = ScalarType("integer", 0, -(2**31), 2**31 - 1)
INT64: Final = ScalarType("integer", 0, -(2**63), 2**63 - 1)
UINT32: Final = ScalarType("integer", 0, 0, 2**32 - 1)
UINT64: Final = ScalarType("integer", 0, 0, 2**64 - 1)


def many(type_: ValueType) -> FieldType:
    return FieldType(type_, "many")


def mapping(key: ScalarType, type_: ValueType) -> FieldType:
    return FieldType(type_, "map", key)


def message(*choices: tuple[str, ...], **fields: ValueType | FieldType) -> MessageType:
    table = {name: f if isinstance(f, FieldType) else FieldType(f) for name, f in fields.items()}
    return MessageType(table, choices)


def with_defaults(values: Mapping[str, Any], type_: MessageType) -> dict[str, Any]:
    """Return a message as Triton prints it: scalars, lists and maps always, messages and oneofs only if set."""
    in_choice = {name for choice in type_.choices for name in choice}
    result = {}
    for name, field in type_.fields.items():
        if name in values:
            result[name] = _field_with_defaults(values[name], field)
        elif name not in in_choice and not (field.shape == "one" and isinstance(field.type, MessageType)):
            result[name] = _default(field)
    return result


def _field_with_defaults(value: Any, field: FieldType) -> Any:
    if field.shape == "many":
        return [_value_with_defaults(item, field.type) for item in value]
    if field.shape == "map":
        return {str(key): _value_with_defaults(item, field.type) for key, item in value.items()}
    return _value_with_defaults(value, field.type)


def _value_with_defaults(value: Any, type_: ValueType) -> Any:
    if isinstance(type_, MessageType):
        return with_defaults(value, type_)
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"  # JSON has no such numbers
    return value


def _default(field: FieldType) -> Any:
    if field.shape != "one":
        return [] if field.shape == "many" else {}
    if isinstance(field.type, EnumType):
        return field.type.values[0]
    return {} if isinstance(field.type, MessageType) else field.type.default


DATA_TYPE: Final = EnumType(
    tuple(
        "TYPE_" + name
        for name in (
            "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
            "FP16", "FP32", "FP64", "STRING", "BF16",
        )
    )
)  # fmt: skip
_RESHAPE = message(shape=many(INT64))
_STRINGS = mapping(STRING, STRING)

INPUT: Final = message(
    name=STRING,
    data_type=DATA_TYPE,
    format=EnumType(("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW")),
    dims=many(INT64),
    reshape=_RESHAPE,
    is_shape_tensor=BOOL,
    allow_ragged_batch=BOOL,
    optional=BOOL,
    is_non_linear_format_io=BOOL,
)
OUTPUT: Final = message(
    name=STRING,
    data_type=DATA_TYPE,
    dims=many(INT64),
    reshape=_RESHAPE,
    label_filename=STRING,
    is_shape_tensor=BOOL,
    is_non_linear_format_io=BOOL,
)
_BATCH_INPUT_KINDS = EnumType((
    "BATCH_ELEMENT_COUNT", "BATCH_ACCUMULATED_ELEMENT_COUNT", "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN",
))  # fmt: skip
_BATCH_INPUT = message(
    kind=_BATCH_INPUT_KINDS, target_name=many(STRING), data_type=DATA_TYPE, source_input=many(STRING)
)
_BATCH_OUTPUT = message(
    target_name=many(STRING), kind=EnumType(("BATCH_SCATTER_WITH_INPUT_SHAPE",)), source_input=many(STRING)
)
_VERSION_POLICY = message(
    ("latest", "all", "specific"),
    latest=message(num_versions=UINT32),
    all=message(),
    specific=message(versions=many(INT64)),
)

_GRAPH_INPUTS = mapping(STRING, message(dim=many(INT64)))
_CUDA = message(
    graphs=BOOL,
    busy_wait_events=BOOL,
    graph_spec=many(
        message(batch_size=INT32, input=_GRAPH_INPUTS, graph_lower_bound=message(batch_size=INT32, input=_GRAPH_INPUTS))
    ),
    output_copy_stream=BOOL,
)
_ACCELERATOR = message(name=STRING, parameters=_STRINGS)
_OPTIMIZATION = message(
    graph=message(level=INT32),
    priority=EnumType(("PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN")),
    cuda=_CUDA,
    execution_accelerators=message(
        gpu_execution_accelerator=many(_ACCELERATOR), cpu_execution_accelerator=many(_ACCELERATOR)
    ),
    input_pinned_memory=message(enable=BOOL),
    output_pinned_memory=message(enable=BOOL),
    gather_kernel_buffer_threshold=UINT32,
    eager_batching=BOOL,
)

_QUEUE_POLICY = message(
    timeout_action=EnumType(("REJECT", "DELAY")),
    default_timeout_microseconds=UINT64,
    allow_timeout_override=BOOL,
    max_queue_size=UINT32,
)
DYNAMIC_BATCHING: Final = message(
    preferred_batch_size=many(INT32),
    max_queue_delay_microseconds=UINT64,
    preserve_ordering=BOOL,
    priority_levels=UINT64,
    default_priority_level=UINT64,
    default_queue_policy=_QUEUE_POLICY,
    priority_queue_policy=mapping(UINT64, _QUEUE_POLICY),
)

_CONTROL = message(
    kind=EnumType(
        ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_CORRID")
    ),
    int32_false_true=many(INT32),
    fp32_false_true=many(FLOAT),
    bool_false_true=many(BOOL),
    data_type=DATA_TYPE,
)
_INITIAL_STATE = message(
    ("zero_data", "data_file"), data_type=DATA_TYPE, dims=many(INT64), zero_data=BOOL, data_file=STRING, name=STRING
)
_STATE = message(
    input_name=STRING,
    output_name=STRING,
    data_type=DATA_TYPE,
    dims=many(INT64),
    initial_state=many(_INITIAL_STATE),
    use_same_buffer_for_input_output=BOOL,
    use_growable_memory=BOOL,
)
_SEQUENCE_BATCHING = message(
    ("direct", "oldest"),
    direct=message(max_queue_delay_microseconds=UINT64, minimum_slot_utilization=FLOAT),
    oldest=message(
        max_candidate_sequences=INT32,
        preferred_batch_size=many(INT32),
        max_queue_delay_microseconds=UINT64,
        preserve_ordering=BOOL,
    ),
    max_sequence_idle_microseconds=UINT64,
    control_input=many(message(name=STRING, control=many(_CONTROL))),
    state=many(_STATE),
    iterative_sequence=BOOL,
)
_ENSEMBLE_STEP = message(
    model_name=STRING, model_version=INT64, input_map=_STRINGS, output_map=_STRINGS, model_namespace=STRING
)

_INSTANCE_GROUP = message(
    name=STRING,
    kind=EnumType(("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")),
    count=INT32,
    rate_limiter=message(resources=many(message(**{"name": STRING, "global": BOOL, "count": UINT32})), priority=UINT32),
    gpus=many(INT32),
    secondary_devices=many(message(kind=EnumType(("KIND_NVDLA",)), device_id=INT64)),
    profile=many(STRING),
    passive=BOOL,
    host_policy=STRING,
)
_WARMUP_INPUT = message(
    ("zero_data", "random_data", "input_data_file"),
    data_type=DATA_TYPE,
    dims=many(INT64),
    zero_data=BOOL,
    random_data=BOOL,
    input_data_file=STRING,
)
_METRIC_CONTROL = message(
    ("histogram_options",), metric_identifier=message(family=STRING), histogram_options=message(buckets=many(FLOAT))
)

ALIASES: Final = {"tags": "metric_tags"}  # top-level names of the older generation
MODEL_CONFIG: Final = message(
    ("dynamic_batching", "sequence_batching", "ensemble_scheduling"),
    name=STRING,
    platform=STRING,
    backend=STRING,
    runtime=STRING,
    version_policy=_VERSION_POLICY,
    max_batch_size=INT32,
    input=many(INPUT),
    output=many(OUTPUT),
    batch_input=many(_BATCH_INPUT),
    batch_output=many(_BATCH_OUTPUT),
    optimization=_OPTIMIZATION,
    dynamic_batching=DYNAMIC_BATCHING,
    sequence_batching=_SEQUENCE_BATCHING,
    ensemble_scheduling=message(step=many(_ENSEMBLE_STEP), max_inflight_requests=UINT32),
    instance_group=many(_INSTANCE_GROUP),
    default_model_filename=STRING,
    cc_model_filenames=_STRINGS,
    metric_tags=_STRINGS,
    parameters=mapping(STRING, message(string_value=STRING)),
    model_warmup=many(message(name=STRING, batch_size=UINT32, inputs=mapping(STRING, _WARMUP_INPUT), count=UINT32)),
    model_operations=message(op_library_filename=many(STRING)),
    model_transaction_policy=message(decoupled=BOOL),
    model_repository_agents=message(agents=many(message(name=STRING, parameters=_STRINGS))),
    response_cache=message(enable=BOOL),
    model_metrics=message(metric_control=many(_METRIC_CONTROL)),
)


def data_type_name(datatype: str) -> str:
    """FP32 → TYPE_FP32, BYTES → TYPE_STRING."""
    return "TYPE_STRING" if datatype == "BYTES" else "TYPE_" + datatype


def datatype_of(data_type: str) -> str:
    """TYPE_FP32 → FP32, TYPE_STRING → BYTES; an unset type is empty."""
    if data_type in {"", "TYPE_INVALID"}:
        return ""
    return "BYTES" if data_type == "TYPE_STRING" else data_type.removeprefix("TYPE_")

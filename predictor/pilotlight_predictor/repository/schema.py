"""Schema of model configurations: Triton's, with the TensorRT Inference Server's as a subset.

One superset, protos/inference/model_config.proto, reads both generations, because no field ever changed its meaning;
`tags` is the old name of `metric_tags`. Fields are in the order in which Triton prints them.
"""

from collections.abc import Mapping
from math import isfinite, isnan
from typing import Any, Final

from pilotlight_predictor.core.message_types import EnumType, FieldType, MessageType, ValueType, message_type

ALIASES: Final = {"tags": "metric_tags"}  # top-level names of the older generation
MODEL_CONFIG: Final = message_type("inference.ModelConfig")
INPUT: Final = message_type("inference.ModelInput")
OUTPUT: Final = message_type("inference.ModelOutput")
DYNAMIC_BATCHING: Final = message_type("inference.ModelDynamicBatching")


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
        return next(iter(field.type.values))
    return {} if isinstance(field.type, MessageType) else field.type.default


def data_type_name(datatype: str) -> str:
    """FP32 → TYPE_FP32, BYTES → TYPE_STRING."""
    return "TYPE_STRING" if datatype == "BYTES" else "TYPE_" + datatype


def datatype_of(data_type: str) -> str:
    """TYPE_FP32 → FP32, TYPE_STRING → BYTES; an unset type is empty."""
    if data_type in {"", "TYPE_INVALID"}:
        return ""
    return "BYTES" if data_type == "TYPE_STRING" else data_type.removeprefix("TYPE_")

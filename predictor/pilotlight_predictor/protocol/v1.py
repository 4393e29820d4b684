"""Codec of V1 :predict: {"instances": rows} or {"inputs": columns}, and {"predictions": …}. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import InferRequest, InferResponse, Inputs
from pilotlight_predictor.protocol.pieces import dump_json
from pilotlight_predictor.protocol.v1_values import is_b64, to_json, to_tensor
from pilotlight_predictor.protocol.values import quote_nonfinite
from pilotlight_predictor.tensors import Tensor, TensorSpec

Document = Mapping[str, Any]
ROWS: Final = "instances"
COLUMNS: Final = "inputs"
_decode = msgspec.json.Decoder().decode


class DecodedPredict(NamedTuple):
    """Request and the layout of its response; `single_instance`: one instance was sent to a model without batching."""

    request: InferRequest
    by_rows: bool
    single_instance: bool


def read_document(body: Buffer) -> Document:
    """Return the JSON object of the body; NaN and infinities, which JSON lacks, as strings. Raise BadRequest."""
    try:
        document = _decode(body)
    except RecursionError:
        raise BadRequest("the request is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        quoted = quote_nonfinite(bytes(body))
        if quoted is None:
            raise BadRequest(f"the body is not valid JSON: {error}") from None
        return read_document(quoted)
    if not isinstance(document, dict):
        raise BadRequest('the body must be a JSON object: {"instances": […]}')
    return document


def decode_predict(
    model: str, version: int, document: Document, specs: Sequence[TensorSpec], *, batched: bool
) -> DecodedPredict:
    by_rows = ROWS in document
    if by_rows == (COLUMNS in document):
        raise BadRequest(f"the body has {'both' if by_rows else 'neither'} of instances and inputs, must have one")
    if not specs:
        raise BadRequest(f"model '{model}' declares no inputs, so V1 cannot tell their names and types; use V2")
    columns = _columns(document[ROWS], specs) if by_rows else _named(document[COLUMNS], specs)
    known = {spec.name: spec for spec in specs}
    inputs: Inputs = {}
    for name, values in columns.items():
        if name not in known:
            raise BadRequest(f"unexpected input '{name}' for model '{model}'; it takes {', '.join(known)}")
        where = f"{ROWS if by_rows else COLUMNS}['{name}']" if len(specs) > 1 else ROWS if by_rows else COLUMNS
        inputs[name] = to_tensor(where, known[name].datatype, values)
    lone = by_rows and not batched and _remove_instance(model, inputs, known)
    return DecodedPredict(InferRequest(model, inputs, version), by_rows, lone)


def _columns(instances: Any, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Turn rows into columns: an instance is the value of the only input, or an object with all inputs."""
    if not isinstance(instances, list) or not instances:
        raise BadRequest("instances must be a list with at least one instance")
    if not any(isinstance(instance, dict) for instance in instances) or _are_elements(instances, specs):
        return {_only(specs).name: instances}
    first = instances[0]
    for index, instance in enumerate(instances):
        if not isinstance(instance, dict) or not isinstance(first, dict) or instance.keys() != first.keys():
            raise BadRequest(f"instances[{index}] must be an object with the same names as instances[0]")
    return {name: [instance[name] for instance in instances] for name in first}


def _are_elements(instances: list[Any], specs: Sequence[TensorSpec]) -> bool:
    return len(specs) == 1 and specs[0].name != "b64" and all(is_b64(i) or isinstance(i, str) for i in instances)


def _named(values: Any, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    if isinstance(values, dict) and not is_b64(values):
        return values
    return {_only(specs).name: values}


def _only(specs: Sequence[TensorSpec]) -> TensorSpec:
    required = [spec for spec in specs if not spec.optional] or list(specs)
    if len(required) > 1:
        names = ", ".join(spec.name for spec in required)
        raise BadRequest(f"the model has the inputs {names}: each instance must be an object with their names")
    return required[0]


def _remove_instance(model: str, inputs: Inputs, known: Mapping[str, TensorSpec]) -> bool:
    """Remove the instance dimension in place, for a model without batching; return whether there was one."""
    if not all(tensor.array.ndim == len(known[name].shape) + 1 for name, tensor in inputs.items()):
        return False
    if any(len(tensor.array) != 1 for tensor in inputs.values()):
        raise BadRequest(f"model '{model}' does not batch: send one instance in a request")
    inputs |= {name: Tensor(tensor.datatype, tensor.array[0]) for name, tensor in inputs.items()}
    return True


def encode_predictions(decoded: DecodedPredict, response: InferResponse) -> bytes:
    outputs = response.outputs
    if decoded.single_instance:
        outputs = {name: Tensor(datatype, array[None]) for name, (datatype, array) in outputs.items()}
    values = {name: to_json(tensor) for name, tensor in outputs.items()}
    if len(values) == 1:
        return dump_json({"predictions": next(iter(values.values()))})
    if decoded.by_rows and _have_equal_rows(values):
        names = list(values)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*values.values(), strict=True)]
        return dump_json({"predictions": rows})
    return dump_json({"predictions": values})


def _have_equal_rows(values: Mapping[str, Any]) -> bool:
    """Return whether all outputs have the same number of rows."""
    lengths = {len(value) if isinstance(value, list | np.ndarray) else -1 for value in values.values()}
    return len(lengths) == 1 and -1 not in lengths

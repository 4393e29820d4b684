"""Codec of the generate extension: JSON ↔ InferRequest, InferResponse. Pure.

    {"text_input": "hi", "max_tokens": 5, "parameters": {"stream": true}}     keys that name inputs become tensors,
    {"model_name": "m", "model_version": "1", "text_output": "hello"}         all others parameters of the request

A scalar is a tensor of one element. For a batching model, a flat list is as many rows as its elements fill, and any
other value a batch of one. An output of one element is a scalar, any other a flat list.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import msgspec
import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import InferRequest, InferResponse, Inputs, Parameters
from pilotlight_predictor.protocol.v1_values import to_json, to_tensor
from pilotlight_predictor.protocol.v2_request import apply_parameters
from pilotlight_predictor.tensors import Tensor, TensorSpec

ID: Final = "id"
PARAMETERS: Final = "parameters"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def decode_generate(model: str, version: int, body: Buffer, specs: Sequence[TensorSpec], batched: bool) -> InferRequest:
    """Decode a body; `specs` are the model's inputs, with the batch dimension first if it is `batched`."""
    document = _document(body)
    known = {spec.name: spec for spec in specs}
    request = InferRequest(model, {}, version, _id(document.pop(ID, "")))
    nested = document.get(PARAMETERS)
    if isinstance(nested, dict):
        del document[PARAMETERS]
    parameters: Parameters = {}
    _sort_fields(document, "", known, batched, request.inputs, parameters)
    if isinstance(nested, dict):
        _sort_fields(nested, f"{PARAMETERS}.", known, batched, request.inputs, parameters)
    apply_parameters(request, parameters)
    return request


def _document(body: Buffer) -> dict[str, Any]:
    try:
        return _decode(body)
    except msgspec.ValidationError:
        raise BadRequest("the body must be a JSON object with the model's inputs as its keys") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deep") from None


def _id(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRequest("id must be a string or a number")
    return str(value)


def _sort_fields(
    fields: Mapping[str, Any],
    where: str,
    known: Mapping[str, TensorSpec],
    batched: bool,
    inputs: Inputs,
    parameters: Parameters,
) -> None:
    """Sort the fields into inputs and parameters."""
    for key, value in fields.items():
        if key in inputs or key in parameters:
            raise BadRequest(f"{where}{key} is given twice, in the body and in its parameters")
        if key in known:
            inputs[key] = _tensor(f"{where}{key}", known[key], value, batched)
        elif isinstance(value, str | int | float | bool):
            parameters[key] = value
        else:
            kind = "null" if value is None else "a list" if isinstance(value, list) else "an object"
            raise BadRequest(f"{where}{key} is {kind}, must be text, a number or true or false: it is no input")


def _tensor(where: str, spec: TensorSpec, value: Any, batched: bool) -> Tensor:
    tensor, rank = to_tensor(where, spec.datatype, value), len(spec.shape)
    array, row = tensor.array, spec.shape[1:]
    if array.ndim == 0:
        array = array.reshape((1,) * rank)
    elif batched and array.ndim == 1 and -1 not in row and array.size and array.size % prod(row) == 0:
        array = array.reshape(-1, *row)  # a flat list of several rows
    elif batched and array.ndim == rank - 1:
        array = array[np.newaxis]
    return Tensor(tensor.datatype, array)


def encode_generate(response: InferResponse) -> bytes:
    import orjson

    document: dict[str, Any] = {ID: response.id} if response.id else {}
    document |= {"model_name": response.model, "model_version": str(response.version), **response.parameters}
    document |= {name: _value(tensor) for name, tensor in response.outputs.items()}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _value(tensor: Tensor) -> Any:
    shape = () if tensor.array.size == 1 else (-1,)
    return to_json(Tensor(tensor.datatype, tensor.array.reshape(shape)))

"""Operations of models, each with the example of a request that is answered with 200. Pure.

openapi.py describes them, and the landing page shows how to call the first one of each model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pilotlight_predictor.core.tensors import NUMPY_TYPES, TensorSpec, element_count
from pilotlight_predictor.protocols.openai.tensors import TextCapabilities
from pilotlight_predictor.protocols.pages.model_description import ModelDescription

Json = Any
KINDS: Final = {"BOOL": "boolean", "BYTES": "string", "FP16": "number", "FP32": "number", "FP64": "number",
                "BF16": "number"}  # fmt: skip
GENERATE: Final = (("generate", "application/json"), ("generate_stream", "text/event-stream"))
HELLO: Final = "Hello"
TEXT: Final = {"type": "string"}
ANYTHING: Final = {"type": "object"}
COUNT: Final = {"type": "integer", "minimum": 1}
MESSAGE: Final = {"type": "object", "required": ["role", "content"], "properties": {"role": TEXT}}


class Operation(NamedTuple):
    """An operation. `body`: schema, None for a GET; `response`: schema of its JSON.

    `example`: None if none is known. With `zero_bytes` it is V2's JSON, and so many bytes of binary tensors follow it.
    """

    name: str
    path: str
    summary: str
    body: Json = None
    example: Json = None
    response: Json = ANYTHING
    content_type: str = "application/json"
    zero_bytes: int = 0


class OpenAiRoute(NamedTuple):
    """A route for models that `serves` is true of. `call`: its name in the openai package, if that has it."""

    path: str
    call: str
    serves: Callable[[TextCapabilities], bool]
    example: Mapping[str, Json]
    schema: Mapping[str, Json]


OPENAI: Final = (
    OpenAiRoute(
        "/v1/chat/completions", "chat.completions", lambda can: can.chats,
        {"messages": [{"role": "user", "content": HELLO}], "max_tokens": 16},
        {"messages": {"type": "array", "minItems": 1, "items": MESSAGE}, "max_tokens": COUNT},
    ),
    OpenAiRoute(
        "/v1/completions", "completions", lambda can: can.completes,
        {"prompt": HELLO, "max_tokens": 16}, {"prompt": {"type": ["string", "array"]}, "max_tokens": COUNT},
    ),
    OpenAiRoute(
        "/v1/embeddings", "embeddings", lambda can: can.embeds is not None,
        {"input": [HELLO]}, {"input": {"type": ["string", "array"]}},
    ),
    OpenAiRoute(
        "/v1/responses", "responses", lambda can: can.chats,
        {"input": HELLO, "max_output_tokens": 16},
        {"input": {"type": ["string", "array"]}, "max_output_tokens": COUNT},
    ),
    OpenAiRoute(
        "/v1/rerank", "rerank", lambda can: can.scores,
        {"query": HELLO, "documents": [HELLO, "Bye"]}, {"query": TEXT, "documents": {"type": "array", "minItems": 1}},
    ),
    OpenAiRoute(
        "/v1/score", "score", lambda can: can.scores,
        {"text_1": HELLO, "text_2": ["Bye"]}, {"text_1": TEXT, "text_2": {"type": ["string", "array"]}},
    ),
)  # fmt: skip


def openai_operations(models: Sequence[ModelDescription]) -> list[Operation]:
    """Return the operations of the OpenAI protocol that some of the models have."""
    operations = []
    for route in OPENAI:
        if names := [model.name for model in models if route.serves(model.capabilities)]:
            properties = {"model": {"enum": names}, **route.schema}
            body = {**_object(properties), "required": ["model", next(iter(route.schema))]}
            example = {"model": names[0], **route.example}
            operations.append(Operation(route.call, route.path, f"OpenAI: {route.call}", body, example))
    return operations


def metadata_operation(model: ModelDescription) -> Operation:
    return Operation("metadata", f"/v2/models/{quote(model.name, safe='')}", "Versions, inputs and outputs")


def model_operations(model: ModelDescription) -> list[Operation]:
    """Return the operations of one model under its own paths, inference first."""
    name = quote(model.name, safe="")
    operations = [
        metadata_operation(model),
        Operation("ready", f"/v2/models/{name}/ready", "Whether it is ready: 200, else 503 with the reason"),
    ]
    if model.verbs:
        verbs = [(verb, model.document if verb == "predict" else None) for verb in sorted(model.verbs, reverse=True)]
        own = "in the model's own JSON"
        return [Operation(verb, f"/v1/models/{name}:{verb}", f"V1 {verb}, {own}", ANYTHING, example)
                for verb, example in verbs] + operations  # fmt: skip
    if model.decoupled or model.capabilities.completes:
        operations[:0] = [_generate(model, f"/v2/models/{name}", *each) for each in GENERATE[model.decoupled :]]
    if model.versions and not model.decoupled:
        if model.inputs and not model.sequence:
            predictions = _object({"predictions": {}})
            operations.insert(0, Operation(
                "predict", f"/v1/models/{name}:predict", "V1 prediction", _object({"instances": {"type": "array"}}),
                _instances(model), predictions,
            ))  # fmt: skip
        operations.insert(0, _infer(model, f"/v2/models/{name}/infer"))
    return operations


def _infer(model: ModelDescription, path: str) -> Operation:
    inputs: list[Json] = []
    zero_bytes, texts = 0, True
    for name, tensor in model.example.items():
        size = element_count(tensor.shape) * NUMPY_TYPES[tensor.datatype].itemsize if tensor.values is None else 0
        values = tensor.values if isinstance(tensor.values, list) else [tensor.values]
        entry = {"parameters": {"binary_data_size": size}} if size else {"data": values}
        inputs.append({"name": name, "datatype": tensor.datatype, "shape": list(tensor.shape), **entry})
        zero_bytes, texts = zero_bytes + size, texts and "b64" not in str(values)
    example: Json = {"inputs": inputs}
    if model.sequence:
        example["parameters"] = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    required = sum(not spec.optional for spec in model.inputs)
    body = _object({"inputs": {**_tensors(model.inputs), "minItems": required}}, {"id": TEXT, "parameters": ANYTHING})
    answer = _object({"model_name": TEXT, "model_version": TEXT, "outputs": _tensors(model.outputs)})
    known = example if inputs and texts else None
    return Operation("infer", path, "V2 inference", body, known, answer, zero_bytes=zero_bytes)


def _instances(model: ModelDescription) -> Json:
    """Return the example as V1's JSON; None if it is too long."""
    values = {name: tensor.values for name, tensor in model.example.items()}
    if not values or None in values.values():
        return None
    rows = {name: each if model.batched else [each] for name, each in values.items()}
    if len(model.inputs) == 1:
        return {"instances": next(iter(rows.values()))}
    return {"instances": [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]}


def _generate(model: ModelDescription, path: str, verb: str, content_type: str) -> Operation:
    properties = {spec.name: {"type": [_kind(spec), "array"]} for spec in model.inputs}
    example: Json = {name: tensor.values for name, tensor in model.example.items()}
    if model.capabilities.completes:
        example = {"text_input": HELLO, "max_tokens": 16}
    known = example if example and None not in example.values() else None
    summary = "Triton's generate: keys are inputs by name, others are parameters"
    return Operation(verb, f"{path}/{verb}", summary, _object({}, properties), known, ANYTHING, content_type)


def _object(required: Mapping[str, Json], more: Mapping[str, Json] | None = None) -> Json:
    return {"type": "object", "required": list(required), "properties": {**required, **(more or {})}}


def _tensors(specs: Sequence[TensorSpec]) -> Json:
    """Return the schema of a list of these tensors, in any order."""
    each = [
        {"title": spec.name} | _object(
            {"name": {"const": spec.name}, "datatype": {"const": spec.datatype}, "shape": _shape(spec)},
            {"data": {"type": "array", "items": {"type": sorted({_kind(spec), "array"})}}, "parameters": ANYTHING},
        )
        for spec in specs
    ]  # fmt: skip
    return {"type": "array", "items": {"oneOf": each} if len(each) > 1 else each[0] if each else ANYTHING}


def _shape(spec: TensorSpec) -> Json:
    dims = [{"type": "integer", "minimum": 0} if dim < 0 else {"const": dim} for dim in spec.shape]
    exact = {"minItems": len(dims), "maxItems": len(dims), "description": str(list(spec.shape))}
    return {"type": "array", **({"prefixItems": dims} if dims else {}), **exact}


def _kind(spec: TensorSpec) -> str:
    return KINDS.get(spec.datatype, "integer")

"""Description of a model for the pages: its tensors, its state, and a request that it has answered or should answer."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import orjson

from pilotlight_predictor.core.tensors import Shape, Tensor, TensorSpec, fits, zeros
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import dump_json
from pilotlight_predictor.protocols.openai.tensors import TextCapabilities, text_capabilities
from pilotlight_predictor.protocols.v1_codec import to_json
from pilotlight_predictor.server.handler_context import Server

SHORT: Final = 256  # elements of a tensor that is written out


class ExampleTensor(NamedTuple):
    """A tensor of an example. `values`: nested lists as in V1's JSON, None for zeros that are too many to write."""

    datatype: str
    shape: Shape
    values: Any


class ModelDescription(NamedTuple):
    """A model. `example`: inputs of a request, empty if none is known; `document`: a request in V1's JSON."""

    name: str
    state: str
    reason: str = ""
    versions: tuple[str, ...] = ()  # that serve
    platform: str = ""
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    batched: bool = False
    decoupled: bool = False
    sequence: bool = False
    verbs: frozenset[str] = frozenset()  # of V1, on undecoded JSON
    example: Mapping[str, ExampleTensor] = {}
    document: Mapping[str, Any] | None = None
    chats: bool = True  # false: a text model without a chat template

    @property
    def capabilities(self) -> TextCapabilities:
        can = text_capabilities(self.inputs, self.outputs)
        return can._replace(chats=can.chats and self.chats)


def describe_models(server: Server) -> list[ModelDescription]:
    """Return all models but those that could be loaded and are not."""
    states = {row["name"]: (row["state"], row["reason"]) for row in server.registry.index()}  # of the newest version
    return [_describe(server, name, *states.get(name, ("LOADING", ""))) for name in server.registry.requested()]


def _describe(server: Server, name: str, state: str, reason: str) -> ModelDescription:
    served = server.registry.newest(name)
    if served is None:
        return ModelDescription(name, state, reason)
    config, sent = served.config, served.example
    return ModelDescription(
        name, state, reason, tuple(str(each.version) for each in server.registry.served(name)),
        config.platform or config.backend, served.inputs, served.outputs, config.max_batch_size > 0, served.decoupled,
        config.sequence_batching is not None, served.v1_verbs, _example(served),
        sent.document if sent is not None else None, served.chats,
    )  # fmt: skip


def _example(served: ModelVersion) -> dict[str, ExampleTensor]:
    """Return the inputs of the warm-up, else zeros; none for texts, of which an empty one may be refused."""
    sent = served.example.inputs if served.example is not None else {}
    example: dict[str, ExampleTensor] = {}
    for spec in served.inputs:
        tensor, shape = sent.get(spec.name), tuple(1 if dim < 0 else dim for dim in spec.shape)
        # As clients send it: a warm-up skips the `reshape` of a configuration.
        if tensor is not None and tensor.array.size <= SHORT and fits(tensor.array.shape, spec.shape):
            example[spec.name] = ExampleTensor(spec.datatype, tensor.array.shape, _values(tensor))
        elif spec.datatype == "BYTES" and not spec.optional:
            return {}
        elif not spec.optional:
            values = _values(zeros(spec.datatype, shape)) if prod(shape) <= SHORT else None
            example[spec.name] = ExampleTensor(spec.datatype, shape, values)
    return example


def _values(tensor: Tensor) -> Any:
    return orjson.loads(dump_json(to_json(tensor)))  # as text: 5.1, not 5.0999999046

"""Texts → vectors: one request per batch that the model takes, their answers put together in the order of the texts."""

from collections.abc import Sequence
from time import perf_counter
from typing import Final

import numpy as np

from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.generation import BadField
from pilotlight_predictor.inference import InferRequest, InferResponse, Outputs, RequestedOutput
from pilotlight_predictor.protocol.openai_request import EmbeddingAsked
from pilotlight_predictor.protocol.openai_response import embeddings
from pilotlight_predictor.routes.openai_answers import Answers, abandonable
from pilotlight_predictor.routes.openai_run import NAME
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.tensors import Array, Tensor, TensorSpec

COUNT: Final = "prompt_tokens"  # an output of this name tells how many tokens each text had


async def embed(
    server: Server, call: Call, served: ServedVersion, specs: tuple[TensorSpec, TensorSpec], asked: EmbeddingAsked
) -> Reply:
    _check_dimensions(asked, specs[1], served.name)
    requests = _requests(served, specs, asked.texts)
    limits = server.limits
    answers = Answers(lambda request, part: served.stream(request, part, limits), requests)
    server.metrics.in_flight += 1
    try:
        with abandonable(call):
            found = await _collected(answers, len(requests))
            vectors, tokens = _vectors(found, specs[1].name), sum(map(_tokens, found))
            body = await server.codecs.run(lambda: embeddings(vectors, served.name, asked.base64, tokens))
    except BaseException:
        answers.cancel()
        server.metrics.in_flight -= 1  # the dispatcher counts what is refused
        raise
    server.observe(served, NAME, 200, perf_counter() - call.started)
    return Reply(200, [body])


def _check_dimensions(asked: EmbeddingAsked, spec: TensorSpec, model: str) -> None:
    size = spec.shape[-1]
    if asked.dimensions and asked.dimensions != size:
        raise BadField(
            "dimensions", f"dimensions = {asked.dimensions}, must be {size} or left out: model '{model}' has no others"
        )


def _requests(
    served: ServedVersion, specs: tuple[TensorSpec, TensorSpec], texts: Sequence[str]
) -> list[InferRequest]:  # fmt: skip
    most = served.config.max_batch_size or (len(texts) if specs[0].shape[0] == -1 else 1)
    shape = tuple(1 for _ in specs[0].shape[1:])
    known = {spec.name for spec in served.outputs}
    outputs = tuple(RequestedOutput(name) for name in (specs[1].name, COUNT) if name in known)
    requests = []
    for begin in range(0, len(texts), most):
        rows = [text.encode("utf-8", "replace") for text in texts[begin : begin + most]]
        array = np.array(rows, dtype=object).reshape((len(rows), *shape))
        requests.append(InferRequest(served.name, {specs[0].name: Tensor("BYTES", array)}, outputs=outputs))
    return requests


async def _collected(answers: Answers, count: int) -> list[Outputs]:
    found: list[Outputs] = [{} for _ in range(count)]
    while (part := await answers.next()) is not None:
        response: InferResponse = part.response
        found[part.number] = found[part.number] | response.outputs
    return found


def _vectors(found: Sequence[Outputs], name: str) -> Array:
    arrays = [outputs[name].array for outputs in found]
    return np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])


def _tokens(outputs: Outputs) -> int:
    return int(outputs[COUNT].array.sum()) if COUNT in outputs else 0

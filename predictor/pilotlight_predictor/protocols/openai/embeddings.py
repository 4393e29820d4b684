"""Inferences on texts for the OpenAI protocol, one per batch, merged in the order of the texts; and embeddings."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Final

import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.core.requests import InferRequest, Outputs, RequestedOutput
from pilotlight_predictor.core.tensors import Array, Tensor, TensorSpec, objects
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import LONG
from pilotlight_predictor.protocols.openai.completions import NAME, ResponseMerger, cancel_on_disconnect
from pilotlight_predictor.protocols.openai.request import EmbeddingRequest
from pilotlight_predictor.protocols.openai.response import embeddings
from pilotlight_predictor.protocols.run_inference import off_loop
from pilotlight_predictor.server.handler_context import Server

COUNT: Final = "prompt_tokens"  # output with the number of tokens of each text
Columns = Mapping[TensorSpec, Sequence[str]]  # texts of each input


async def embed(
    server: Server,
    request: HttpRequest,
    served: ModelVersion,
    specs: tuple[TensorSpec, TensorSpec],
    body: EmbeddingRequest,
) -> HttpResponse:
    size = specs[1].shape[-1]
    if body.dimensions and body.dimensions != size:
        problem = f"must be {size} or unset for model '{served.name}'"
        raise BadField("dimensions", f"dimensions = {body.dimensions}, {problem}")

    def encode(vectors: Array, tokens: int) -> list[Buffer]:
        return embeddings(vectors, served.name, body.base64, tokens)

    return await infer_texts(server, request, served, {specs[0]: body.texts}, specs[1], encode)


async def infer_texts(
    server: Server, request: HttpRequest, served: ModelVersion, columns: Columns, output: TensorSpec,
    encode: Callable[[Array, int], list[Buffer]],
) -> HttpResponse:  # fmt: skip
    """Respond with what `encode` makes of the rows of `output`, one per text, and of the number of tokens.

    Texts of a batch have about the same length, since they are padded to the longest.
    """
    lengths = [sum(map(len, row)) for row in zip(*columns.values(), strict=True)]
    order = np.argsort(lengths, kind="stable")
    requests = await off_loop(
        server, len(request.body) > LONG, lambda: _requests(served, columns, output, order.tolist())
    )
    limits = server.limits
    merger = ResponseMerger(lambda infer_request, part: served.stream(infer_request, part, limits), *requests)
    server.metrics.in_flight += 1
    try:
        with cancel_on_disconnect(request):
            batches: list[Outputs] = [{} for _ in requests]
            while (part := await merger.next()) is not None:
                batches[part.number] = batches[part.number] | part.response.outputs
            arrays = [outputs[output.name].array for outputs in batches]
            rows = np.concatenate([array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array for array in arrays])
            tokens = sum(int(outputs[COUNT].array.sum()) for outputs in batches if COUNT in outputs)
            encoded = await server.codecs.run(lambda: encode(rows[np.argsort(order)], tokens))
    except BaseException:
        merger.cancel()
        server.metrics.in_flight -= 1  # the dispatcher counts rejected requests
        raise
    server.observe(served, NAME, 200, perf_counter() - request.started)
    return HttpResponse(200, encoded)


def _requests(served: ModelVersion, columns: Columns, output: TensorSpec, order: Sequence[int]) -> list[InferRequest]:
    first = next(iter(columns))
    batch_size = served.config.max_batch_size or (len(order) if first.shape[0] == -1 else 1)
    known = {spec.name for spec in served.outputs}
    outputs = tuple(RequestedOutput(name) for name in (output.name, COUNT) if name in known)
    requests = []
    for begin in range(0, len(order), batch_size):
        rows = order[begin : begin + batch_size]
        inputs = {}
        for spec, texts in columns.items():
            values = [texts[row].encode("utf-8", "replace") for row in rows]
            inputs[spec.name] = Tensor("BYTES", objects(values, (len(rows), *(1 for _ in spec.shape[1:]))))
        requests.append(InferRequest(served.name, inputs, outputs=outputs))
    return requests

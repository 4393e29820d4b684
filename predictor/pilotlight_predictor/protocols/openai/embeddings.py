"""Embeddings of the OpenAI protocol: one inference per batch of texts, merged in the order of the texts."""

from collections.abc import Sequence
from time import perf_counter
from typing import Final

import numpy as np

from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.core.requests import InferRequest, Outputs, RequestedOutput
from pilotlight_predictor.core.tensors import Tensor, TensorSpec
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import LONG
from pilotlight_predictor.protocols.openai.completions import NAME, ResponseMerger, cancel_on_disconnect
from pilotlight_predictor.protocols.openai.request import EmbeddingRequest
from pilotlight_predictor.protocols.openai.response import embeddings
from pilotlight_predictor.protocols.run_inference import off_loop
from pilotlight_predictor.server.handler_context import Server

COUNT: Final = "prompt_tokens"  # output with the number of tokens of each text


async def embed(
    server: Server,
    request: HttpRequest,
    served: ModelVersion,
    specs: tuple[TensorSpec, TensorSpec],
    body: EmbeddingRequest,
) -> HttpResponse:
    size, name = specs[1].shape[-1], specs[1].name
    if body.dimensions and body.dimensions != size:
        problem = f"must be {size} or left out: model '{served.name}' has no others"
        raise BadField("dimensions", f"dimensions = {body.dimensions}, {problem}")
    requests = await off_loop(server, len(request.body) > LONG, lambda: _requests(served, specs, body.texts))
    limits = server.limits
    merger = ResponseMerger(lambda infer_request, part: served.stream(infer_request, part, limits), *requests)
    server.metrics.in_flight += 1
    try:
        with cancel_on_disconnect(request):
            batches: list[Outputs] = [{} for _ in requests]
            while (part := await merger.next()) is not None:
                batches[part.number] = batches[part.number] | part.response.outputs
            arrays = [outputs[name].array for outputs in batches]
            vectors = np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])
            tokens = sum(int(outputs[COUNT].array.sum()) for outputs in batches if COUNT in outputs)
            encoded = await server.codecs.run(lambda: embeddings(vectors, served.name, body.base64, tokens))
    except BaseException:
        merger.cancel()
        server.metrics.in_flight -= 1  # the dispatcher counts rejected requests
        raise
    server.observe(served, NAME, 200, perf_counter() - request.started)
    return HttpResponse(200, encoded)


def _requests(served: ModelVersion, specs: tuple[TensorSpec, TensorSpec], texts: Sequence[str]) -> list[InferRequest]:
    batch_size = served.config.max_batch_size or (len(texts) if specs[0].shape[0] == -1 else 1)
    shape = tuple(1 for _ in specs[0].shape[1:])
    known = {spec.name for spec in served.outputs}
    outputs = tuple(RequestedOutput(name) for name in (specs[1].name, COUNT) if name in known)
    requests = []
    for begin in range(0, len(texts), batch_size):
        rows = [text.encode("utf-8", "replace") for text in texts[begin : begin + batch_size]]
        array = np.array(rows, dtype=object).reshape((len(rows), *shape))
        requests.append(InferRequest(served.name, {specs[0].name: Tensor("BYTES", array)}, outputs=outputs))
    return requests

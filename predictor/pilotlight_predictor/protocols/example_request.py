"""Decoder of an example request, which a model must answer before it is ready: V2's JSON, or V1's `instances`.

models/warmup.py finds the file and sends the request.
"""

from pilotlight_predictor.core.requests import NEWEST, InferRequest
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.v2.request_codec import decode_request
from pilotlight_predictor.repository.autocomplete import metadata_specs
from pilotlight_predictor.repository.model_config import ModelConfig


def decode_example(body: bytes, config: ModelConfig, verbs: frozenset[str]) -> InferRequest:
    """Decode an example; `verbs`: those of V1 that the model implements itself. Raises BadRequest."""
    from pilotlight_predictor.protocols.v1_codec import decode_predict, read_document  # few models have an example

    document = read_document(body)
    if "instances" not in document:
        if "inputs" not in document:
            raise BadRequest('the JSON has neither inputs (V2) nor instances (V1), such as {"inputs": […]}')
        return decode_request(config.name, NEWEST, body, None)
    if "predict" in verbs:
        return InferRequest(config.name, {}, document=document, verb="predict")
    specs, batched = metadata_specs(config)[0], config.max_batch_size > 0
    return decode_predict(config.name, NEWEST, document, specs, batched=batched).request

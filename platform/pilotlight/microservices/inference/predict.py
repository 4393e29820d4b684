"""One inference request to a running microservice, from validated parameters and media to results.

Chat models are called by OpenAI's chat protocol, tensor models by V2 with binary tensors. Used by the API and by batch
jobs; blocking, over the URL of `Platform.open_route`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from pilotlight.microservices.inference.client import InferenceFailed, call
from pilotlight.microservices.media import Limits, Media
from pilotlight.microservices.registry.model_kinds import ModelRequest, Schema

TIMEOUT_S: Final = 300.0
_AUTO: Final = {"conv_mode": "auto", "mode": "auto"}
_NOT_SENT: Final = frozenset({"batch_size", "confidence_threshold", "top_k", "inputs", "outputs"})


def predict(
    url: str, schema: Schema, request: ModelRequest, media: Sequence[Media], limits: Limits, timeout: float = TIMEOUT_S
) -> dict[str, Any]:
    """Return the `results` of one request."""
    if schema.protocol == "chat":
        return _chat(url, schema, request, media, timeout)
    if schema.kind == "tensors":
        return _tensors(url, request, timeout)
    return _images(url, schema, request, media, limits, timeout)


def _chat(url: str, schema: Schema, request: ModelRequest, media: Sequence[Media], timeout: float) -> dict[str, Any]:
    response = json.loads(
        call(url, "POST", "/v1/chat/completions", json.dumps(chat_body(schema, request, media)).encode(), timeout)
    )
    choice = response["choices"][0]
    results = {"response": choice["message"]["content"], "finish_reason": choice.get("finish_reason")}
    return results | {name: response[name] for name in ("model", "usage") if name in response}


def chat_body(schema: Schema, request: ModelRequest, media: Sequence[Media]) -> dict[str, Any]:
    """Return the body of a chat request; documented defaults are sent too, so that they apply in any container."""
    parts: list[dict[str, Any]] = [
        {"type": f"{each.kind}_url", f"{each.kind}_url": {"url": each.data_url}} for each in media
    ]
    content: Any = [*parts, {"type": "text", "text": request.text}] if parts else request.text
    plain = {
        name: value
        for name, value in request.values.items()
        if not schema.parameters[name].role and name not in _NOT_SENT and _AUTO.get(name) != value
    }
    return {"messages": [{"role": "user", "content": content}], **plain}


def _tensors(url: str, request: ModelRequest, timeout: float) -> dict[str, Any]:
    body = {name: request.values[name] for name in ("inputs", "outputs") if name in request.values}
    response = json.loads(
        call(url, "POST", f"/v2/models/{model(url, timeout)}/infer", json.dumps(body).encode(), timeout)
    )
    return {"outputs": response["outputs"]}


def _images(
    url: str, schema: Schema, request: ModelRequest, media: Sequence[Media], limits: Limits, timeout: float
) -> dict[str, Any]:
    from pilotlight.microservices.inference.images import ImageModel

    served = ImageModel(url, model(url, timeout), schema, limits, timeout)
    predictions = [
        each
        for some in _batches(media, request.values.get("batch_size", 1))
        for each in served.predict(some, request.values)
    ]
    named = [{"name": one.name, **each} for one, each in zip(media, predictions, strict=True)]
    single = {}
    if len(predictions) == 1 and "label" in predictions[0]:
        single = {"response": predictions[0]["label"], "confidence": predictions[0]["confidence"]}
    return {**single, "predictions": named}


def _batches(media: Sequence[Media], size: int) -> Iterator[Sequence[Media]]:
    for start in range(0, len(media), size):
        yield media[start : start + size]


def model(url: str, timeout: float) -> str:
    """Return the name of the one model that a microservice serves."""
    names = json.loads(call(url, "GET", "/v2/models", b"", timeout))["models"]
    if not names:
        raise InferenceFailed("the microservice serves no model yet", 503)
    return quote(str(names[0]), safe="")

"""One inference request to a running microservice, from validated parameters and media to results.

Chat models are called by OpenAI's chat protocol, tensor models by V2 with binary tensors. Used by the API and by batch
jobs; blocking, over the URL of `Platform.open_route`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from pilotlight.microservices.inference.client import PATH, InferenceFailed, call
from pilotlight.microservices.media import Limits, Media, fetch
from pilotlight.microservices.media.file_and_bucket_sources import links
from pilotlight.microservices.registry.model_kinds import ModelRequest, Schema
from pilotlight.microservices.registry.records import Workspace
from pilotlight.wire.http_client import decode_json

TIMEOUT_S: Final = 300.0
NO_DATA_URLS: Final = ("cosmos-rl",)  # they fetch media by links
_AUTO: Final = {"conv_mode": "auto", "mode": "auto"}
_NOT_SENT: Final = frozenset({"batch_size", "confidence_threshold", "top_k", "inputs", "outputs"})


def predict(
    url: str, schema: Schema, request: ModelRequest, media: Sequence[Media], limits: Limits, timeout: float = TIMEOUT_S
) -> dict[str, Any]:
    """Return the `results` of one request."""
    if schema.protocol == "chat":
        response = _post(url, PATH, chat_body(schema, request, media), timeout)
        choice = response["choices"][0]
        results = {"response": choice["message"]["content"], "finish_reason": choice.get("finish_reason")}
        return results | {name: response[name] for name in ("model", "usage") if name in response}
    if schema.kind == "tensors":
        body = {name: request.values[name] for name in ("inputs", "outputs") if name in request.values}
        return {"outputs": _post(url, f"/v2/models/{model(url, timeout)}/infer", body, timeout)["outputs"]}
    return _images(url, schema, request, media, limits, timeout)


def _post(url: str, path: str, body: Mapping[str, Any], timeout: float) -> Any:
    return decode_json(call(url, "POST", path, json.dumps(body).encode(), timeout).body)


def user_message(text: str, media: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return a message of the user. `media`: `image` or `video` and a URL, which stand before the text."""
    parts: list[dict[str, Any]] = [{"type": f"{kind}_url", f"{kind}_url": {"url": url}} for kind, url in media]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}] if parts else text}


def chat_body(schema: Schema, request: ModelRequest, media: Sequence[Media]) -> dict[str, Any]:
    """Return the body of a chat request; documented defaults are sent too, so that they apply in any container."""
    plain = {
        name: value
        for name, value in request.values.items()
        if not schema.parameters[name].role and name not in _NOT_SENT and _AUTO.get(name) != value
    }
    return {"messages": [user_message(request.text, [(each.kind, each.data_url) for each in media])], **plain}


def _images(
    url: str, schema: Schema, request: ModelRequest, media: Sequence[Media], limits: Limits, timeout: float
) -> dict[str, Any]:
    from pilotlight.microservices.inference.picture_models import ImageModel

    served = ImageModel(url, model(url, timeout), schema, limits, timeout)
    size = request.values.get("batch_size", 1)
    predictions = list[dict[str, Any]]()
    for start in range(0, len(media), size):
        predictions += served.predict(media[start : start + size], request.values)
    named = [{"name": one.name, **each} for one, each in zip(media, predictions, strict=True)]
    single: dict[str, Any] = {}
    if len(predictions) == 1 and "label" in predictions[0]:
        single = {"response": predictions[0]["label"], "confidence": predictions[0]["confidence"]}
    return {**single, "predictions": named}


def load_media(
    schema: Schema, references: Sequence[str], workspace: Workspace | None, limits: Limits, environ: Mapping[str, str]
) -> list[Media]:
    """Fetch media, or return links for a container that fetches them itself. Blocking."""
    if schema.kind in NO_DATA_URLS:
        return links(references, workspace, limits, environ)
    return fetch(references, workspace, limits, environ=environ)


def model(url: str, timeout: float) -> str:
    """Return the name of the one model that a microservice serves."""
    names = decode_json(call(url, "GET", "/v2/models", b"", timeout).body)["models"]
    if not names:
        raise InferenceFailed("the microservice has no model yet", 503)
    return quote(str(names[0]), safe="")

"""One question to a running microservice: parameters and media become a request of its dialect, the answer results.

Models that talk are asked by OpenAI's chat, models of tensors by V2 with binary tensors. Used by the API and by batch
jobs; blocking, over the address that the platform gives (`Platform.way`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from pilotlight.microservices.calling import AskingFailed, call
from pilotlight.microservices.kinds import Schema
from pilotlight.microservices.media import Limits, Media
from pilotlight.microservices.parameters import Asked

ANSWER_S: Final = 300.0
_AUTO: Final = {"conv_mode": "auto", "mode": "auto"}
_NOT_SENT: Final = frozenset({"batch_size", "confidence_threshold", "top_k", "inputs", "outputs"})


def ask(
    url: str, of: Schema, asked: Asked, media: Sequence[Media], limits: Limits, timeout: float = ANSWER_S
) -> dict[str, Any]:
    """The `results` of one request."""
    if of.asked == "chat":
        return _chat(url, of, asked, media, timeout)
    if of.kind == "tensors":
        return _tensors(url, asked, timeout)
    return _pictures(url, of, asked, media, limits, timeout)


def _chat(url: str, of: Schema, asked: Asked, media: Sequence[Media], timeout: float) -> dict[str, Any]:
    reply = json.loads(
        call(url, "POST", "/v1/chat/completions", json.dumps(chat_body(of, asked, media)).encode(), timeout)
    )
    choice = reply["choices"][0]
    told = {"response": choice["message"]["content"], "finish_reason": choice.get("finish_reason")}
    return told | {name: reply[name] for name in ("model", "usage") if name in reply}


def chat_body(of: Schema, asked: Asked, media: Sequence[Media]) -> dict[str, Any]:
    """Values as they were given; a default of ours is sent too, so that what was told to hold does hold."""
    parts: list[dict[str, Any]] = [
        {"type": f"{each.kind}_url", f"{each.kind}_url": {"url": each.data_url}} for each in media
    ]
    content: Any = [*parts, {"type": "text", "text": asked.text}] if parts else asked.text
    plain = {
        name: value
        for name, value in asked.values.items()
        if not of.parameters[name].role and name not in _NOT_SENT and _AUTO.get(name) != value
    }
    return {"messages": [{"role": "user", "content": content}], **plain}


def _tensors(url: str, asked: Asked, timeout: float) -> dict[str, Any]:
    body = {name: asked.values[name] for name in ("inputs", "outputs") if name in asked.values}
    reply = json.loads(call(url, "POST", f"/v2/models/{model(url, timeout)}/infer", json.dumps(body).encode(), timeout))
    return {"outputs": reply["outputs"]}


def _pictures(
    url: str, of: Schema, asked: Asked, media: Sequence[Media], limits: Limits, timeout: float
) -> dict[str, Any]:
    from pilotlight.microservices.v2_pictures import Model

    served = Model(url, model(url, timeout), of, limits, timeout)
    found = [
        each
        for some in _batches(media, asked.values.get("batch_size", 1))
        for each in served.predict(some, asked.values)
    ]
    told = [{"name": one.name, **each} for one, each in zip(media, found, strict=True)]
    single = {"response": found[0]["label"], "confidence": found[0]["confidence"]} if _one_label(found) else {}
    return {**single, "predictions": told}


def _one_label(found: Sequence[Mapping[str, Any]]) -> bool:
    return len(found) == 1 and "label" in found[0]


def _batches(media: Sequence[Media], size: int) -> Iterator[Sequence[Media]]:
    for start in range(0, len(media), size):
        yield media[start : start + size]


def model(url: str, timeout: float) -> str:
    """The one model that a microservice serves."""
    names = json.loads(call(url, "GET", "/v2/models", b"", timeout))["models"]
    if not names:
        raise AskingFailed("the microservice serves no model yet", 503)
    return quote(str(names[0]), safe="")

"""Requests from input files: an image or video, a text, or a whole request in JSON. Pure, but for `fetch`."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.kinds import Schema
from pilotlight.microservices.media import Limits, Media
from pilotlight.microservices.media.images import check_image
from pilotlight.microservices.media.refusals import MediaError
from pilotlight.microservices.media.sniffing import identify
from pilotlight.microservices.media.videos import check_video
from pilotlight.microservices.parameters import ModelRequest, validate

PICTURES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".mp4", ".mov", ".m4v", ".webm", ".mkv", ".avi")
Fetch = Callable[[Sequence[str]], list[Media]]


class Request(Struct, frozen=True):
    model_request: ModelRequest
    media: tuple[Media, ...] = ()


def accepts(schema: Schema, name: str) -> bool:
    """Return whether a file of this name is an input of the model."""
    lowered = name.lower()
    if lowered.endswith(".json"):
        return True
    return (
        lowered.endswith(PICTURES)
        if _named(schema, "media")
        else lowered.endswith(".txt") and bool(_named(schema, "text"))
    )


def check_parameters(schema: Schema, parameters: Mapping[str, Any]) -> None:
    """Raise for parameters that are invalid for every file, before the model is started."""
    inputs = {name: "x" for name in (_named(schema, "media"), _named(schema, "text")) if name}
    texts = {name for name, each in schema.parameters.items() if each.role == "text"} & parameters.keys()
    if texts:
        inputs.pop(_named(schema, "text"), None)
    raw: dict[str, Any] = {"inputs": ["x"]} if "inputs" in schema.parameters else {}
    if "media" in {schema.parameters[name].role for name in parameters if name in schema.parameters}:
        raise UsageError("parameters must not name media: the files of the folder are the media")
    validate(schema, {**raw, **inputs, **parameters})


def request(
    schema: Schema, parameters: Mapping[str, Any], name: str, content: bytes, limits: Limits, fetch: Fetch
) -> Request:
    """Return the request of one file. Raise PlatformError, which becomes the file's result."""
    if name.lower().endswith(".json"):
        model_request = validate(schema, {**parameters, **_body(name, content)})
        return Request(model_request, tuple(fetch(model_request.media)))
    if not _named(schema, "media"):
        return Request(validate(schema, {**parameters, _named(schema, "text"): _text(name, content)}))
    medium = _medium(name, content, limits)
    return Request(validate(schema, {**parameters, _named(schema, "media"): name}), (medium,))


def by_link(schema: Schema, parameters: Mapping[str, Any], medium: Media) -> Request:
    """Return the request of a model that fetches media itself."""
    return Request(validate(schema, {**parameters, _named(schema, "media"): medium.name}), (medium,))


def _named(schema: Schema, role: str) -> str:
    return next((name for name, each in schema.parameters.items() if each.role == role), "")


def _body(name: str, content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError as error:
        raise UsageError(f"{name} is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise UsageError(f"{name} must hold an object: a request with its parameters")
    return body


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{name} is no text in UTF-8") from None


def _medium(name: str, content: bytes, limits: Limits) -> Media:
    try:
        media = identify(name.rpartition("/")[2], content)
        (check_image if media.kind == "image" else check_video)(media, limits)
    except MediaError as error:
        raise PlatformError(f"{name} {error.message}") from error
    return media

"""What is asked about one file of a folder: a medium, a text, or a whole request in JSON. Pure, but for `fetch`."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.kinds import Schema
from pilotlight.microservices.media import Limits, Media
from pilotlight.microservices.media.images import check_image
from pilotlight.microservices.media.refusals import Refusal
from pilotlight.microservices.media.sniffing import recognised
from pilotlight.microservices.media.videos import check_video
from pilotlight.microservices.parameters import Asked, fitted

PICTURES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".mp4", ".mov", ".m4v", ".webm", ".mkv", ".avi")
Fetch = Callable[[Sequence[str]], list[Media]]


class Request(Struct, frozen=True):
    asked: Asked
    media: tuple[Media, ...] = ()


def takes(of: Schema, name: str) -> bool:
    """Whether a file of this name is an input for such a model."""
    lowered = name.lower()
    if lowered.endswith(".json"):
        return True
    return lowered.endswith(PICTURES) if _named(of, "media") else lowered.endswith(".txt") and bool(_named(of, "text"))


def check_parameters(of: Schema, parameters: Mapping[str, Any]) -> None:
    """Raises for what no file could make good: asked before a model is started for it."""
    inputs = {name: "x" for name in (_named(of, "media"), _named(of, "text")) if name}
    texts = {name for name, each in of.parameters.items() if each.role == "text"} & parameters.keys()
    if texts:
        inputs.pop(_named(of, "text"), None)
    raw: dict[str, Any] = {"inputs": ["x"]} if "inputs" in of.parameters else {}
    if "media" in {of.parameters[name].role for name in parameters if name in of.parameters}:
        raise UsageError("parameters must not name media: the files of the folder are the media")
    fitted(of, {**raw, **inputs, **parameters})


def request(
    of: Schema, parameters: Mapping[str, Any], name: str, content: bytes, limits: Limits, fetch: Fetch
) -> Request:
    """Raises PlatformError in words that are kept as the file's result."""
    if name.lower().endswith(".json"):
        asked = fitted(of, {**parameters, **_body(name, content)})
        return Request(asked, tuple(fetch(asked.media)))
    if not _named(of, "media"):
        return Request(fitted(of, {**parameters, _named(of, "text"): _text(name, content)}))
    medium = _medium(name, content, limits)
    return Request(fitted(of, {**parameters, _named(of, "media"): name}), (medium,))


def by_link(of: Schema, parameters: Mapping[str, Any], medium: Media) -> Request:
    """Of a model that fetches media by itself."""
    return Request(fitted(of, {**parameters, _named(of, "media"): medium.name}), (medium,))


def _named(of: Schema, role: str) -> str:
    return next((name for name, each in of.parameters.items() if each.role == role), "")


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
        media = recognised(name.rpartition("/")[2], content)
        (check_image if media.kind == "image" else check_video)(media, limits)
    except Refusal as error:
        raise PlatformError(f"{name} {error.told}") from error
    return media

"""Body of a chat request by OpenAI's protocol, from the parameters and media of a model's request. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pilotlight.microservices.media import Media
from pilotlight.microservices.registry.model_kinds import ModelRequest, Schema

NO_DATA_URLS: Final = ("cosmos-rl",)  # they fetch media by links
_AUTO: Final = {"conv_mode": "auto", "mode": "auto"}
_NOT_SENT: Final = frozenset({"batch_size", "confidence_threshold", "top_k", "inputs", "outputs"})


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

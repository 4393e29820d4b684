"""Fields of a chat request: those that a network takes, typed values, and what a body lacks or has too much. Pure.

kinds.yaml has the fields of each network. Values are not clamped: invalid ones are rejected before sending, with a
clearer message than a container's.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight.errors import UsageError
from pilotlight.microservices.inference.predict import NO_DATA_URLS, user_message
from pilotlight.microservices.registry import model_kinds
from pilotlight.microservices.registry.model_kinds import Parameter, Schema

MEDIA: Final = ("image_url", "video_url")
SINGLE: Final = ("cosmos-rl", "cosmos-predict2.5")  # they read the first user message only
NEEDS_MEDIA: Final = ("cosmos-rl",)
MODE: Final = "inference_type"  # prompted for, though it is not a sampling field
_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "json": ((dict, list, str, int, float, bool), "JSON"),
}


def chat_schema(network_arch: str) -> Schema:
    """Return the chat schema of a network; of a tensor model or an unknown network the one of text models."""
    schema = model_kinds.schema(network_arch if network_arch in model_kinds.networks() else "text")
    return schema if schema.protocol == "chat" else model_kinds.schema("text")


def sampling_fields(network_arch: str) -> dict[str, Parameter]:
    """Return the fields that the command line prompts for, in the order of the table."""
    parameters = chat_schema(network_arch).parameters
    return {name: each for name, each in parameters.items() if each.sampling or name == MODE}


def parse_value(name: str, text: str, parameter: Parameter) -> Any:
    """Parse a typed value to the field's type. Raise UsageError where it is not one."""
    if parameter.type == "string":
        return text
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        value = None
    types, word = _TYPES[parameter.type]
    if not isinstance(value, types) or (isinstance(value, bool) and parameter.type != "boolean"):
        raise UsageError(f"{name} = {text}, must be {word}")
    return value


def _no_constant(word: str) -> Any:
    raise ValueError(word)


def message(prompt: str, images: Sequence[str] = (), videos: Sequence[str] = ()) -> dict[str, Any]:
    """Return a user message, media before the text."""
    return user_message(prompt, [*(("image", url) for url in images), *(("video", url) for url in videos)])


def check(network_arch: str, body: Mapping[str, Any]) -> None:
    """Raise with all problems that this network has with the body."""
    if problems := list(_problems(network_arch, body)):
        raise UsageError(f"the request does not fit {network_arch}: " + "; ".join(problems))


def _problems(network_arch: str, body: Mapping[str, Any]) -> Iterator[str]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_is_user_message(each) for each in messages):
        yield "messages must be a list with a message of the user"
        return
    if body.get("stream"):
        yield "stream must be left out: the response is read whole"
    parameters = chat_schema(network_arch).parameters
    chats = [arch for arch in model_kinds.networks() if model_kinds.schema(arch).protocol == "chat"]
    for name in body:  # a field that only other networks have: the request was probably meant for one of them
        owners = [arch for arch in chats if name in chat_schema(arch).parameters]
        if name not in parameters and owners:
            yield f"{name} is a field of {', '.join(owners[:3])}"
    user_messages = [each for each in messages if _is_user_message(each)]
    if network_arch in SINGLE and len(user_messages) > 1:
        yield f"it has {len(user_messages)} messages of the user, and only the first would be read"
    urls = media_urls(user_messages[0])
    if network_arch in NEEDS_MEDIA and not urls:
        yield "the first message of the user must have an image_url or a video_url"
    if network_arch in NO_DATA_URLS and any(url.startswith("data:") for url in urls):
        yield "data: URIs are not taken; name a path in the container or an address"


def _is_user_message(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"


def media_urls(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    items = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    media = [each.get(kind) for each in items for kind in MEDIA if each.get("type") == kind]
    return [str(each.get("url", "")) if isinstance(each, dict) else str(each) for each in media]

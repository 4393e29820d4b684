"""The body of a chat request, and whether it fits the network that gets it. Pure; `infer` sends what is made here.

Which fields a network takes stands in kinds.yaml. Values go as they were given: nothing is clamped, and what does not
fit is refused before it is sent, where it can be told more plainly than a container would.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight.errors import UsageError
from pilotlight.microservices import kinds
from pilotlight.microservices.kinds import Parameter, Schema

MEDIA: Final = ("image_url", "video_url")
SINGLE: Final = ("cosmos-rl", "cosmos-predict2.5")  # of several messages of the user they read the first alone
NEEDS_MEDIA: Final = ("cosmos-rl",)
NO_DATA_URLS: Final = ("cosmos-rl",)
# Asked for where a network takes it, though it is none of sampling.
MODE: Final = "inference_type"
_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "json": ((dict, list, str, int, float, bool), "JSON"),
}


def chat_schema(network_arch: str) -> Schema:
    """What a network takes in a chat. One that is asked by tensors, and one that others have started and nobody here
    knows, is asked as a text model would be."""
    found = kinds.schema(network_arch if network_arch in kinds.networks() else "text")
    return found if found.asked == "chat" else kinds.schema("text")


def fields(network_arch: str) -> dict[str, Parameter]:
    """Those that a person is asked for, each with type and default, in the order of the table."""
    taken = chat_schema(network_arch).parameters
    return {name: each for name, each in taken.items() if each.sampling or name == MODE}


def value_of(name: str, text: str, parameter: Parameter) -> Any:
    """What was typed as a value of the field's type, and else as it stands."""
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
    """One message of a user; media stand before the text."""
    if not images and not videos:
        return {"role": "user", "content": prompt}
    media = [(kind, url) for kind, urls in zip(MEDIA, (images, videos), strict=True) for url in urls]
    items: list[dict[str, Any]] = [{"type": kind, kind: {"url": url}} for kind, url in media]
    return {"role": "user", "content": [*items, {"type": "text", "text": prompt}]}


def check(network_arch: str, body: Mapping[str, Any]) -> None:
    """Raises with everything that this network would not take."""
    if problems := list(_problems(network_arch, body)):
        raise UsageError(f"the request does not fit {network_arch}: " + "; ".join(problems))


def _problems(network_arch: str, body: Mapping[str, Any]) -> Iterator[str]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_from_user(each) for each in messages):
        yield "messages must be a list with a message of the user"
        return
    if body.get("stream"):
        yield "stream must be left out: the answer is read whole"
    yield from _strange_fields(network_arch, body)
    spoken = [each for each in messages if _from_user(each)]
    if network_arch in SINGLE and len(spoken) > 1:
        yield f"it has {len(spoken)} messages of the user, and only the first would be read"
    urls = media_urls(spoken[0])
    if network_arch in NEEDS_MEDIA and not urls:
        yield "the first message of the user must have an image_url or a video_url"
    if network_arch in NO_DATA_URLS and any(url.startswith("data:") for url in urls):
        yield "data: URIs are not taken; name a path in the container or an address"


def _from_user(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"


def _strange_fields(network_arch: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Fields that only other networks have: they tell that the request was meant for one of those."""
    taken = chat_schema(network_arch).parameters
    for name in body:
        owners = [arch for arch in kinds.networks() if name in chat_schema(arch).parameters]
        if name not in taken and owners:
            yield f"{name} is a field of {', '.join(owners[:3])}"


def media_urls(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    items = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    found = [each.get(kind) for each in items for kind in MEDIA if each.get("type") == kind]
    return [str(each.get("url", "")) if isinstance(each, dict) else str(each) for each in found]

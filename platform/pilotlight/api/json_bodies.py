"""JSON bodies of requests and responses: read within bounds, decoded to a type, encoded."""

from typing import Any, Final, TypeVar

from aiohttp import web
from msgspec import json, structs

from pilotlight.api.middlewares import read_small_body
from pilotlight.errors import UsageError
from pilotlight.wire.http_client import check_json

T = TypeVar("T")
MAX_BYTES: Final = 1024 * 1024  # of a body, except of those that go to a model


async def read_body(request: web.Request, kind: type[T]) -> T:
    """Return the decoded body. Raise 413 above MAX_BYTES, and msgspec's errors for one that is not of this kind."""
    return decode_request(await read_small_body(request, MAX_BYTES), kind)


def decode_request(text: bytes, kind: type[T]) -> T:
    """Decode a body on the event loop. Raise UsageError if it is empty or would hold it up, and msgspec's errors."""
    if not text:
        fields = structs.fields(kind) if hasattr(kind, "__struct_fields__") else ()  # type: ignore[arg-type]
        needs = ", ".join(each.encode_name for each in fields if each.required)
        raise UsageError("the body is empty, must be a JSON object" + (f" with {needs}" if needs else ""))
    try:
        check_json(text)
    except ValueError as error:
        raise UsageError(f"the body is too large: {error}", "send tensors in parts, or media by reference") from None
    return json.decode(text, type=kind)


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(value), status=status, content_type="application/json")

"""JSON bodies of administrative requests."""

from typing import Any

import orjson

from pilotlight_predictor.core.errors import BadRequest
from pilotlight_predictor.frontends.http.messages import HttpRequest


def read_json_object(request: HttpRequest) -> dict[str, Any]:
    """Return the JSON object; an empty body is an empty object. Raise BadRequest."""
    if not request.body:
        return {}
    try:
        document = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    return document

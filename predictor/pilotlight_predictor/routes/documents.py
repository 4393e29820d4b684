"""The JSON object that an operator's call brings; an empty body is an empty one."""

from typing import Any

import orjson

from pilotlight_predictor.calls import Call
from pilotlight_predictor.errors import BadRequest


def document_of(call: Call) -> dict[str, Any]:
    if not call.body:
        return {}
    try:
        document = orjson.loads(call.body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    return document

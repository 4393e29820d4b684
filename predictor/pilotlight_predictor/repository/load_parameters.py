"""Parameters of a load request: an overriding configuration and the model's files, for HTTP and gRPC."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.repository.model_config import stays_inside

PREFIX: Final = "file:"
MAX_CONFIG: Final = 1 << 20  # bytes, decoded on the event loop in 5 ms
Read = Callable[[str, Any], bytes]


def config_parameter(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `config` parameter, which is a JSON string (as in Triton) or an object."""
    config = parameters.get("config")
    if config is None or isinstance(config, dict):
        return config
    if isinstance(config, str) and len(config) > MAX_CONFIG:
        raise BadRequest(f"parameters.config has {len(config)} characters, must have at most {MAX_CONFIG}")
    return json_object(config, "parameters.config")


def json_object(text: Any, field: str) -> dict[str, Any]:
    """Return the JSON object of a text. Raise BadRequest, which names the field."""
    try:
        document = orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise BadRequest(f"{field} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest(f"{field} must be a JSON object")
    return document


def file_parameters(parameters: Mapping[str, Any], read: Read) -> dict[str, bytes]:
    """Return contents by path of the `file:<version>/<name>` parameters; `read` decodes a value."""
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if not key.startswith(PREFIX):
            continue
        path = key.removeprefix(PREFIX)
        if not stays_inside(path):
            raise BadRequest(f"parameters['{key[:100]}'] must be a path of the form <version>/<file> inside the model")
        files[path] = read(key, value)
    return files


def bytes_parameter(key: str, value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise BadRequest(f"parameters['{key[:100]}'] must be bytes, not {type(value).__name__}")
    return value

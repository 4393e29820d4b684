"""Requests as Triton reads them, for `--compat triton`: what it drops, ignores or refuses.

triton_errors.py states the refusals in Triton's words.
"""

from typing import Any, Final

from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import BadRequest, Unsupported
from pilotlight_predictor.frontends.forwarded_headers import RESERVED, add_headers
from pilotlight_predictor.frontends.http.messages import HttpRequest
from pilotlight_predictor.frontends.http.router import TRITON_SERVICE
from pilotlight_predictor.observability.request_traces import KEYS, LEVELS, OFF

_FLAGS: Final = ("sequence_start", "sequence_end")
_OF_SERVER: Final = RESERVED - {"headers"}  # parameters that models do not see


def complete_parameters(infer_request: InferRequest, request: HttpRequest) -> None:
    """Add the forwarded headers; in Triton's mode leave out what only the server reads. Raise BadRequest."""
    if request.as_triton and infer_request.parameters:
        for name, value in infer_request.parameters.items():
            if name in _FLAGS and not isinstance(value, bool):
                raise BadRequest(f"parameters.{name} = {value!r}, must be true or false")
            if not isinstance(value, str | int | float):
                expected = "It should be either 'int', 'bool', or 'string'."
                raise BadRequest(f"parameter '{name}' has invalid type. {expected}")
        unseen = _OF_SERVER if not request.path.startswith(TRITON_SERVICE) else _OF_SERVER - {"binary_data_output"}
        infer_request.parameters = {key: each for key, each in infer_request.parameters.items() if key not in unseen}
    add_headers(infer_request, request.forwarded)


def check_load(parameters: dict[str, Any], repository: str = "") -> None:
    """Raise BadRequest for a parameter that a load does not know, Unsupported for the name of a repository."""
    if repository:
        raise Unsupported("'repository_name' specification is not supported")
    for name, value in parameters.items():
        if name != "config" and not name.startswith("file:"):
            known = "unrecognized load parameter" if isinstance(value, str) else "attempt to access JSON non-"
            raise BadRequest(f"{known} '{name}'." if isinstance(value, str) else f"{known}string as string")


def trace_changes(document: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """Return the changes that Triton makes: unknown settings and levels are ignored. Raise BadRequest."""
    changes = {name: value for name, value in document.items() if name in KEYS}
    for name, value in changes.items():
        if name == "trace_level" and value is not None:
            if not isinstance(value, list):
                raise BadRequest("attempt to access JSON non-array as array")
            if not all(isinstance(each, str) for each in value):
                raise BadRequest("attempt to access JSON non-string as string")
            changes[name] = [each for each in value if each in LEVELS] or [OFF]
        elif value is not None and not isinstance(value, str | list):
            raise BadRequest("attempt to access JSON non-string as string")
    levels, file = changes.get("trace_level"), changes.get("trace_file", current["trace_file"])
    if levels and levels != [OFF] and not file:
        raise BadRequest("Attempting to set invalid trace setting :trace file name is not given")
    return changes


def log_changes(document: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the changes of known settings. Raise Unsupported for the file, which only the command line sets."""
    if "log_file" in document:
        raise Unsupported("log file location can not be updated through network protocol")
    return {name: value for name, value in document.items() if name in known}

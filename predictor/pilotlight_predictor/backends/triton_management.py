"""`pb_utils.load_model`, `unload_model` and `is_model_ready`: a Triton model that brings and removes others.

Each model's own module has them bound to it (`managing`); the server does the work (model_management.py).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pilotlight_predictor.backends.triton_calls import Calling
from pilotlight_predictor.backends.triton_types import TritonModelException
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.model_management import ModelManagement
from pilotlight_predictor.repository.names import stays_inside

_PREFIX: Final = "file:"


def load_model(model_name: str, files: Mapping[str, bytes] | None = None, config: str | None = None) -> None:
    """Waits until it serves. `files`: "file:<version>/<name>" → content, which need a `config` as JSON."""
    raise _nowhere()


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """It takes no more requests; those that it has are answered."""
    raise _nowhere()


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    raise _nowhere()


def managing(calling: Calling) -> dict[str, Callable[..., Any]]:
    """The three of them as one model sees them."""

    def load(model_name: str, files: Mapping[str, bytes] | None = None, config: str | None = None) -> None:
        given, document = _files(files or {}), _document(config)
        if given and document is None:
            raise TritonModelException("load_model needs a config when files are given")
        _told(lambda: _management(calling).load(calling.caller.name, model_name, document, given))

    def unload(model_name: str, unload_dependents: bool = False) -> None:
        _told(lambda: _management(calling).unload(model_name, unload_dependents))

    def ready(model_name: str, model_version: str = "") -> bool:
        version = str(model_version)
        if version and not version.isdecimal():
            raise TritonModelException(f"model_version = {model_version!r}, must be a number in quotes, or empty")
        return bool(_told(lambda: _management(calling).ready(model_name, int(version) if version else NEWEST)))

    return {"load_model": load, "unload_model": unload, "is_model_ready": ready}


def _nowhere() -> TritonModelException:
    return TritonModelException("models can be loaded only by a model.py that a server has loaded")


def _management(calling: Calling) -> ModelManagement:
    if calling.calls is None:
        raise _nowhere()
    return calling.calls.management


def _told(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except PredictorError as error:
        raise TritonModelException(str(error)) from None


def _files(given: Mapping[str, bytes]) -> dict[str, bytes]:
    for name, content in given.items():
        inside = name.startswith(_PREFIX) and stays_inside(name.removeprefix(_PREFIX))
        if not inside or not isinstance(content, bytes | bytearray | memoryview):
            kind = type(content).__name__
            raise TritonModelException(f"files has {name!r}: {kind}, must be file:<version>/<name> with its bytes")
    return {name.removeprefix(_PREFIX): bytes(content) for name, content in given.items()}


def _document(config: str | None) -> dict[str, Any] | None:
    if config is None:
        return None
    try:
        found = json.loads(config)
    except (TypeError, ValueError) as error:
        raise TritonModelException(f"config is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise TritonModelException(f"config is {type(found).__name__}, must be a JSON object")
    return found

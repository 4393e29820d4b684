"""`pb_utils.load_model`, `unload_model` and `is_model_ready`: a Triton model that brings and removes others.

Each model's own module has them bound to it (`managing`); the server does the work (model_management.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

from pilotlight_predictor.backends.triton_calls import Calling
from pilotlight_predictor.backends.triton_types import TritonModelException
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.model_management import ModelManagement
from pilotlight_predictor.repository.load_parameters import bytes_of, config_of, files_of


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Waits until it serves. `files`: "file:<version>/<name>" → content, which need a `config` as JSON."""
    raise _nowhere()


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """It takes no more requests; those that it has are answered."""
    raise _nowhere()


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    raise _nowhere()


def managing(calling: Calling) -> dict[str, Callable[..., Any]]:
    """The three of them as one model sees them."""

    def load(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        document, given = _told(lambda: (config_of({"config": config or None}), files_of(files or {}, bytes_of)))
        _told(lambda: _management(calling).load(calling.caller.name, model_name, document, given))

    def unload(model_name: str, unload_dependents: bool = False) -> None:
        _told(lambda: _management(calling).unload(calling.caller.name, model_name, unload_dependents))

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

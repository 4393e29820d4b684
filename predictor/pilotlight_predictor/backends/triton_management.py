"""`pb_utils.load_model`, `unload_model` and `is_model_ready`: a Triton model that brings and removes others.

Each model's own module has those of its own `Managing`; the server does the work (model_management.py).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from pilotlight_predictor.backends.triton_calls import Calling
from pilotlight_predictor.backends.triton_types import TritonModelException
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.repository.load_parameters import bytes_of, config_of, files_of

if TYPE_CHECKING:
    from pilotlight_predictor.model_management import ModelManagement

T = TypeVar("T")


class Managing:
    """For the model that calls; for nobody, outside of a server."""

    def __init__(self, calling: Calling | None = None) -> None:
        self._calling = calling

    def load_model(self, model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Waits until it serves. `files`: "file:<version>/<name>" → content, which need a `config` as JSON."""

        def load(management: "ModelManagement", caller: str) -> None:
            document, given = config_of({"config": config or None}), files_of(files or {}, bytes_of)
            management.load(caller, model_name, document, given)

        self._told(load)

    def unload_model(self, model_name: str, unload_dependents: bool = False) -> None:
        """It takes no more requests; those that it has are answered."""
        self._told(lambda management, caller: management.unload(caller, model_name, unload_dependents))

    def is_model_ready(self, model_name: str, model_version: str = "") -> bool:
        written = str(model_version)
        if written and not written.isdecimal():
            raise TritonModelException(f"model_version = {model_version!r}, must be a number in quotes, or empty")
        version = int(written) if written else NEWEST
        return self._told(lambda management, _: management.ready(model_name, version))

    def _told(self, work: "Callable[[ModelManagement, str], T]") -> T:
        """What the server refuses is the model's to catch, as Triton raises it."""
        if self._calling is None or self._calling.calls is None:
            raise TritonModelException("models can be loaded only by a model.py that a server has loaded")
        try:
            return work(self._calling.calls.management, self._calling.caller.name)
        except PredictorError as error:
            raise TritonModelException(str(error)) from None

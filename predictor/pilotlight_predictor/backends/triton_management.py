"""`pb_utils.load_model`, `unload_model` and `is_model_ready`: a Triton model that loads and unloads others.

Each model's pb_utils module has the methods of its own `ModelManagement`; model_management.py does the work.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from pilotlight_predictor.backends.base import ModelLoader
from pilotlight_predictor.backends.triton_calls import BlsCaller
from pilotlight_predictor.backends.triton_types import TritonModelException
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.repository.load_parameters import bytes_parameter, config_parameter, file_parameters

T = TypeVar("T")


class ModelManagement:
    """Load and unload functions of one calling model; without one they raise."""

    def __init__(self, caller: BlsCaller | None = None) -> None:
        self._caller = caller

    def load_model(self, model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Load a model and wait until it is ready.

        `files` maps "file:<version>/<name>" to content and needs a `config` as JSON.
        """

        def load(management: ModelLoader, caller: str) -> None:
            document = config_parameter({"config": config or None})
            contents = file_parameters(files or {}, bytes_parameter)
            management.load(caller, model_name, document, contents)

        self._call(load)

    def unload_model(self, model_name: str, unload_dependents: bool = False) -> None:
        """Unload a model; its pending requests are completed."""
        self._call(lambda management, caller: management.unload(caller, model_name, unload_dependents))

    def is_model_ready(self, model_name: str, model_version: str = "") -> bool:
        written = str(model_version)
        if written and not written.isdecimal():
            raise TritonModelException(f"model_version = {model_version!r}, must be a number in quotes, or empty")
        version = int(written) if written else NEWEST
        return self._call(lambda management, _: management.ready(model_name, version))

    def _call(self, work: Callable[[ModelLoader, str], T]) -> T:
        """Run `work`; raise the server's errors as TritonModelException."""
        if self._caller is None or self._caller.calls is None:
            raise TritonModelException("models can be loaded only by a model.py that a server has loaded")
        try:
            return work(self._caller.calls.management, self._caller.caller.name)
        except PredictorError as error:
            raise TritonModelException(str(error)) from None

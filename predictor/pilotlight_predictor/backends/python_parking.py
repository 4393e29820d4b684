"""Parking by user code: a class that defines `park` and `wake` frees its GPU memory and restores it itself.

One for each instance of such a class. Its optional `park_bytes` is the host memory it needs while parked, which counts
against --park-memory.
"""

from collections.abc import Callable
from operator import index
from typing import Any

from pilotlight_predictor.backends.python_forms import ModelEventLoop, UserModel
from pilotlight_predictor.errors import LoadFailed


class UserModelParking:
    """A Parkable (base.py) of a user's object; its exceptions are converted by `opaque`."""

    def __init__(self, model: Any, loop: ModelEventLoop, opaque: Callable[[Exception], Exception]) -> None:
        self._model, self._loop, self._opaque = model, loop, opaque
        self.size = _park_bytes(model)
        self.parked = False

    @property
    def host_bytes(self) -> int:
        return self.size if self.parked else 0

    def prepare(self) -> None:
        """Do nothing: user code parks in one method, while no request runs."""

    def park(self) -> None:
        if not self.parked:
            self._call(self._model.park)
            self.parked = True

    def wake(self) -> None:
        if self.parked:
            self._call(self._model.wake)
            self.parked = False

    def drop_host_copy(self) -> None:
        """Do nothing: no host copy is known of."""

    def _call(self, method: Callable[[], Any]) -> None:
        try:
            self._loop.resolve(method())
        except Exception as error:
            failure = self._opaque(error)
            raise failure from failure.__cause__


def _park_bytes(model: Any) -> int:
    """Read and validate `park_bytes` at load, so that a wrong value fails the load, not a later parking."""
    value = getattr(model, "park_bytes", 0)
    try:
        size = index(value)
    except TypeError:
        size = -1
    if size < 0:
        raise LoadFailed(f"park_bytes = {value!r}, must be a whole number of bytes")
    return size


def create_parking(model: UserModel, opaque: Callable[[Exception], Exception]) -> UserModelParking | None:
    """Return None unless the user's object defines both `park` and `wake`."""
    target, loop = getattr(model, "model", None), getattr(model, "loop", None)
    if loop is None or not callable(getattr(target, "park", None)) or not callable(getattr(target, "wake", None)):
        return None
    return UserModelParking(target, loop, opaque)

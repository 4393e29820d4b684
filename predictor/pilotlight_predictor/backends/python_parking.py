"""Parking by user code: a class that defines `park` and `wake` gives back what it likes and takes it again.

python.py makes one for each instance of such a class. Its `park_bytes`, if there is one, says how much host memory it
keeps while it is parked, which counts against --park-memory.
"""

from collections.abc import Callable
from operator import index
from typing import Any

from pilotlight_predictor.backends.python_forms import Form, Loop
from pilotlight_predictor.errors import LoadFailed


class ModelParking:
    """What the user's code raises comes out as `opaque` makes it."""

    def __init__(self, model: Any, loop: Loop, opaque: Callable[[Exception], Exception]) -> None:
        self._model, self._loop, self._opaque = model, loop, opaque
        self.size = _park_bytes(model)
        self.parked = False

    @property
    def kept(self) -> int:
        return self.size if self.parked else 0

    def prepare(self) -> None:
        """User code has one method for all of it, and no request runs beside that."""

    def park(self) -> None:
        if not self.parked:
            self._call(self._model.park)
            self.parked = True

    def wake(self) -> None:
        if self.parked:
            self._call(self._model.wake)
            self.parked = False

    def forget(self) -> None:
        """An awake one keeps nothing that we know of."""

    def _call(self, method: Callable[[], Any]) -> None:
        try:
            self._loop.settle(method())
        except Exception as error:
            told = self._opaque(error)
            raise told from told.__cause__


def _park_bytes(model: Any) -> int:
    """Read once, at the load: a value that says nothing is the load's failure, not that of a parking much later."""
    told = getattr(model, "park_bytes", 0)
    try:
        size = index(told)
    except TypeError:
        size = -1
    if size < 0:
        raise LoadFailed(f"park_bytes = {told!r}, must be a whole number of bytes")
    return size


def parking(form: Form, opaque: Callable[[Exception], Exception]) -> ModelParking | None:
    """None where the form has no object, or the object does not define both."""
    model, loop = getattr(form, "model", None), getattr(form, "loop", None)
    if loop is None or not callable(getattr(model, "park", None)) or not callable(getattr(model, "wake", None)):
        return None
    return ModelParking(model, loop, opaque)

"""Parking of idle models: free their GPU memory, store the weights in host memory, wake on the next request.

A server without --park-memory, the usual case, has `NoParking` and imports nothing else of this folder.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pilotlight_predictor.errors import BadRequest

if TYPE_CHECKING:
    from pilotlight_predictor.backends.base import AnyInstance
    from pilotlight_predictor.config import Settings
    from pilotlight_predictor.metrics import Metrics
    from pilotlight_predictor.models.model_version import ModelVersion
    from pilotlight_predictor.models.parking.pool import ParkingPool


class NoParking:
    """Parking pool of a server that parks no models."""

    def add(self, served: "ModelVersion", instances: "Sequence[AnyInstance]") -> None:
        """Do nothing."""

    async def remove(self, served: "ModelVersion") -> None:
        """Do nothing."""

    async def park(self, versions: "Sequence[ModelVersion]") -> None:
        reason = "parking is off; start the server with --park-memory=25%"
        raise BadRequest(f"'{versions[0].name}' cannot be parked: {reason}")

    async def wake(self, versions: "Sequence[ModelVersion]") -> None:
        """Do nothing: every model is awake."""

    async def park_idle_models(self) -> None:
        """Return at once."""


def create_parking(settings: "Settings", metrics: "Metrics") -> "NoParking | ParkingPool":
    if not settings.model.parks:
        return NoParking()
    from pilotlight_predictor.models.parking.pool import ParkingPool

    return ParkingPool(settings, metrics)

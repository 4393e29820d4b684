"""Models that nobody asks for give their GPU's memory back, keep weights in the host's, and wake for a request.

A server that parks none, as most do, has `NoParking` and imports nothing else of this folder.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pilotlight_predictor.errors import BadRequest

if TYPE_CHECKING:
    from pilotlight_predictor.backends.base import AnyInstance
    from pilotlight_predictor.metrics import Metrics
    from pilotlight_predictor.parking.lot import ParkingLot
    from pilotlight_predictor.served import ServedVersion
    from pilotlight_predictor.settings import Settings


class NoParking:
    """Answers as a lot without places does."""

    def enter(self, served: "ServedVersion", instances: "Sequence[AnyInstance]") -> None:
        """There is no place for it."""

    async def leave(self, served: "ServedVersion") -> None:
        """It had none."""

    async def park(self, versions: "Sequence[ServedVersion]") -> None:
        told = "this server parks none; start it with --park-memory=25%"
        raise BadRequest(f"'{versions[0].name}' cannot be parked: {told}")

    async def wake(self, versions: "Sequence[ServedVersion]") -> None:
        """All are awake."""

    async def follow(self) -> None:
        """Nothing to do, ever."""


def parking(settings: "Settings", metrics: "Metrics") -> "NoParking | ParkingLot":
    if not settings.model.parks:
        return NoParking()
    from pilotlight_predictor.parking.lot import ParkingLot

    return ParkingLot(settings, metrics)

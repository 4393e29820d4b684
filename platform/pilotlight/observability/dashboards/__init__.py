"""The four dashboards: one file each, one line each in this table. `platformctl dashboard` and the chart ship them."""

from typing import Final

from pilotlight.observability.dashboards.autoscaling import AUTOSCALING
from pilotlight.observability.dashboards.builder import Dashboard, rendered
from pilotlight.observability.dashboards.canary import CANARY
from pilotlight.observability.dashboards.model import MODEL
from pilotlight.observability.dashboards.overview import OVERVIEW

__all__ = ["DASHBOARDS", "Dashboard", "rendered"]

DASHBOARDS: Final[dict[str, Dashboard]] = {each.name: each for each in (OVERVIEW, AUTOSCALING, MODEL, CANARY)}

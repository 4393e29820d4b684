"""Table of the dashboards, which `platformctl dashboard` and the chart ship."""

from typing import Final

from pilotlight.observability.dashboards.autoscaler import AUTOSCALING
from pilotlight.observability.dashboards.builder import Dashboard, render_dashboard
from pilotlight.observability.dashboards.canary import CANARY
from pilotlight.observability.dashboards.model import MODEL
from pilotlight.observability.dashboards.overview import OVERVIEW

__all__ = ["DASHBOARDS", "Dashboard", "render_dashboard"]

DASHBOARDS: Final[dict[str, Dashboard]] = {each.name: each for each in (OVERVIEW, AUTOSCALING, MODEL, CANARY)}

"""The web console: a page that shows and controls services live. Served by the control API.

Browsers authenticate by a session instead of the API's token: [page](../../../docs/reference/console.md).
"""

from pilotlight.console.routes import areas, setup

__all__ = ["areas", "setup"]

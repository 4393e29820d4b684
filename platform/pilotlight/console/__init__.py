"""The web console: a page in a browser that shows services live and works them. Served by the control API.

Browsers show a session in place of the API's token: [page](../../../docs/console.md).
"""

from pilotlight.console.routes import add_to, areas

__all__ = ["add_to", "areas"]

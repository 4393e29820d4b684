"""What the application carries for the console, by typed keys."""

from typing import TYPE_CHECKING, Final

from aiohttp import web

if TYPE_CHECKING:
    from pilotlight.console.sessions import Sessions
    from pilotlight.console.watch import Watch

SESSIONS: "Final[web.AppKey[Sessions]]" = web.AppKey("sessions")
WATCH: "Final[web.AppKey[Watch]]" = web.AppKey("watch")

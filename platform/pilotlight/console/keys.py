"""Typed application keys of the console."""

from typing import TYPE_CHECKING, Final

from aiohttp import web

if TYPE_CHECKING:
    from pilotlight.console.sessions import Sessions
    from pilotlight.console.watch import StatusCache

SESSIONS: "Final[web.AppKey[Sessions]]" = web.AppKey("sessions")
STATUS_CACHE: "Final[web.AppKey[StatusCache]]" = web.AppKey("status_cache")

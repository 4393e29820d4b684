"""What the application carries for its handlers, by typed keys."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiohttp import web

if TYPE_CHECKING:
    from pilotlight.targets.local.engine import Engine

ENGINE: "Final[web.AppKey[Engine]]" = web.AppKey("engine")
TOKEN: Final = web.AppKey("token", str)
STOP: Final[web.AppKey[Callable[[float], None]]] = web.AppKey("stop")
ENDING: Final = web.AppKey("ending", asyncio.Event)

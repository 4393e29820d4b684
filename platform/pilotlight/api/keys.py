"""What the application carries for its handlers, by typed keys."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from pilotlight.api.areas import Area, Gate

if TYPE_CHECKING:
    from pilotlight.api.backing import Backing
    from pilotlight.targets.local.engine import Engine

BACKING: "Final[web.AppKey[Backing]]" = web.AppKey("backing")
ENGINE: "Final[web.AppKey[Engine]]" = web.AppKey("engine")  # only in the control process of the embedded platform
TOKEN: Final = web.AppKey("token", str)
STOP: Final[web.AppKey[Callable[[float], None]]] = web.AppKey("stop")
ENDING: Final = web.AppKey("ending", asyncio.Event)
GATES: Final[web.AppKey[Mapping[Any, Gate]]] = web.AppKey("gates")  # by resource of the router
SERVED: Final[web.AppKey[tuple[Area, ...]]] = web.AppKey("served")  # all areas, for the document that tells of them

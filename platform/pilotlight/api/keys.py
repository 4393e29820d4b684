"""Typed application keys that handlers read."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from pilotlight.api.areas import Area, Authorizer

if TYPE_CHECKING:
    from pilotlight.api.backing import ServiceBackend
    from pilotlight.targets.local.engine import Engine

BACKEND: "Final[web.AppKey[ServiceBackend]]" = web.AppKey("backend")
ENGINE: "Final[web.AppKey[Engine]]" = web.AppKey("engine")  # only in the control process of the embedded platform
TOKEN: Final = web.AppKey("token", str)
STOP: Final[web.AppKey[Callable[[float], None]]] = web.AppKey("stop")
SHUTTING_DOWN: Final = web.AppKey("shutting_down", asyncio.Event)
AUTHORIZERS: Final[web.AppKey[Mapping[Any, Authorizer]]] = web.AppKey("authorizers")  # by router resource
ALL_AREAS: Final[web.AppKey[tuple[Area, ...]]] = web.AppKey("areas")  # for the OpenAPI document
# returns the schemas of requests to models, by name, for the OpenAPI document
REQUEST_SCHEMAS: Final[web.AppKey[Callable[[], Mapping[str, Any]]]] = web.AppKey("request_schemas")

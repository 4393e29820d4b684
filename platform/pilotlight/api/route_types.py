"""Areas of the API: routes with a common authorizer. control_plane/app.py has the table of areas.

A route carries all that its entry in the OpenAPI document needs; a handler in no table is not served.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

READ_METHODS: Final = frozenset({"GET", "HEAD"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Authorizer = Callable[[web.Request], Awaitable[None]]  # raises where the request is not allowed


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `body` and `responses` are types for msgspec; None: no JSON, a tuple: one of several."""

    method: str
    path: str
    handler: Handler
    summary: str = ""
    body: Any = None
    responses: Mapping[int, Any] = field(default_factory=lambda: {200: None})
    query: Sequence[str] = ()  # names of query parameters
    model_body: bool = False  # the body is passed to a model: its schema is that of any kind of model


@dataclass(frozen=True, slots=True)
class Area:
    """Routes with a common authorizer. `internal`: for the console and Prometheus, not in the OpenAPI document.

    `prefix`: the authorizer is also the one of unknown paths and methods below it; others require an admin.
    """

    name: str
    authorizer: Authorizer
    routes: tuple[Route, ...]
    internal: bool = False
    prefix: str = ""

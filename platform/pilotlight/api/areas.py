"""What an area of the API is: routes, and the gate that says who may use them. app.py has the table of areas.

A route carries what its page in the OpenAPI document needs; a handler that is in no table is not served at all.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

READS: Final = frozenset({"GET", "HEAD"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Gate = Callable[[web.Request], Awaitable[None]]  # raises for a caller who may not pass


@dataclass(frozen=True, slots=True)
class Route:
    """`body` and `answers` are types that msgspec knows; None: no JSON, a tuple: one of several."""

    method: str
    path: str
    handler: Handler
    summary: str = ""
    body: Any = None
    answers: Mapping[int, Any] = field(default_factory=lambda: {200: None})
    query: Sequence[str] = ()  # names of parameters behind the question mark
    open_body: bool = False  # the body is the model's own: its schema is that of any kind of model


@dataclass(frozen=True, slots=True)
class Area:
    """`internal`: for our own pages and programs, and not in the OpenAPI document."""

    name: str
    gate: Gate
    routes: tuple[Route, ...]
    internal: bool = False

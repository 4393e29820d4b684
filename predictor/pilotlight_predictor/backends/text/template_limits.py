"""Limits of chat templates: programs of a model's author, whose time and memory Jinja's sandbox does not bound.

A template is rendered in a thread of its own, which is ended at a limit; its loops run in Python, so an exception
reaches them. A power of numbers is one call, which can hold the GIL for hours, so templates with powers are refused.
"""

import ctypes
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, Final

RENDER_S: Final = 5.0
MAX_GROWTH: Final = 1 << 30  # bytes of the process, while a template is rendered
CHECK_S: Final = 0.1
STATM: Final = Path("/proc/self/statm")
GENERATION: Final = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")  # transformers' own tag


class TemplateStopped(Exception):
    """The template was refused or ended; the message is the reason."""


class _Stop(BaseException):
    """Raised inside of the rendering thread."""


def check_template(sources: Iterable[str]) -> None:
    """Raise TemplateStopped if a template has powers. What does not parse is for the renderer to report."""
    from jinja2 import Environment, TemplateError, nodes

    for source in sources:
        with suppress(TemplateError, RecursionError):
            parser = Environment(extensions=["jinja2.ext.loopcontrols"])  # noqa: S701 - renders nothing
            parsed = parser.parse(GENERATION.sub("", source))
            if next(parsed.find_all(nodes.Pow), None) is not None:
                raise TemplateStopped("it has a power (**), which is not allowed")


def render_within_limits(render: Callable[[], str]) -> str:
    """Return render(). Raise what it raises, and TemplateStopped at a limit."""
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(render())
        except BaseException as error:  # raised below, in the caller's thread
            results.append(error)

    thread = Thread(target=work, name="pilotlight-template", daemon=True)
    deadline, before = monotonic() + RENDER_S, _resident_bytes()
    thread.start()
    thread.join(CHECK_S)
    while not results:
        growth = _resident_bytes() - before
        if monotonic() > deadline or growth > MAX_GROWTH:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Stop))
            long = f"it takes longer than {RENDER_S:g} s"
            raise TemplateStopped(long if growth <= MAX_GROWTH else f"it needs more than {MAX_GROWTH >> 20} MiB")
        thread.join(CHECK_S)
    if isinstance(results[0], BaseException):
        raise results[0]
    return str(results[0])


def _resident_bytes() -> int:
    if not STATM.exists():  # not Linux: the time alone is limited
        return 0
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

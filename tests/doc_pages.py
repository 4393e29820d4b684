"""Sections of the pages under docs/, for tests that run what stands there and for what is generated into them."""

import re
from collections.abc import Iterator

from tests.serving import ROOT

_FENCE = "```"


def page_section(page: str, title: str) -> str:
    """The section `## title` of a page, with its headings one level up, as if it were a page of its own."""
    lines, first, last = _bounds(page, title)
    levels = dict(_headings(lines))
    return (
        "\n".join(line[1:] if i in levels else line for i, line in enumerate(lines) if first <= i < last).strip() + "\n"
    )


def with_section(page: str, title: str, text: str) -> str:
    """The page with its section `## title` replaced by `text`, whose headings are those of a page of its own."""
    lines, first, last = _bounds(page, title)
    new = text.strip().split("\n")
    levels = dict(_headings(new))
    section = [f"#{line}" if i in levels else line for i, line in enumerate(new)]
    return "\n".join([*lines[:first], *section, *([""] if last < len(lines) else []), *lines[last:]]).rstrip() + "\n"


def _bounds(page: str, title: str) -> tuple[list[str], int, int]:
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    tops = [i for i, level in _headings(lines) if level <= 2]
    first = next((i for i in tops if lines[i] == f"## {title}"), None)
    assert first is not None, f"{page} has no section {title}"
    return lines, first, next((i for i in tops if i > first), len(lines))


def _headings(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Line and level of each heading outside fenced code."""
    fenced = False
    for i, line in enumerate(lines):
        if line.lstrip().startswith(_FENCE):
            fenced = not fenced
        elif not fenced and (heading := re.match(r"(#+) ", line)):
            yield i, len(heading[1])

"""What docs/how-to/migrate-triton.md allows: rows of tables, each with cases and parts of an answer."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from tests.doc_pages import page_section

PAGE = ("docs/how-to/migrate-triton.md", "Differences from Triton")
ABSENT = "(absent)"
Aspects = Mapping[str, Any]


class Difference(NamedTuple):
    """`cases` and `aspects` are globs, of which one must fit."""

    protocol: str
    cases: tuple[str, ...]
    aspects: tuple[str, ...]
    why: str

    def allows(self, protocol: str, case: str, aspect: str) -> bool:
        return protocol == self.protocol and _fits(case, self.cases) and _fits(aspect, self.aspects)


def _fits(text: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, each.replace("[", "[[]")) for each in globs)


@cache
def differences() -> tuple[Difference, ...]:
    """The rows of every table on the page; the heading above a table ends with its protocol."""
    found: list[Difference] = []
    protocol = ""
    for line in page_section(*PAGE).splitlines():
        if line.startswith("## "):
            protocol = line.split()[-1].lower()
        elif line.startswith("| `"):
            cases, aspects, why = (cell.strip() for cell in line.strip("|").split("|"))
            found.append(Difference(protocol, _names(cases), _names(aspects), why))
    return tuple(found)


def _names(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def unlike(theirs: Aspects, ours: Aspects) -> dict[str, tuple[Any, Any]]:
    """Each aspect in which two answers differ, with both values."""
    names = dict.fromkeys([*theirs, *ours])
    both = {name: (theirs.get(name, ABSENT), ours.get(name, ABSENT)) for name in names}
    return {name: values for name, values in both.items() if not _same(*values)}


def _same(one: Any, other: Any) -> bool:
    """1 and 1.0 are one number in JSON; true is none."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)

"""Regular expressions of label matchers, by Python's `re`, which may try every way to match a text.

Prometheus has RE2, whose time is linear. Here `(a|a)*b` would take 2⁶³ steps for a name of 63 letters, and while `re`
runs no other thread does. So an expression is accepted by a bound of its paths.
"""

import re
from functools import lru_cache
from typing import Final

LENGTH: Final = 256  # of a label's value; the store drops series of longer ones, which a model's own metrics may have
MAX_PATHS: Final = 100_000  # two `.*` are 66,049
_ATOM: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # whose characters are no operators
# Lookarounds, flags and comments; repeated groups; possessive repeats.
_REFUSED: Final = re.compile(r"\(\?|\)[*+{]|[*+?}]\+")


@lru_cache(maxsize=512)
def is_safe(expression: str) -> bool:
    """Return whether it is valid and matches in a bounded time. Much of what is refused is not in RE2 either."""
    try:
        re.compile(expression)
        outline = _ATOM.sub("a", expression.removeprefix("(?i)")).replace("(?:", "(")
        return not _REFUSED.search(outline) and _path_bound(outline) <= MAX_PATHS
    except (re.error, RecursionError, OverflowError):  # some are valid in RE2 only, such as \pL
        return False


@lru_cache(maxsize=4096)  # a panel evaluates its query at 90 times
def matches(expression: str, text: str) -> bool:
    return re.fullmatch(expression, text) is not None


def _path_bound(outline: str) -> float:
    """Return a bound of the paths to match a text of LENGTH characters.

    Paths of alternatives add up, those of parts multiply. Of n groups with b bars the product is highest if each has as
    many bars.
    """
    if "(" not in outline:
        return sum(map(_repeat_bound, outline.split("|")))
    groups = 1 + outline.count("(")
    return float(_repeat_bound(outline) * (1 + outline.count("|") / groups) ** groups)


def _repeat_bound(outline: str) -> int:
    return int((LENGTH + 1) ** len(re.findall(r"[*+{]", outline)) * 2 ** outline.count("?"))

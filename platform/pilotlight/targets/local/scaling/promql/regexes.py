"""Regular expressions of label matchers, by Python's `re`, which may try every way to match a text.

Prometheus has RE2, whose time is linear. Here `(a|a)*b` would take 2⁶³ steps for a name of 63 letters, and while `re`
runs no other thread does. So an expression is accepted by the number of its paths.
"""

import re
from functools import lru_cache
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

LENGTH: Final = 64  # of a label's value: a DNS label has at most 63 characters
MAX_PATHS: Final = 10_000  # two `.*` are 4,225
_REPEATS: Final = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_SINGLE: Final = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN, _constants.AT)


@lru_cache(maxsize=512)
def is_safe(expression: str) -> bool:
    """Return whether it is valid and matches in a bounded time; lookarounds and references are not in RE2 either."""
    try:
        re.compile(expression)
        return _path_count(_parser.parse(expression)) <= MAX_PATHS
    except (re.error, RecursionError, OverflowError):  # some are valid in RE2 only, such as \pL
        return False


@lru_cache(maxsize=4096)  # a panel evaluates its query at 90 times
def matches(expression: str, text: str) -> bool:
    return re.fullmatch(expression, text) is not None


def _path_count(parsed: Any) -> int:
    """Return a bound of the paths to match a text of LENGTH characters."""
    paths = 1
    for kind, argument in parsed:
        if kind is _constants.SUBPATTERN:
            paths *= _path_count(argument[-1])
        elif kind is _constants.BRANCH:
            paths *= sum(map(_path_count, argument[1]))
        elif kind in _REPEATS:
            low, high, repeated = argument
            each = _path_count(repeated)
            paths *= sum(each**count for count in range(min(low, LENGTH), min(high, LENGTH) + 1))
        elif kind not in _SINGLE:
            return MAX_PATHS + 1
        if paths > MAX_PATHS:
            break
    return paths

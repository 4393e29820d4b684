"""The arithmetic of KEDA's scalingModifiers, read and computed without running any code.

max(requests / 10, latency * 2)      names are triggers
gpu > 90 ? 20 : queue ?? 1           `??` takes the right side where the trigger's source has failed
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

Value = float | bool | None
Node = Callable[[Mapping[str, float | None]], Any]
_TOKEN: Final = re.compile(
    r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)|([A-Za-z_]\w*)|(\*\*|\?\?|<=|>=|==|!=|&&|\|\||[-+*/%^<>!?:(),\[\]]))"
)
DEEPEST: Final = 50


class Unreadable(ValueError):
    """Its text says what is wrong with the formula."""


def compute(text: str, values: Mapping[str, float | None]) -> float | None:
    """None where a failed trigger decides the result, or where it is no number, such as 1 / 0."""
    try:
        result = _compiled(text)(values)
    except (ZeroDivisionError, OverflowError, TypeError, ValueError):
        return None
    if result is None:
        return None
    number = float(result)
    return number if math.isfinite(number) else None


def mistake(text: str, known: set[str]) -> str:
    """Why the formula cannot be computed with these triggers, or an empty string."""
    try:
        _compiled(text)
    except Unreadable as wrong:
        return str(wrong)
    used = set(re.findall(r"[A-Za-z_]\w*", text)) - set(_FUNCTIONS) - _WORDS
    unknown = sorted(used - known)
    return f"must use only triggers {', '.join(sorted(known))}; {unknown[0]} is none" if unknown else ""


@lru_cache(maxsize=256)
def _compiled(text: str) -> Node:
    reader = _Reader(_tokens(text))
    node = reader.expression(0, 0)
    if reader.peek():
        raise Unreadable(f"must be one formula; {reader.peek()} is too much")
    return node


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise Unreadable(f"must be arithmetic over triggers; cannot read {text[place:].strip()[:20]}")
        found.append(match[0].strip())
        place = match.end()
    return found


# Loosest first, as the expression language of KEDA binds them.
_BINARY: Final[dict[str, tuple[int, Callable[[Any, Any], Any]]]] = {
    "||": (1, lambda a, b: a or b), "or": (1, lambda a, b: a or b),
    "&&": (2, lambda a, b: a and b), "and": (2, lambda a, b: a and b),
    "==": (3, lambda a, b: a == b), "!=": (3, lambda a, b: a != b),
    "<": (3, lambda a, b: a < b), ">": (3, lambda a, b: a > b),
    "<=": (3, lambda a, b: a <= b), ">=": (3, lambda a, b: a >= b),
    "+": (4, lambda a, b: a + b), "-": (4, lambda a, b: a - b),
    "*": (5, lambda a, b: a * b), "/": (5, lambda a, b: a / b), "%": (5, lambda a, b: math.fmod(a, b)),
    "**": (7, lambda a, b: math.pow(a, b)), "^": (7, lambda a, b: math.pow(a, b)),
    "??": (8, lambda a, b: b if a is None else a),
}  # fmt: skip
_UNARY: Final = 6
_WORDS: Final = {"and", "or", "not", "true", "false", "nil"}
_CONSTANTS: Final[dict[str, Value]] = {"true": True, "false": False, "nil": None}


def _flat(arguments: Sequence[Any]) -> list[float]:
    return [float(n) for part in arguments for n in (part if isinstance(part, list) else [part])]


_FUNCTIONS: Final[dict[str, Callable[[Sequence[Any]], float]]] = {
    "max": lambda found: max(_flat(found)),
    "min": lambda found: min(_flat(found)),
    "sum": lambda found: sum(_flat(found)),
    "mean": lambda found: statistics.fmean(_flat(found)),
    "median": lambda found: statistics.median(_flat(found)),
    "abs": lambda found: abs(float(found[0])),
    "ceil": lambda found: float(math.ceil(found[0])),
    "floor": lambda found: float(math.floor(found[0])),
    "round": lambda found: float(math.floor(found[0] + 0.5)),
    "float": lambda found: float(found[0]),
    "int": lambda found: float(int(found[0])),
}


class _Reader:
    """Precedence climbing over the tokens; `depth` keeps a formula of brackets from exhausting the stack."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at = tokens, 0

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            place = f"before {token}" if token else "at its end"
            raise Unreadable(f"must have {wanted or 'a number or a trigger'} {place}")
        self._at += 1
        return token

    def expression(self, least: int, depth: int) -> Node:
        if depth > DEEPEST:
            raise Unreadable(f"must have at most {DEEPEST} levels of brackets")
        left = self._operand(depth + 1)
        while (bound := _BINARY.get(self.peek())) and bound[0] >= least:
            word, (level, function) = self.take(), bound
            right = self.expression(level if word in ("**", "^") else level + 1, depth + 1)
            left = _joined(function, left, right)
        return self._choice(left, depth) if least == 0 and self.peek() == "?" else left

    def _choice(self, test: Node, depth: int) -> Node:
        self.take("?")
        yes = self.expression(0, depth + 1)
        self.take(":")
        no = self.expression(0, depth + 1)
        return lambda values: yes(values) if test(values) else no(values)

    def _operand(self, depth: int) -> Node:
        mark = self.take()
        if mark in ("-", "+", "!", "not"):
            inner = self.expression(_UNARY, depth)
            return _signed(mark, inner)
        if mark == "(":
            node = self.expression(0, depth)
            self.take(")")
            return node
        if mark == "[":
            parts = self._parts("]", depth)
            return lambda values: [part(values) for part in parts]
        if mark[0].isdigit() or mark[0] == ".":
            number = float(mark)
            return lambda values: number
        return self._named(mark, depth)

    def _named(self, token: str, depth: int) -> Node:
        if token in _FUNCTIONS and self.peek() == "(":
            self.take("(")
            function, arguments = _FUNCTIONS[token], self._parts(")", depth)
            return lambda values: function([argument(values) for argument in arguments])
        if token in _CONSTANTS:
            return lambda values: _CONSTANTS[token]
        if not token.isidentifier():
            raise Unreadable(f"must have a number or a trigger before {token}")
        return lambda values: values.get(token)

    def _parts(self, end: str, depth: int) -> list[Node]:
        parts = [self.expression(0, depth)]
        while self.peek() == ",":
            self.take(",")
            parts.append(self.expression(0, depth))
        self.take(end)
        return parts


def _joined(function: Callable[[Any, Any], Any], left: Node, right: Node) -> Node:
    return lambda values: function(left(values), right(values))


def _signed(sign: str, inner: Node) -> Node:
    if sign in ("!", "not"):
        return lambda values: not inner(values)
    return (lambda values: -inner(values)) if sign == "-" else inner

"""Parser and evaluator of KEDA's scalingModifiers formulas, without executing code.

max(requests / 10, latency * 2)      names are triggers
gpu > 90 ? 20 : queue ?? 1           `??` takes the right operand if the trigger has failed
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
MAX_DEPTH: Final = 50
# Precedence of KEDA's expression language (expr), loosest first.
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


class FormulaError(ValueError):
    """Invalid formula; the text says what it must be."""


def compute(text: str, values: Mapping[str, float | None]) -> float | None:
    """Return the value; None if a failed trigger decides it, or if it is not finite, such as 1 / 0."""
    try:
        result = _compiled(text)(values)
    except (ZeroDivisionError, OverflowError, TypeError, ValueError):
        return None
    if result is None:
        return None
    number = float(result)
    return number if math.isfinite(number) else None


def find_problem(text: str, known: set[str]) -> str:
    """Return why the formula cannot be evaluated with the triggers `known`, or an empty string."""
    try:
        _compiled(text)
    except FormulaError as wrong:
        return str(wrong)
    used = set(re.findall(r"[A-Za-z_]\w*", text)) - set(_FUNCTIONS) - _WORDS
    unknown = sorted(used - known)
    return f"must use only triggers {', '.join(sorted(known))}; {unknown[0]} is none" if unknown else ""


@lru_cache(maxsize=256)
def _compiled(text: str) -> Node:
    reader = _Reader(_tokens(text))
    node = reader.expression(0, 0)
    if reader.peek():
        raise FormulaError(f"must be one formula; unexpected {reader.peek()}")
    return node


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise FormulaError(f"must be arithmetic over triggers; cannot read {text[position:].strip()[:20]}")
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


def _flat(arguments: Sequence[Any]) -> list[float]:
    return [float(n) for part in arguments for n in (part if isinstance(part, list) else [part])]


_FUNCTIONS: Final[dict[str, Callable[[Sequence[Any]], float]]] = {
    "max": lambda values: max(_flat(values)),
    "min": lambda values: min(_flat(values)),
    "sum": lambda values: sum(_flat(values)),
    "mean": lambda values: statistics.fmean(_flat(values)),
    "median": lambda values: statistics.median(_flat(values)),
    "abs": lambda values: abs(float(values[0])),
    "ceil": lambda values: float(math.ceil(values[0])),
    "floor": lambda values: float(math.floor(values[0])),
    "round": lambda values: float(math.floor(values[0] + 0.5)),
    "float": lambda values: float(values[0]),
    "int": lambda values: float(int(values[0])),
}


class _Reader:
    """Precedence-climbing parser; `depth` bounds the recursion."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at = tokens, 0

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            position = f"before {token}" if token else "at its end"
            raise FormulaError(f"must have {wanted or 'a number or a trigger'} {position}")
        self._at += 1
        return token

    def expression(self, least: int, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise FormulaError(f"must have at most {MAX_DEPTH} levels of brackets")
        left = self._operand(depth + 1)
        while (bound := _BINARY.get(self.peek())) and bound[0] >= least:
            word, (level, function) = self.take(), bound
            right = self.expression(level if word in ("**", "^") else level + 1, depth + 1)
            left = _binary(function, left, right)
        if least or self.peek() != "?":
            return left
        self.take("?")
        yes = self.expression(0, depth + 1)
        self.take(":")
        no = self.expression(0, depth + 1)
        return lambda values: yes(values) if left(values) else no(values)

    def _operand(self, depth: int) -> Node:
        mark = self.take()
        if mark in ("-", "+", "!", "not"):
            inner = self.expression(_UNARY, depth)
            if mark in ("!", "not"):
                return lambda values: not inner(values)
            return (lambda values: -inner(values)) if mark == "-" else inner
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
            raise FormulaError(f"must have a number or a trigger before {token}")
        return lambda values: values.get(token)

    def _parts(self, end: str, depth: int) -> list[Node]:
        parts = [self.expression(0, depth)]
        while self.peek() == ",":
            self.take(",")
            parts.append(self.expression(0, depth))
        self.take(end)
        return parts


def _binary(function: Callable[[Any, Any], Any], left: Node, right: Node) -> Node:
    return lambda values: function(left(values), right(values))

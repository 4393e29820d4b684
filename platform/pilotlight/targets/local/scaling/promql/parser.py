"""Parser of a PromQL subset; the evaluator runs the tree. Anything beyond is refused by name.

Supported are numbers, selectors with matchers, a range and an offset, `sum avg min max count` with by or without, the
functions of FUNCTIONS, arithmetic, comparisons, and `and or unless` with on or ignoring: what the renderer and canaries
use, and common user queries.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from pilotlight.errors import UsageError

T = TypeVar("T")
AGGREGATIONS: Final = ("sum", "avg", "min", "max", "count")
RANGES: Final = ("rate", "increase", "irate", "avg_over_time", "max_over_time", "min_over_time", "sum_over_time")
FUNCTIONS: Final = (
    *RANGES, "histogram_quantile", "vector", "scalar", "clamp_min", "clamp_max", "clamp", "abs", "ceil", "floor",
)  # fmt: skip
LEVELS: Final = (("or",), ("and", "unless"), ("==", "!=", "<=", ">=", "<", ">"), ("+", "-"), ("*", "/", "%"))
MAX_DEPTH: Final = 60
_TOKEN: Final = re.compile(
    r"""(?:\s|\#[^\n]*+)*+(?:
        (?P<duration>(?:\d+(?:ms|[smhdwy]))+)(?![\w.])
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[Ii]nf\b|[Nn]a[Nn]\b)
      | (?P<name>[A-Za-z_:][\w:]*)
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`[^`]*`)
      | (?P<mark>=~|!~|==|!=|<=|>=|[-+*/%(){}\[\],=<>])
    )""",
    re.VERBOSE,
)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}


class UnsupportedQuery(UsageError):
    """Query that needs a Prometheus server."""

    def __init__(self, query: str, why: str) -> None:
        short = " ".join(query.split())
        short = short if len(short) <= 80 else f"{short[:77]}..."
        super().__init__(f"the query {short} {why}; needs --prometheus ADDRESS", "platformctl up --prometheus ADDRESS")


@dataclass(frozen=True, slots=True)
class Number:
    value: float


@dataclass(frozen=True, slots=True)
class Selector:
    name: str
    matchers: tuple[tuple[str, str, str], ...]  # label, operator, value
    range_s: float = 0.0
    offset_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    name: str
    of: "Node"
    labels: tuple[str, ...]
    without: bool


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: "Node"
    right: "Node"
    labels: tuple[str, ...] | None = None  # of on or ignoring; None: neither
    ignoring: bool = False
    as_bool: bool = False


Node = Number | Selector | Call | Aggregation | Binary


@lru_cache(maxsize=512)
def parse(query: str) -> Node:
    return _Parser(query).parse()


def _operands(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Binary):
        return node.left, node.right
    return node.arguments if isinstance(node, Call) else (node.of,) if isinstance(node, Aggregation) else ()


def selectors(node: Node) -> list[Selector]:
    if isinstance(node, Selector):
        return [node]
    return [selector for operand in _operands(node) for selector in selectors(operand)]


def _has_unused_range(node: Node) -> bool:
    used = isinstance(node, Call) and node.name in RANGES  # by the function: its first argument
    return (isinstance(node, Selector) and node.range_s > 0) or any(map(_has_unused_range, _operands(node)[used:]))


def seconds(text: str) -> float:
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdwy])", text))


class _Parser:
    def __init__(self, query: str) -> None:
        self._query = query
        self._tokens = self._split()
        self._at = 0

    def _split(self) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        position, text = 0, self._query.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                if re.fullmatch(r"(?:\s|#[^\n]*)*", text[position:]):
                    break
                raise self._unsupported(f"uses {text[position:].strip()[:12]}, which is not evaluated here")
            tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()
        return tokens

    def _unsupported(self, why: str) -> UnsupportedQuery:
        return UnsupportedQuery(self._query, why)

    def _peek(self, ahead: int = 0) -> str:
        position = self._at + ahead
        return self._tokens[position][1] if position < len(self._tokens) else ""

    def _kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._peek()
        if not token or (expected and token != expected):
            raise self._unsupported(f"has {token or 'its end'} where {expected or 'something'} should be")
        self._at += 1
        return token

    def parse(self) -> Node:
        node = self._level(0, 0)
        if self._peek():
            raise self._unsupported(f"uses {self._peek()}, which is not evaluated here")
        if _has_unused_range(node):
            raise self._unsupported("has a range that no function takes")
        return node

    def _level(self, level: int, depth: int) -> Node:
        """Parse left-associative operators of one precedence level; higher levels bind tighter."""
        if depth > MAX_DEPTH:
            raise self._unsupported("is nested too deeply")
        if level == len(LEVELS):
            return self._unary(depth + 1)
        left = self._level(level + 1, depth)
        while self._peek() in LEVELS[level] and self._kind() in ("mark", "name"):
            operator = self._take()
            as_bool = self._accept("bool")
            labels, ignoring = self._matching()
            left = Binary(operator, left, self._level(level + 1, depth + 1), labels, ignoring, as_bool)
        return left

    def _accept(self, word: str) -> bool:
        present = self._peek() == word and self._kind() == "name"
        self._at += present
        return present

    def _matching(self) -> tuple[tuple[str, ...] | None, bool]:
        if self._peek() not in ("on", "ignoring"):
            return None, False
        ignoring = self._take() == "ignoring"
        labels = self._labels()
        if self._peek() in ("group_left", "group_right"):
            raise self._unsupported(f"uses {self._peek()}, which is not evaluated here")
        return labels, ignoring

    def _list(self, begin: str, end: str, item: Callable[[], T]) -> tuple[T, ...]:
        """Parse items between two brackets, separated by commas."""
        self._take(begin)
        items: list[T] = []
        while self._peek() != end:
            items.append(item())
            if self._peek() == ",":
                self._take(",")
        self._take(end)
        return tuple(items)

    def _labels(self) -> tuple[str, ...]:
        return self._list("(", ")", self._take)

    def _unary(self, depth: int) -> Node:
        if self._peek() == "-":
            self._take("-")
            return Binary("*", Number(-1.0), self._unary(depth + 1))
        if self._peek() == "(":
            self._take("(")
            node = self._level(0, depth)
            self._take(")")
            return node
        if self._kind() == "number":
            return Number(float(self._take()))
        if self._kind() == "name":
            return self._named(depth)
        if self._peek() == "{":
            return self._selector("")
        raise self._unsupported(f"has {self._peek() or 'its end'} where a number, a metric or a function should be")

    def _named(self, depth: int) -> Node:
        name = self._take()
        if name in AGGREGATIONS and self._peek() in ("(", "by", "without"):
            return self._aggregation(name, depth)
        if self._peek() != "(":
            return self._selector(name)
        if name not in FUNCTIONS:
            raise self._unsupported(f"uses {name}(), which is not evaluated here")
        return self._call(name, self._list("(", ")", lambda: self._level(0, depth)))

    def _call(self, name: str, arguments: tuple[Node, ...]) -> Call:
        arity = {"histogram_quantile": 2, "clamp_min": 2, "clamp_max": 2, "clamp": 3}.get(name, 1)
        if len(arguments) != arity:
            raise self._unsupported(f"gives {name}() {len(arguments)} arguments, it takes {arity}")
        ranged = isinstance(arguments[0], Selector) and arguments[0].range_s > 0
        if ranged != (name in RANGES):
            raise self._unsupported(f"gives {name}() {'a' if ranged else 'no'} range")
        return Call(name, arguments)

    def _aggregation(self, name: str, depth: int) -> Aggregation:
        labels, without = self._grouping()
        self._take("(")
        node = self._level(0, depth)
        self._take(")")
        if labels is None:
            labels, without = self._grouping()
        return Aggregation(name, node, labels or (), without)

    def _grouping(self) -> tuple[tuple[str, ...] | None, bool]:
        if self._peek() not in ("by", "without"):
            return None, False
        without = self._take() == "without"
        return self._labels(), without

    def _selector(self, name: str) -> Selector:
        matchers = self._list("{", "}", self._matcher) if self._peek() == "{" else ()
        if not name:
            raise self._unsupported("selects without a metric's name, which is not evaluated here")
        range_s = 0.0
        if self._peek() == "[":
            self._take("[")
            range_s = self._duration()
            self._take("]")
        offset_s = self._duration() if self._accept("offset") else 0.0
        if self._peek() == "@":
            raise self._unsupported("uses @, which is not evaluated here")
        return Selector(name, matchers, range_s, offset_s)

    def _duration(self) -> float:
        if self._kind() != "duration":
            raise self._unsupported(f"has {self._peek() or 'its end'} where a duration should be")
        return seconds(self._take())

    def _matcher(self) -> tuple[str, str, str]:
        label, operator = self._take(), self._take()
        if operator not in ("=", "!=", "=~", "!~") or self._kind() != "text":
            raise self._unsupported(f"has the matcher {label}{operator}{self._peek()}, which is not evaluated here")
        text = self._take()
        value = text[1:-1] if text[0] == "`" else re.sub(r"\\(.)", r"\1", text[1:-1])
        return label, operator, value

"""PromQL queries as trees of promql-parser, for the local evaluator and for lint; any text of a user is safe."""

import json
import re
from typing import Any, Final

Node = Any  # of promql_parser, which is imported with the first query
# Its walk takes the cube of a query's depth, while no other thread runs: 1 s for 150 operators, 0.15 s for 80. Queries
# of our dashboards have up to 33; 50,000 brackets overflow its stack.
MAX_OPERATORS: Final = 80
MAX_CHARACTERS: Final = 4_000  # patterns that read a query take up to the square of its length
_OPERATOR: Final = re.compile(r"[-+*/%^<>(]|[=!]=|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_TEXT: Final = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`|\#[^\r\n]*""")


class InvalidQuery(ValueError):
    """Query that Prometheus would refuse, or that is too long to be read here."""


def parse(query: str) -> Node:
    """Return the query's tree, without parentheses. Raise InvalidQuery."""
    import promql_parser as promql

    if len(query) > MAX_CHARACTERS:
        raise InvalidQuery(f"it has more than {MAX_CHARACTERS} characters")
    if len(_OPERATOR.findall(_TEXT.sub("", query))) > MAX_OPERATORS:
        raise InvalidQuery(f"it has more than {MAX_OPERATORS} operators and brackets")
    try:
        tree = promql.parse(_TEXT.sub(_without_raw, query))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in Rust, as at [1e30], is no Exception
        raise InvalidQuery(str(error)[:100]) from error
    return promql.transform(tree, post_visit=lambda node: node.expr if isinstance(node, promql.ParenExpr) else None)


def _without_raw(text: re.Match[str]) -> str:
    """Quote a raw string, in which the parser would read escapes."""
    return json.dumps(text[0][1:-1], ensure_ascii=False) if text[0][0] == "`" else text[0]


def kind(node: Node) -> str:
    return type(node).__name__


def nodes(tree: Node) -> list[Node]:
    """Return all nodes, each before those in it; a MatrixSelector is followed by its VectorSelector."""
    import promql_parser as promql

    found: list[Node] = []
    promql.walk(tree, found.append)
    return found

"""Idiom that user-facing text must not have, with the field's word for it; CONTRIBUTING.md shows the table."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.serving import ROOT

# Paths whose text is checked, and those that are left out of them.
CHECKED: Final = (
    "platform/pilotlight", "predictor/pilotlight_predictor", "helm", "keda", "knative", "schemas", "docs", "README.md",
    "cli/platformctl", "Makefile",
)  # fmt: skip


class Idiom(NamedTuple):
    pattern: str
    avoid: str
    write: str


IDIOMS: Final = (
    Idiom(r"ask(s|ed|ing|er)?", "ask, asks for, asked", "request, call, query, need"),
    Idiom(r"tell(s|ing)?|told", "tell, told, unless told", "report, show; default"),
    Idiom(r"says|said", "says (of a program)", "report, print, state"),
    Idiom(r"nobody|whoever|anybody|everybody", "nobody, whoever, everybody", "no client, every user"),
    Idiom(r"(fall|falls|fell|fallen|falling) (to zero|asleep)", "fall to zero", "scale to zero"),
    Idiom(r"(?<!at )(least|most|greatest)( number of)? replicas", "least, most replicas", "min replicas, max replicas"),
    Idiom(r"shares? of (the|its|their) (requests|traffic)|the shares", "shares", "traffic split, percentage"),
    Idiom(r"dialects?", "dialect", "protocol"),
    Idiom(r"(an|no|its|each|every|first|last) answers?|the answers?(?! the| a)", "answer (noun)", "response"),
    Idiom(r"answers? in parts", "answers in parts", "streaming"),
    Idiom(r"end(s|ed)? with (\d|an? error|exit code)", "ends with 5", "exits with code 5"),
    Idiom(r"mend(s|ed|ing)?", "mend", "fix"),
    Idiom(r"look (again|at it)", "look again", "refresh, retry, check"),
    Idiom(r"go(es)? on", "goes on", "continue, keep running"),
    Idiom(r"(?<!left )by hand", "by hand", "manually"),
    Idiom(r"of late|as long again|anew", "of late, as long again, anew", "recently, 1.5 times, again"),
    Idiom(r"shall", "shall", "must, should"),
    Idiom(r"(is|are) taken|are served on", "is taken", "is in use, is accepted"),
    Idiom(r"(can(not)?|may) stand (beside|in)|stands? beside", "cannot stand beside", "cannot be combined with"),
    Idiom(r"of ours|is not ours|foreign (image|server|runtime)s?", "of ours, foreign", "Pilotlight's, third-party"),
)  # fmt: skip
_ANY: Final = [(re.compile(rf"\b({idiom.pattern})\b", re.IGNORECASE), idiom) for idiom in IDIOMS]
_NO_PROSE: Final = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]*>|https?://\S+")
# Comments of JavaScript, which are for readers of the code, and its strings in three kinds of quotes.
_SCRIPT: Final = re.compile(r"//[^\n]*|/\*.*?\*/|([\"'`])(?:\\.|(?!\1).)*\1", re.DOTALL)
_VALUE: Final = re.compile(r"\$\{[^}]*\}")


class Text(NamedTuple):
    path: str
    line: int
    text: str


def problems(texts: Iterator[Text]) -> list[str]:
    """Return each idiom with its place and the word to write."""
    return [
        f"{each.path}:{each.line}: {found[0]!r} in {each.text.strip()[:80]!r}: write {idiom.write}"
        for each in texts
        for pattern, idiom in _ANY
        if (found := pattern.search(each.text))
    ]


def texts(*roots: str) -> Iterator[Text]:
    """Yield what users read below the paths: strings of programs, values of YAML, comments of chart values, prose."""
    for root in roots:
        start = ROOT / root
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            if path.is_file():
                yield from _texts(path, path.relative_to(ROOT).as_posix())


def page() -> str:
    """Return the section of CONTRIBUTING.md."""
    rows = "".join(f"| {idiom.avoid} | {idiom.write} |\n" for idiom in IDIOMS)
    return f"""# Words of user-facing text

`tests/architecture/test_field_english.py` finds these in messages, help texts, the console, chart values and pages;
`make docs` writes this table.

| instead of | write |
|---|---|
{rows}"""


def _texts(path: Path, name: str) -> Iterator[Text]:
    if path.suffix == ".py":
        yield from _strings(path, name)
    elif path.suffix == ".js" and "/console/" in name and path.name != "uplot.js":
        yield from _script_strings(path, name)
    elif (path.suffix in (".md", ".txt", ".html", ".j2") and "LICENSE" not in name) or path.name == "values.yaml":
        yield from _prose(path, name)
    elif path.name == "Makefile":
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            yield Text(name, number, line.partition("## ")[2])
    elif path.suffix == ".yaml" and "/crds/" not in name and "/templates/" not in name:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            yield Text(name, number, line.partition("# ")[0])


def _strings(path: Path, name: str) -> Iterator[Text]:
    """Yield string constants with a space; docstrings are for readers of the code."""
    tree = ast.parse(path.read_bytes())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in bare)
    for node in constants:
        if isinstance(node.value, str) and " " in node.value:
            yield Text(name, node.lineno, node.value)


def _script_strings(path: Path, name: str) -> Iterator[Text]:
    """Yield strings with a space, without the expressions of template literals."""
    script = path.read_text("utf-8")
    for found in _SCRIPT.finditer(script):
        if found[1] and " " in found[0]:
            yield Text(name, script.count("\n", 0, found.start()) + 1, _VALUE.sub("", found[0]))


def _prose(path: Path, name: str) -> Iterator[Text]:
    """Yield lines outside fenced code, without inline code and the targets of links."""
    fenced = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield Text(name, number, _NO_PROSE.sub("", line))

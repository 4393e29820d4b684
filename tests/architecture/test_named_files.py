"""Files that comments, docstrings and pages name exist, and tests lie where their package lies."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.architecture.source_tree import PACKAGES, ROOT

TESTED = {"tests/platform": PACKAGES[0], "tests/predictor": PACKAGES[1], "tests/cli": PACKAGES[2]}
PAGES = ("CONTRIBUTING.md", "Containerfile", "Makefile", "docs/architecture.md")
# `name.py` or `folder/name.py`; not `<name>.py`, nor the end of a longer path.
MENTION = re.compile(r"(?<![\w./<>{}*…-])((?:[\w-]+/)*[\w-]+\.py)\b(?![\w./])")
LABEL = re.compile(r"\w[\[(]+([a-z_0-9]+(?:/[a-z_0-9]+)+)(?::[^\])]*)?[\])]")


@cache
def sources() -> tuple[Path, ...]:
    folders = (*PACKAGES, "tests", "bench", "helm", "schemas", "requirements", "examples")
    return tuple(path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def known() -> frozenset[str]:
    """Every end of every path: `b.py`, `a/b.py` …"""
    parts = [path.relative_to(ROOT).parts for path in sources()]
    return frozenset("/".join(each[start:]) for each in parts for start in range(len(each)))


def prose(path: Path) -> Iterator[str]:
    """Comments and docstrings of a module; the whole text of any other file."""
    text = path.read_text()
    if path.suffix != ".py":
        yield text
        return
    if not missing(text):  # a tenth of the time that the parts of all modules take
        return
    yield from (
        each.string for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type == tokenize.COMMENT
    )
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def missing(text: str) -> list[str]:
    return [name for name in MENTION.findall(text) if name not in known()]


def test_a_file_that_is_gone_would_be_found() -> None:
    assert missing("as wire/http1.py and gone.py do (wire/gone.py); not <name>.py") == ["gone.py", "wire/gone.py"]


def test_every_file_that_prose_names_exists() -> None:
    paths = [path for path in sources() if path != Path(__file__)] + [ROOT / name for name in PAGES]
    assert not [f"{path.relative_to(ROOT)}: {name}" for path in paths for text in prose(path) for name in missing(text)]


def test_paths_in_the_diagrams_exist() -> None:
    diagrams = re.findall(r"```mermaid\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL)
    labels = [label for diagram in diagrams for label in LABEL.findall(diagram)]
    modules = {f"/{path.relative_to(ROOT).with_suffix('')}" for path in sources()}
    folders = {name.rpartition("/")[0] for name in modules}
    assert len(labels) > 10
    assert not [label for label in labels if not any(name.endswith(f"/{label}") for name in modules | folders)]


@pytest.mark.parametrize("tests", TESTED)
def test_tests_lie_where_their_package_lies(tests: str) -> None:
    """A folder with tests has the name of a folder or a module of the package."""
    folders = {path.parent.relative_to(ROOT / tests) for path in (ROOT / tests).rglob("test_*.py")}
    product = ROOT / TESTED[tests]
    assert not [
        f"{tests}/{folder}"
        for folder in folders
        if not (product / folder).is_dir() and not (product / f"{folder}.py").is_file()
    ]

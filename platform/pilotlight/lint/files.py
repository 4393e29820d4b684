"""Linting what stands in files: the only part of the linter that reads any."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pilotlight.errors import InvalidDocument, NotFound
from pilotlight.lint.check import lint
from pilotlight.lint.rule import Finding
from pilotlight.spec.problems import Problems

SUFFIXES: Final = (".yaml", ".yml", ".json")


def lint_files(paths: Sequence[str], *, model_bytes: Mapping[str, int] | None = None) -> list[Finding]:
    """Files, directories and `-` (standard input), linted together. What is no YAML is an InvalidDocument."""
    from pilotlight.spec.nodes import parse

    problems = Problems()
    nodes = [node for file, text in _texts(paths) for node in parse(text, file, problems)]
    if problems.errors:
        raise InvalidDocument(problems.errors)
    return lint(nodes, model_bytes=model_bytes)


def _texts(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    for given in paths:
        if given == "-":
            yield "<stdin>", sys.stdin.read()
            continue
        for path in _files(Path(given)):
            yield str(path), path.read_text(encoding="utf-8")


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(child for child in path.iterdir() if child.suffix in SUFFIXES)
        if not found:
            raise NotFound(f"{path} has no file that ends in {', '.join(SUFFIXES)}")
        return found
    if not path.is_file():
        raise NotFound(f"{path} does not exist")
    return [path]

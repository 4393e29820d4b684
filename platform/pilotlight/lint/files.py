"""Linting what stands in files: the only part of the linter that reads any."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

from pilotlight.errors import InvalidDocument
from pilotlight.lint.check import lint
from pilotlight.lint.rule import Finding
from pilotlight.spec.problems import Place, Problems

SUFFIXES: Final = (".yaml", ".yml", ".json")


def lint_files(
    paths: Sequence[str], *, stdin: TextIO | None = None, model_bytes: Mapping[str, int] | None = None
) -> list[Finding]:
    """Files, directories and `-` (standard input), linted together. What cannot be read is an InvalidDocument."""
    from pilotlight.spec.nodes import parse

    problems = Problems()
    nodes = [node for file, text in _texts(paths, stdin, problems) for node in parse(text, file, problems)]
    if problems.errors:
        raise InvalidDocument(problems.errors)
    return lint(nodes, model_bytes=model_bytes)


def _texts(paths: Sequence[str], stdin: TextIO | None, problems: Problems) -> Iterator[tuple[str, str]]:
    for given in paths:
        if given == "-":
            yield "<stdin>", stdin.read() if stdin is not None else ""
            continue
        files = _files(Path(given))
        if not files:
            problems.error("PL112", Place(given), "", f"is a directory without {', '.join(SUFFIXES)} files")
        for path in files:
            try:
                yield str(path), path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                problems.error("PL112", Place(str(path)), "", f"cannot be read: {reason}")


def _files(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.suffix in SUFFIXES) if path.is_dir() else [path]

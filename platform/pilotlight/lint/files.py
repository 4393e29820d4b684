"""Linting of files: the only part of the linter that reads the file system."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

from pilotlight.lint.check import lint
from pilotlight.lint.rule import Finding
from pilotlight.spec.problems import InvalidDocument, Problems, SourceLocation

SUFFIXES: Final = (".yaml", ".yml", ".json")


def lint_files(
    paths: Sequence[str], *, stdin: TextIO | None = None, model_bytes: Mapping[str, int] | None = None
) -> list[Finding]:
    """Lint files, directories and `-` (standard input) together. Raise InvalidDocument for unreadable ones."""
    from pilotlight.spec.nodes import parse

    problems = Problems()
    nodes = [node for file, text in _texts(paths, stdin, problems) for node in parse(text, file, problems)]
    if problems.errors:
        raise InvalidDocument(problems.errors)
    return lint(nodes, model_bytes=model_bytes)


def _texts(paths: Sequence[str], stdin: TextIO | None, problems: Problems) -> Iterator[tuple[str, str]]:
    for name in paths:
        if name == "-":
            yield "<stdin>", stdin.read() if stdin is not None else ""
            continue
        folder = Path(name)
        files = (
            [folder] if not folder.is_dir() else sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
        )
        if not files:
            problems.error("PL112", SourceLocation(name), "", f"is a directory without {', '.join(SUFFIXES)} files")
        for path in files:
            try:
                yield str(path), path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                problems.error("PL112", SourceLocation(str(path)), "", f"cannot be read: {reason}")

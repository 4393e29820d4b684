"""What the pages tell people to type exists: make targets, verbs, modules."""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.architecture.source_tree import ROOT

from platformctl.main import VERBS

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "examples/**/*.md",
        "bench/**/*.md",
        "helm/*.md",
        "keda/*.md",
        "knative/*.md",
    )
    for path in ROOT.glob(pattern)
)
# Code spans and indented or fenced blocks: prose may say "make sure".
CODE = re.compile(r"`[^`\n]+`|^(?: {4}|\$ )[^\n]*$|^```.*?^```", re.MULTILINE | re.DOTALL)


def commands(page: Path, pattern: str) -> set[str]:
    return {word for code in CODE.findall(page.read_text()) for word in re.findall(pattern, code)}


def pages() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def test_every_phony_target_has_a_rule_and_a_line_of_help() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert set(phony.group(1).split()) == TARGETS
    listed = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    assert set(re.findall(r"^  make ([a-z-]+)", listed, re.MULTILINE)) == TARGETS


@pages()
def test_every_make_target_on_a_page_exists(page: Path) -> None:
    assert commands(page, r"\bmake ((?!PYTHON)[a-z][a-z-]*)") <= TARGETS


@pages()
def test_every_verb_on_a_page_exists(page: Path) -> None:
    assert commands(page, r"\bplatformctl ([a-z]+)\b(?!:)") <= set(VERBS)


@pages()
def test_every_module_run_on_a_page_exists(page: Path) -> None:
    names = commands(page, r"\bpython3? -m ((?:pilotlight|platformctl|bench)[\w.]*)")
    assert not [name for name in names if find_spec(name.rstrip(".")) is None]


def test_continuous_integration_types_only_what_readme_and_contributing_say() -> None:
    readme = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    for script in (".ci/run", ".github/workflows/ci.yml"):
        text = (ROOT / script).read_text()
        typed = set(re.findall(r"^\s*(?:- run: |run: |exec )?make ([a-z-]+)", text, re.MULTILINE))
        assert typed, script
        assert not [target for target in typed if f"make {target}" not in readme], script


@pages()
def test_every_module_named_on_a_page_exists(page: Path) -> None:
    """A path such as `spec/load_documents.py` may leave out the folders above it."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = [f"/{name}" for name in listed.stdout.split()]
    named = set(re.findall(r"`((?:[\w-]+/)+\w+\.py)`", page.read_text()))
    foreign = {name for name in named if name.startswith(("models/", "my_package/", "backends/linear"))}  # a user's own
    assert not [name for name in named - foreign if not any(file.endswith(f"/{name}") for file in files)]

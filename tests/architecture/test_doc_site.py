"""The pages as a site: every link and anchor resolves, every page is in the navigation, and MkDocs builds it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs.site_hooks import anchors, links, rewritten, target
from tests.architecture.source_tree import ROOT
from tests.architecture.test_commands import PAGES

DOCS = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
MOST_PAGES = 40  # merge before you add


class _Loader(yaml.SafeLoader):
    """mkdocs.yml names Python functions, which are nothing here."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
CONFIG: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)  # a SafeLoader


@cache
def anchors_of(path: str) -> set[str]:
    return anchors((ROOT / path).read_text())


def broken(page: str, text: str) -> Iterator[str]:
    for match in links(text):
        path = target(page, match["path"])
        if not (ROOT / path).exists():
            yield f"{match['path']}: no such file"
        elif match["anchor"] and path.endswith(".md") and match["anchor"][1:] not in anchors_of(path):
            yield f"{match['path']}{match['anchor']}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_of_a_page_resolves(page: Path) -> None:
    assert not list(broken(str(page.relative_to(ROOT)), page.read_text()))


def test_a_broken_link_and_a_broken_anchor_would_be_found() -> None:
    text = "[a](gone.md) [b](index.md#gone) [c](#here) `[d](code.md)`\n\n```\n[e](code.md)\n```\n\n# Here\n"
    assert list(broken("docs/getting-started.md", text)) == [
        "gone.md: no such file",
        "index.md#gone: no such heading",
        "#here: no such heading",
    ]


def test_links_that_leave_the_pages_lead_to_copies_in_the_site() -> None:
    text = "[a](../../examples/iris) [b](../../CONTRIBUTING.md#glossary) [c](../security.md) [d](#own)"
    assert rewritten(text, "docs/reference/cli.md") == (
        "[a](../files/examples/iris/README.md) [b](../files/CONTRIBUTING.md#glossary) [c](../security.md) [d](#own)"
    )


def nav(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for each in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
        yield from nav(each)


def test_the_navigation_and_the_index_have_every_page() -> None:
    assert {page for page in nav(CONFIG["nav"]) if not page.startswith("files/")} == DOCS
    index = (ROOT / "docs/index.md").read_text()
    assert not [page for page in DOCS - {"index.md"} if f"({page})" not in index]


def test_there_are_few_enough_pages_to_know_them() -> None:
    assert len(DOCS) <= MOST_PAGES


@pytest.mark.long
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="MkDocs is not installed: make docs-site installs it")
def test_the_site_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    fetched = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")
    built = list(tmp_path.rglob("*.html"))
    assert len(built) >= len(DOCS)
    assert not {tag for page in built for tag in fetched.findall(page.read_text())}

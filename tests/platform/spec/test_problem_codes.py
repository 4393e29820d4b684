"""Problem codes: each one that the code uses is explained, and the page that explains them is made of the table."""

import re
from pathlib import Path

from pilotlight.spec.problems import CODES, SECTIONS, as_markdown

ROOT = Path(__file__).resolve().parents[3]


def used() -> set[str]:
    sources = (ROOT / "platform" / "pilotlight").rglob("*.py")
    texts = (path.read_text() for path in sources if path.name != "problems.py")
    return {code for text in texts for code in re.findall(r'"(PL\d{3})"', text)}


def test_the_page_of_problems_is_what_the_table_says() -> None:
    assert (ROOT / "docs" / "problems.md").read_text() == as_markdown()


def test_every_code_in_use_is_explained_and_every_explained_one_is_in_use() -> None:
    """A section counts from its first entry on."""
    begun = {code[:3] for code in CODES}
    assert begun <= SECTIONS.keys()
    assert {code for code in used() if code[:3] in begun} == CODES.keys()


def test_codes_stand_in_order() -> None:
    assert list(CODES) == sorted(CODES)

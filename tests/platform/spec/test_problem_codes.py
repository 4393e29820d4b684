"""Problem codes: each one that the code uses is explained in data/problem_codes.yaml, and nothing else is."""

import re
from pathlib import Path

from tests.platform.spec.errors_page import SECTIONS

from pilotlight.spec.problems import code_texts

PACKAGE = Path(__file__).resolve().parents[3] / "platform" / "pilotlight"


def used() -> set[str]:
    texts = (path.read_text() for path in (*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.yaml")))
    return {code for text in texts for code in re.findall(r'(?:"|code: )(PL\d{3})\b', text)}


def test_every_code_in_use_is_explained_and_every_explained_one_is_in_use() -> None:
    assert {code for code in used() if code[:3] in SECTIONS} == code_texts().keys()


def test_codes_stand_in_order() -> None:
    assert list(code_texts()) == sorted(code_texts())
    assert all(code[:3] in SECTIONS for code in code_texts())


def test_a_code_has_a_meaning_and_a_fix() -> None:
    assert not [code for code, texts in code_texts().items() if not all(text.endswith((".", "…")) for text in texts)]

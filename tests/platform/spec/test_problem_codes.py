"""Problem codes: each one that the code uses is explained on docs/reference/errors.md, and nothing else is."""

import re

from tests.platform.spec.problem_codes import CODES, ROOT, SECTIONS


def used() -> set[str]:
    package = ROOT / "platform" / "pilotlight"
    texts = (path.read_text() for path in (*package.rglob("*.py"), *package.rglob("*.yaml")))
    return {code for text in texts for code in re.findall(r'(?:"|code: )(PL\d{3})\b', text)}


def test_every_code_in_use_is_explained_and_every_explained_one_is_in_use() -> None:
    assert {code for code in used() if code[:3] in SECTIONS} == CODES.keys()


def test_codes_stand_in_order_in_the_section_of_their_number() -> None:
    assert list(CODES) == sorted(CODES)
    assert [code for codes in SECTIONS.values() for code in codes] == list(CODES)
    assert all(code.startswith(prefix) for prefix, codes in SECTIONS.items() for code in codes)


def test_a_code_has_a_meaning_and_a_remedy() -> None:
    assert not [code for code, texts in CODES.items() if not all(text.endswith((".", "…")) for text in texts)]

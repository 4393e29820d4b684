"""User-facing text has the words of the field: the table of field_english.py."""

import pytest
from tests.architecture.field_english import CHECKED, IDIOMS, Text, problems, texts


def test_user_facing_text_has_no_private_idiom() -> None:
    found = problems(texts(*CHECKED))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the model asks for a GPU", "request"),
        ("Output format, table unless told.", "default"),
        ("the service fell to zero", "scale to zero"),
        ("no answer within 5 s", "response"),
        ("the command ends with 5", "exits with code"),
        ("at most 42 ms of late", "recently"),
    ],
)
def test_an_idiom_is_named_with_its_place_and_the_word_to_write(text: str, word: str) -> None:
    (found,) = problems(iter([Text("docs/page.md", 7, text)]))
    assert found.startswith("docs/page.md:7: ")
    assert word in found


def test_words_of_the_field_pass() -> None:
    for idiom in IDIOMS:
        assert not problems(iter([Text("page", 1, idiom.write)])), idiom
    assert not problems(iter([Text("page", 1, "At most 3 replicas; the model answers requests; there is no model.")]))


def test_strings_of_the_console_are_checked_and_comments_are_not() -> None:
    console = list(texts("platform/pilotlight/console/static"))
    canary = [each.text for each in console if each.path.endswith("/canary.js")]
    assert '"Promote to the next step?"' in canary
    assert "`Traffic split without checks: `" in canary
    assert not any("The canary of a service: its steps" in text for text in canary)
    assert not any(each.path.endswith("/uplot.js") for each in console)

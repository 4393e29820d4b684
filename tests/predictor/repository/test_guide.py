"""The users' page on model repositories holds what it promises."""

import re
from pathlib import Path

import pytest

from pilotlight_predictor.core.backend_table import TABLE
from pilotlight_predictor.repository.config_reader import config_from_pbtxt

GUIDE = (Path(__file__).parents[3] / "docs/reference/model-repository.md").read_text()
EXAMPLES = re.findall(r"```pbtxt\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_is_a_valid_configuration(text: str) -> None:
    assert config_from_pbtxt(text, "config.pbtxt").explicit_fields


def test_every_backend_and_usual_file_name_is_listed() -> None:
    for row in TABLE:
        assert any(f"`{name}`" in GUIDE for name in row.names), row.names
        for file in row.files:
            assert file in GUIDE

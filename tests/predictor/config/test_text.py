"""Help and page say everything the table knows."""

from pathlib import Path

import pytest
from tests.predictor.config.settings_page import page

from pilotlight_predictor import __version__
from pilotlight_predictor.config import command_line
from pilotlight_predictor.config.settings_table import ROWS

DOCS = Path(__file__).resolve().parents[3] / "docs/reference/settings.md"


def answered(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        command_line(argv, {})
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_the_page_names_every_key_flag_and_variable() -> None:
    text = page()
    for row in ROWS:
        for name in (*row.flags, *row.variables, *row.paths):
            assert f"`{name}`" in text


def test_help_lists_every_flag_by_section_even_beside_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    text = answered(["--nonsense", "--help"], capsys)
    for section in ("server", "model", "performance", "safeguards", "observability", "file"):
        assert f"\n{section}:\n" in text
    for row in ROWS:
        assert f"  {', '.join(row.flags)} {row.kind.metavar}\n" in text


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(["--version"], capsys) == f"pilotlight {__version__}\n"

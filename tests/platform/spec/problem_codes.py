"""The codes of docs/reference/errors.md: meaning and remedy of each, and the codes of each section by its number."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (PL\d{3}) \| (.+) \| (.+) \|$", re.MULTILINE)
_TITLES = {"Reading documents": "PL1", "The catalogue": "PL2", "The plan": "PL3"}

CODES = {code: (meaning, remedy) for code, meaning, remedy in _ROW.findall(_PAGE)}
SECTIONS = {
    _TITLES[text.partition("\n")[0]]: [code for code, *_ in _ROW.findall(text)] for text in _PAGE.split("\n## ")[1:]
}

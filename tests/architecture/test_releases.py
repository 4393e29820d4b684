"""What a release needs: one version everywhere, a changelog in its form, and pages that claim no package index."""

import re
import tomllib

import yaml
from tests.architecture.source_tree import ROOT

SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_wheel_charts_and_image_have_one_version() -> None:
    charts = [yaml.safe_load(path.read_text()) for path in ROOT.glob("helm/*/Chart.yaml")]
    assert {text for chart in charts for text in (chart["version"], chart["appVersion"])} == {VERSION}
    label = re.search(r'image\.version="(.*?)"', (ROOT / "Containerfile").read_text())
    assert label is not None
    assert label[1] == VERSION


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    titles = [text.partition("\n")[0] for text in versions]
    assert titles[0] == "[Unreleased]"
    assert not [title for title in titles[1:] if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", title)]
    for text in versions:
        sections = re.findall(r"^### (.*)$", text, re.MULTILINE)
        assert sections == [name for name in SECTIONS if name in sections], "each once, in their order"


def test_no_page_claims_a_package_index_that_has_us() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("helm/**/*.md")]
    claimed = re.compile(r"pip3? install [^`\n]*\bpilotlight\b(?!-)|helm repo add")
    found = [f"{page.relative_to(ROOT)}: {line}" for page in pages for line in claimed.findall(page.read_text())]
    assert not found, "install from a checkout: pip install '.[EXTRA]'"

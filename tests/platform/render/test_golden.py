"""Every plan renders to the file that people have read. UPDATE_GOLDEN=1 in the environment writes the files anew."""

import os
from pathlib import Path

import pytest
from tests.platform.render.render_plans import PLANS

from pilotlight.k8s.manifest import to_yaml
from pilotlight.lint import lint
from pilotlight.render import render, values_of

GOLDEN = Path(__file__).parent / "golden"


def compare(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_renders_to_its_golden_file(name: str) -> None:
    compare(GOLDEN / f"{name}.yaml", to_yaml(render(PLANS[name]())))


@pytest.mark.parametrize("name", ["raw-canary", "multi-node"])
def test_the_values_of_a_plan_are_its_golden_file(name: str) -> None:
    import yaml

    compare(GOLDEN / f"{name}.values.yaml", yaml.safe_dump(values_of(PLANS[name]()), sort_keys=False, width=120))


def test_every_golden_file_has_its_plan() -> None:
    assert {path.name.split(".")[0] for path in GOLDEN.iterdir()} == set(PLANS)


@pytest.mark.parametrize("name", PLANS)
def test_no_plan_renders_to_what_our_own_lint_calls_an_error(name: str) -> None:
    """Warnings are the plans' own: they are short, with no cpu request and a query without its guard."""
    found = lint([manifest.document for manifest in render(PLANS[name]())])
    assert not [finding for finding in found if finding.severity == "error"]

"""Every golden manifest, as it is read in review, would be taken by the API servers of the projects that it is for."""

from pathlib import Path

import pytest
import yaml
from tests.judges.verdict import assert_valid

GOLDEN = Path(__file__).parents[1] / "platform/render/golden"
FILES = sorted(path for path in GOLDEN.glob("*.yaml") if not path.name.endswith(".values.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_manifest_is_valid(path: Path) -> None:
    assert_valid(yaml.load_all(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def test_there_are_golden_manifests_to_judge() -> None:
    assert FILES

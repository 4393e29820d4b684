"""Every chart lints without a warning and packs, and what follows from its values is what is committed."""

import sys
import tarfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from tests.helm.conftest import CHARTS
from tests.judges import helm

sys.path.insert(0, str(CHARTS.parent / "requirements"))

import dist

NAMES = sorted(path.parent.name for path in CHARTS.glob("*/Chart.yaml"))


def document() -> ModuleType:
    spec = spec_from_file_location("document", CHARTS / "document.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_lints_strictly_with_every_case(name: str, real_helm: str) -> None:
    chart = CHARTS / name
    for case in sorted((chart / "ci").glob("*-values.yaml")):
        assert "0 chart(s) failed" in helm.lint(chart, "-f", str(case))
    assert "0 chart(s) failed" in helm.lint(chart)


@pytest.mark.parametrize("name", NAMES)
def test_helm_reads_a_packed_chart_as_it_reads_its_folder(name: str, real_helm: str, tmp_path: Path) -> None:
    packed = tmp_path / f"{name}.tgz"
    packed.write_bytes(dist.pack(CHARTS / name, 1_700_000_000))
    with tarfile.open(packed) as archive:
        assert not [entry for entry in archive.getnames() if "/ci/" in entry]
    values = sorted((CHARTS / name / "ci").glob("*-values.yaml"))[0]
    folder, archived = (helm.template(chart, "iris", "-f", str(values)) for chart in (CHARTS / name, packed))
    assert archived == folder


@pytest.mark.parametrize("name", NAMES)
def test_schema_and_readme_follow_from_the_values(name: str) -> None:
    for path, text in document().documents(CHARTS / name).items():
        assert path.read_text() == text, f"{path.name} of {name} is not what its values say: run make charts"


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_described(name: str) -> None:
    values = document().values(CHARTS / name)
    parents = {value.path[:-1] for value in values}
    undescribed = [".".join(value.path) for value in values if not value.text and value.path not in parents]
    assert not undescribed

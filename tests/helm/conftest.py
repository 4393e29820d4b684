"""Charts are tested with the real helm, or not at all: then with the reason why."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.judges import helm
from tests.judges.gomodules import BUILD_SECONDS, Unavailable
from tests.judges.verdict import absent

CHARTS = Path(__file__).parents[2] / "helm"
Release = Callable[..., list[dict[str, Any]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test on a machine may have to build helm, which takes minutes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))


@pytest.fixture(scope="session")
def real_helm() -> str:
    try:
        return helm.helm()
    except Unavailable as reason:
        absent(reason)


@pytest.fixture
def release(real_helm: str, tmp_path: Path) -> Release:
    """release("inference-service", mode="raw", model={…}): the objects that helm would install, tests left out."""

    def made(chart: str, *flags: str, called: str = "iris", **values: Any) -> list[dict[str, Any]]:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        return helm.template(CHARTS / chart, called, "--skip-tests", "-f", str(file), *flags)

    return made

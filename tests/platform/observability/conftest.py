"""Dashboards and rules are judged by the real Prometheus and its promtool, or not at all: then with the reason why."""

from pathlib import Path

import pytest
from tests.judges import prometheus
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test on a machine may have to fetch them."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600 + prometheus.FETCH_SECONDS))


@pytest.fixture(scope="session")
def promtool() -> str:
    return judge("promtool")


@pytest.fixture(scope="session")
def prometheus_program() -> str:
    return judge("prometheus")


def judge(name: str) -> str:
    try:
        return prometheus.program(name)
    except Unavailable as reason:
        absent(reason)

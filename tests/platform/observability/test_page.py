"""docs/reference/metrics.md names every dashboard and alert as the code has them."""

import re
from pathlib import Path

from tests.platform.observability.queries import ALERTS, RECORDED

from pilotlight.observability.files import DASHBOARDS

PAGE = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()


def first_cells(heading: str) -> list[str]:
    """Names in the first column of the first table below a heading."""
    return re.findall(r"^\| `(\w+)` \|", PAGE.partition(heading)[2].partition("\n\n")[0], re.MULTILINE)


def test_every_dashboard_is_on_the_page() -> None:
    assert first_cells("## Dashboards\n\n") == list(DASHBOARDS)


def test_every_alert_is_on_the_page_with_its_severity() -> None:
    told = re.findall(r"^\| `(\w+)` \| (critical|warning) \|", PAGE, re.MULTILINE)
    assert told == [(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS]


def test_recorded_names_on_the_page_are_recorded() -> None:
    assert set(re.findall(r"`(pilotlight:[\w:]+)`", PAGE)) <= set(RECORDED)

"""Token usage by day: added up, restored for quotas, deleted after its retention, and safe from a failing disk."""

from pathlib import Path

import pytest

from pilotlight.errors import PlatformError, UsageError
from pilotlight.gateway.control_link import Spent, TokenReport
from pilotlight.gateway.token_quotas import DAY
from pilotlight.targets.local.store import Store
from pilotlight.targets.local.store.token_usage import retention
from pilotlight.targets.target import UsageRow

NOON = 20_000.5 * DAY  # 2024-10-04
ADA = TokenReport("default", "llm", "llm", "search/ada", 1, 12, 8, 3)


def test_reports_are_added_by_day_and_survive_a_restart(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.db")
    store.token_usage.add([ADA, ADA], NOON)
    store.token_usage.add([ADA, TokenReport("default", "llm", "sql", "search/ada", 1, 5)], NOON + DAY)
    store.close()
    usage = Store.open(tmp_path / "state.db").token_usage
    first = UsageRow("2024-10-04", "default", "llm", "llm", "search/ada", 2, 24, 16, 6, "search")
    assert usage.rows("2024-10-04")[0] == first
    assert [(row.day, row.model, row.prompt) for row in usage.rows("2024-10-05")] == [
        ("2024-10-05", "llm", 12),
        ("2024-10-05", "sql", 5),
    ]
    assert usage.spent(NOON + DAY) == Spent(20_001, (("default", "llm", "search/ada", 20),))
    usage.days = 1
    usage.add([ADA], NOON + 2 * DAY)
    assert {row.day for row in usage.rows("")} == {"2024-10-05", "2024-10-06"}


def test_what_cannot_be_written_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path / "state.db")
    with monkeypatch.context() as patch:
        patch.setattr(store._database, "change", lambda: (_ for _ in ()).throw(PlatformError("the disk is full")))
        store.token_usage.add([ADA], NOON)
    assert store.token_usage.rows("") == []
    store.token_usage.add([], NOON)
    assert [row.requests for row in store.token_usage.rows("")] == [1]


def test_the_retention_is_a_number_of_days() -> None:
    assert (retention({}), retention({"PILOTLIGHT_USAGE_DAYS": "30"})) == (400, 30)
    with pytest.raises(UsageError, match=r"PILOTLIGHT_USAGE_DAYS = 0, must be a number of days"):
        retention({"PILOTLIGHT_USAGE_DAYS": "0"})

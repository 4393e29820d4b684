"""`platformctl usage`: totals by keys, prices from a file, and what is refused."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from pilotlight.errors import UsageError
from pilotlight.targets.target import Sample, Target, UsageRow
from platformctl.commands.platform.usage import (
    Price,
    Prices,
    inert,
    parse_keys,
    parse_since,
    price_notes,
    read_prices,
    rows_of,
    summarize,
    written,
)

ROWS = [
    UsageRow("2026-01-30", "default", "llm", "llm", "search/ada", 2, 1_000_000, 400_000, 100_000, "search"),
    UsageRow("2026-01-31", "default", "llm", "llm", "search/bob", 1, 1_000_000, 0, 0, "search"),
    UsageRow("2026-01-31", "default", "llm", "sql", "token:ab", 5, 10, 0, 20),
]
TABLE = """
currency: EUR
default: {prompt: 1, completion: 2}
models:
  llm: {prompt: 0.5, cached: 0.1, completion: 1.5}
"""


def test_rows_are_totalled_by_keys_with_their_cost(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(TABLE)
    prices = read_prices(str(tmp_path / "prices.yaml"))
    assert prices == Prices({"llm": Price(0.5, 0.1, 1.5)}, Price(1.0, 1.0, 2.0), "EUR")
    counts = {"requests": 3, "prompt": 2_000_000, "cached": 400_000, "completion": 100_000}
    assert summarize(ROWS, ["team", "model"], prices) == [
        {"team": "-", "model": "sql", "requests": 5, "prompt": 10, "cached": 0, "completion": 20, "cost": 0.00005},
        {"team": "search", "model": "llm", **counts, "cost": 0.99},
    ]
    assert [written(value) for value in (0.00003, 0.99, 20, "-")] == ["0.000030", "0.990000", "20", "-"]
    unpriced = prices._replace(default=None)
    assert [row["cost"] for row in summarize(ROWS, ["model"], unpriced)] == [0.99, None]
    assert summarize(ROWS[2:], ["caller"], None)[0] == {"caller": "token:ab", "requests": 5, "prompt": 10, "cached": 0,
                                                        "completion": 20}  # fmt: skip


class Cluster:
    """A target whose Prometheus counts 7 requests a day."""

    embedded = False

    def query(self, promql: str) -> list[Sample]:
        labels = {"namespace": "default", "inference_service": "llm", "model": "llm", "caller": "search/ada"}
        return [Sample(labels, 7.0)] if "model_requests_total" in promql else []


def test_what_a_cluster_has_used_is_read_from_its_prometheus() -> None:
    today = datetime.now(UTC).date()
    rows = rows_of(cast(Target, Cluster()), (today - timedelta(1)).isoformat())
    expected = [((today - timedelta(days)).isoformat(), "search", 7) for days in (1, 0)]
    assert [(row.day, row.team, row.requests) for row in rows] == expected


def test_no_caller_puts_a_formula_into_a_spreadsheet() -> None:
    assert [inert(each) for each in ('=HYPERLINK("x")', "-1+1", "search/ada", "-", "12")] == [
        "'=HYPERLINK(\"x\")", "'-1+1", "search/ada", "-", "12"
    ]  # fmt: skip


def test_days_are_counted_with_today() -> None:
    assert parse_since("7d", date(2026, 1, 31)) == "2026-01-25"
    assert parse_since("2025-12-24", date(2026, 1, 31)) == "2025-12-24"
    assert parse_keys("team, day") == ["team", "day"]


@pytest.mark.parametrize("written", ["0d", "7", "yesterday", "99999d9", "2026-02-30"])
def test_other_times_and_keys_are_refused(written: str) -> None:
    with pytest.raises(UsageError, match=r"--since = .*, must be days such as 7d"):
        parse_since(written, date(2026, 1, 31))
    for keys in ("team,team", "colour", ""):
        with pytest.raises(UsageError, match=r"--by = .*, must be different ones of team"):
            parse_keys(keys)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        ("[1]", "must have currency, default, models"),
        ("prices: {}", "it has the unknown key prices; there are currency, default, models"),
        ("a: b: c", "mapping values are not allowed here"),
        ("models: {llm: 3}", "llm is 3, must have prompt, cached, completion"),
        ("models: {llm: {prompt: x, completion: 1}}", "llm: prompt = x, must be a number of at least 0"),
        ("models: {llm: {prompt: 1, cached: -1, completion: 1}}", "llm: cached = -1, must be a number of at least 0"),
        ("models: {llm: {prompt: .nan, completion: 1}}", "llm: prompt = nan, must be a number"),
        ("models: {llm: {promt: 1, completion: 1}}", "llm has the unknown key promt; did you mean prompt?"),
        ("default: {prompt: 1}", "default: completion = None, must be a number"),
    ],
)
def test_a_file_that_is_no_table_of_prices_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_prices(str(tmp_path / "prices.yaml"))
    assert f"{tmp_path}/prices.yaml is not a table of prices per million tokens" in str(caught.value)
    assert problem in str(caught.value)


def test_models_without_a_price_and_prices_without_a_model_are_named() -> None:
    prices = Prices({"llm": Price(1, 1, 1), "gpt-4o": Price(1, 1, 1)}, None, "")
    assert list(price_notes(ROWS, prices)) == [
        "warning: no price for sql: their cost is empty; add them, or a default",
        "warning: prices of gpt-4o match no model of this usage; an alias is counted as its service's model",
    ]
    complete = Prices({"llm": Price(1, 1, 1)}, Price(1, 1, 1), "")
    assert list(price_notes(ROWS, complete)) == []

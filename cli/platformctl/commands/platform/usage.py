"""`platformctl usage`: tokens by team, model and day, with their cost by a table of prices."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import click

from pilotlight.errors import UsageError
from pilotlight.wire.messages import suggestion
from platformctl import output, targets

if TYPE_CHECKING:
    from pilotlight.targets.local.client import LocalTarget
    from pilotlight.targets.target import Target, UsageRow

KEYS: Final = ("team", "caller", "namespace", "service", "model", "day")
COUNTS: Final = ("requests", "prompt", "cached", "completion")
MILLION: Final = 1_000_000
NO_TEAM: Final = "-"


class Price(NamedTuple):
    """Price of a million tokens."""

    prompt: float
    cached: float
    completion: float

    def cost(self, row: "UsageRow") -> float:
        fresh = max(0, row.prompt - row.cached)
        return (fresh * self.prompt + row.cached * self.cached + row.completion * self.completion) / MILLION


class Prices(NamedTuple):
    """Prices by model; `default` is for others, None: they have no price."""

    models: Mapping[str, Price]
    default: Price | None
    currency: str

    def cost(self, row: "UsageRow") -> float | None:
        price = self.models.get(row.model, self.default)
        return price.cost(row) if price is not None else None


@click.command()
@click.option("--by", default="team,model,day", show_default=True, metavar="KEYS", help=f"Of {', '.join(KEYS)}.")
@click.option("--since", default="7d", show_default=True, metavar="DAYS", help="Days such as 7d, or a date.")
@click.option("--prices", type=click.Path(exists=True, dir_okay=False), help="YAML file with prices; adds the cost.")
@targets.target_option
@targets.prometheus_option
@output.formats("table", "json", "yaml", "csv")
def usage(by: str, since: str, prices: str | None, target: str) -> None:
    """Show how many tokens were used, by team, model and day (UTC).

    The gateway counts them; on a cluster its Prometheus stores them. A caller `team/name` belongs to that team.

    Example: platformctl usage --by team,model --since 30d --prices prices.yaml -o csv
    """
    keys = parse_keys(by)
    first_day = parse_since(since, datetime.now(UTC).date())
    table = read_prices(prices) if prices else None
    counted = rows_of(targets.connect(target, start=False), first_day)
    rows = summarize(counted, keys, table)
    for sentence in price_notes(counted, table) if table else ():
        output.note(sentence)
    heading = [*keys, *COUNTS, *(["cost"] if table else [])]
    cells = [["" if row[name] is None else written(row[name]) for name in heading] for row in rows]
    if output.chosen() == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([heading, *([inert(cell) for cell in row] for row in cells)])
        output.text(text.getvalue())
        return
    shown = [name.upper() for name in heading]
    if table and table.currency:
        shown[-1] = f"COST {table.currency}"
    value = {"since": first_day, "currency": table.currency if table else "", "usage": rows}
    output.data(value, output.columns([shown, *cells], indent="") if rows else ["no tokens were used"])


def rows_of(target: "Target", first_day: str) -> Sequence["UsageRow"]:
    """Return what the embedded platform has stored, or what another target's Prometheus has."""
    if target.embedded:
        return cast("LocalTarget", target).usage(first_day)
    from pilotlight.prometheus.token_usage import usage_rows

    return usage_rows(target.query, date.fromisoformat(first_day), datetime.now(UTC))


def inert(cell: str) -> str:
    """Return a cell that no spreadsheet runs as a formula: names of callers come from their tokens."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) and cell != NO_TEAM else cell


def summarize(rows: Iterable["UsageRow"], keys: Sequence[str], prices: Prices | None) -> list[dict[str, Any]]:
    """Return totals by the keys, sorted by them; a cost is None where a model has no price."""
    totals: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(getattr(row, name) or NO_TEAM for name in keys)
        total = totals.setdefault(key, {**dict(zip(keys, key, strict=True)), **dict.fromkeys(COUNTS, 0)})
        for name in COUNTS:
            total[name] += getattr(row, name)
        if prices is not None:
            cost, before = prices.cost(row), total.get("cost", 0.0)
            total["cost"] = None if cost is None or before is None else round(before + cost, 6)
    return [total for _, total in sorted(totals.items())]


def price_notes(rows: Iterable["UsageRow"], prices: Prices) -> Iterator[str]:
    """Yield a warning for models without a price, and for prices of models that were not called."""
    called = {row.model for row in rows}
    unpriced = sorted(called - set(prices.models) - {""}) if prices.default is None else []
    if unpriced:
        yield f"warning: no price for {', '.join(unpriced)}: their cost is empty; add them, or a default"
    if unused := sorted(set(prices.models) - called):
        names = ", ".join(unused)
        yield f"warning: prices of {names} match no model of this usage; an alias is counted as its service's model"


def written(value: float | str) -> str:
    """Return a cell; small costs without an exponent, which spreadsheets and readers take for a name."""
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def parse_keys(written: str) -> list[str]:
    keys = [each.strip() for each in written.split(",") if each.strip()]
    unknown = [each for each in keys if each not in KEYS]
    if unknown or not keys or len(set(keys)) < len(keys):
        raise UsageError(f"--by = {written}, must be different ones of {', '.join(KEYS)}")
    return keys


def parse_since(written: str, today: date) -> str:
    """Return the first day, `YYYY-MM-DD`; `7d` are the last seven days with today."""
    days = re.fullmatch(r"([1-9]\d{0,4})d", written)
    try:
        return (today - timedelta(int(days[1]) - 1) if days else date.fromisoformat(written)).isoformat()
    except (ValueError, OverflowError):
        raise UsageError(f"--since = {written}, must be days such as 7d, or a date such as 2026-01-31") from None


def read_prices(path: str) -> Prices:
    """Return the prices of a file. Raise UsageError for one that is none."""
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        if document is None:
            raise ValueError("it is empty")
        _check_keys(document, ("currency", "default", "models"), "it")
        models = {str(name): _price(price, str(name)) for name, price in (document.get("models") or {}).items()}
        default = _price(document["default"], "default") if document.get("default") else None
        return Prices(models, default, str(document.get("currency") or ""))
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        form = "models: {NAME: {prompt: 0.5, cached: 0.1, completion: 1.5}}"
        raise UsageError(f"{path} is not a table of prices per million tokens: {error}; write {form}") from None


def _price(written: Any, model: str) -> Price:
    _check_keys(written, Price._fields, model)
    prices = {}
    for name in Price._fields:
        default = written.get("prompt") if name == "cached" else None
        value = written.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"{model}: {name} = {value}, must be a number of at least 0")
        prices[name] = float(value)
    return Price(**prices)


def _check_keys(written: Any, known: Sequence[str], subject: str) -> None:
    if not isinstance(written, Mapping):
        raise ValueError(f"{subject} is {written}, must have {', '.join(known)}")
    for name in map(str, written):
        if name not in known:
            fix = suggestion(name, known) or f"; there are {', '.join(known)}"
            raise ValueError(f"{subject} has the unknown key {name}{fix}")

"""Merging of the workers' Prometheus scrapes. Pure.

Counters and histograms are summed, and gauges of what each worker holds (requests, parked bytes). Of other gauges, such
as load times or the machine's GPU, CPU and memory, the maximum is taken. Parses what `metrics.exposition` writes.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from pilotlight.contract import METRIC_IN_FLIGHT, METRIC_PARKED_BYTES, METRIC_PARKED_MODELS, METRIC_QUEUE_DEPTH
from pilotlight.wire.prometheus_text import number

SUMMED_GAUGES: Final = frozenset(
    {
        METRIC_IN_FLIGHT,
        METRIC_PARKED_BYTES,
        METRIC_PARKED_MODELS,
        METRIC_QUEUE_DEPTH,
        "nv_inference_pending_request_count",
    }
)
OF_THE_MACHINE: Final = frozenset({"nv_energy_consumption"})  # a counter that all workers read from the same device
EOF: Final = "# EOF"

Number = int | float


class Scrape:
    """Metric families in their order: header lines, whether they are summed, and series by labels."""

    def __init__(self) -> None:
        self.headers: dict[str, list[str]] = {}
        self.summed: dict[str, bool] = {}
        self.counts: dict[str, bool] = {}
        self.series: dict[str, dict[str, Number]] = {}
        self.ends = False

    def add(self, text: str, *, departed: bool = False) -> None:
        """Add a scrape; of a `departed` worker, counters stay counted and gauges are dropped."""
        family = ""
        for line in text.split("\n"):
            if line.startswith("# TYPE "):
                family = self._family(*line.split(" ", 3)[2:])
            if line.startswith("#"):
                self._header(line)
            elif line and not (departed and not self.counts[family]):
                self._sample(family, *line.rsplit(" ", 1))

    def _family(self, name: str, kind: str) -> str:
        self.counts[name] = kind != "gauge" and name not in OF_THE_MACHINE
        self.summed[name] = self.counts[name] or name in SUMMED_GAUGES
        self.series.setdefault(name, {})
        return name

    def _header(self, line: str) -> None:
        if line == EOF:
            self.ends = True
            return
        lines = self.headers.setdefault(line.split(" ", 3)[2], [])
        if not any(known.split(" ", 2)[1] == line.split(" ", 2)[1] for known in lines):
            lines.append(line)

    def _sample(self, family: str, series: str, written: str) -> None:
        values, value = self.series[family], _number(written)
        known = values.get(series)
        values[series] = value if known is None else known + value if self.summed[family] else max(known, value)

    def text(self) -> str:
        lines: list[str] = []
        for family, values in self.series.items():
            if values:
                lines += self.headers[family]
                lines += [f"{series} {number(value)}" for series, value in values.items()]
        return "\n".join([*lines, EOF] if self.ends else lines) + "\n"


def merge_metrics(living: Iterable[str], departed: Sequence[str] = ()) -> str:
    scrape = Scrape()
    for text in living:
        scrape.add(text)
    for text in departed:
        scrape.add(text, departed=True)
    return scrape.text()


def retained_counters(departed: Iterable[str]) -> str:
    """Return the counters of workers that have exited, as one scrape."""
    scrape = Scrape()
    for text in departed:
        scrape.add(text, departed=True)
    scrape.ends = False
    return scrape.text()


def _number(written: str) -> Number:
    try:
        return int(written)
    except ValueError:
        return float(written)

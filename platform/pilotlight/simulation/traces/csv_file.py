"""Traces in CSV: a row for each request, or for each bucket of time with the number of its requests.

Columns are known by their names, in any order and case; other columns choose rows (`trace.csv?func=resize`). The shapes
of Azure's traces of 2021 (app, func, end_timestamp, duration) and of LLM inference (TIMESTAMP, ContextTokens,
GeneratedTokens) are among them.
"""

import csv
import math
import re
from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from pilotlight.k8s.quantities import parse_duration
from pilotlight.simulation.trace import NOT_ASCENDING, Counts, CountTrace, Floats, Trace, TraceError
from pilotlight.simulation.traces.timestamps import TimeReader
from pilotlight.simulation.traces.trace_options import TraceOptions

TIME, END, COUNT, DURATION, INPUT, OUTPUT = "time", "end", "count", "duration", "input tokens", "output tokens"
ALIASES: Final = {
    TIME: "timestamp time ts at date datetime arrival arrivaltime arrivedat start starttime startedat offset minute",
    END: "endtimestamp end endtime endedat finishedat completedat",
    COUNT: "count counts requests invocations calls",
    DURATION: "duration servicetime executiontime runtime elapsed",
    INPUT: "inputtokens prompttokens contexttokens requesttokens",
    OUTPUT: "outputtokens completiontokens generatedtokens responsetokens",
}
ROLES: Final = {alias: role for role, aliases in ALIASES.items() for alias in aliases.split()}
FACTORS: Final = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "millis": 1e-3, "milliseconds": 1e-3, "us": 1e-6,
    "microseconds": 1e-6, "ns": 1e-9, "nanoseconds": 1e-9,
}  # fmt: skip
MAX_BUCKETS: Final = 10_000_000
NO_COLUMN: Final = "name a column timestamp, end_timestamp or requests"
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Column(NamedTuple):
    cell: int
    factor: float | None  # of the unit that the name has: `duration_ms`


class Rows:
    """Rows of a file as columns of numbers, in the file's order."""

    def __init__(self, file: str, columns: dict[str, Column]) -> None:
        self.file, self.columns = file, columns
        time = columns[TIME] if TIME in columns else columns.get(END)
        self.times = TimeReader(file, time.factor if time else None)
        self.values = {role: array("d") for role in columns}
        self.lines = array("q")
        self._go_durations: bool | None = None

    def add(self, row: Sequence[str], line: int) -> None:
        for role, column in self.columns.items():
            try:
                text = row[column.cell]
            except IndexError:
                raise TraceError(self.file, line, f"the row has {len(row)} cells and no {role}") from None
            self.values[role].append(self._value(role, text.strip(), column.factor, line))
        self.lines.append(line)

    def _value(self, role: str, text: str, factor: float | None, line: int) -> float:
        if role in (TIME, END):
            return self.times.seconds(text, line)
        if role == DURATION:
            return self._duration(text, factor, line)
        try:
            number = float(text)
        except ValueError:
            raise TraceError(self.file, line, f"{role} is {text!r}, must be a number") from None
        if number < 0 or not number.is_integer():
            raise TraceError(self.file, line, f"{role} is {text}, must be a whole number, not negative")
        return number

    def _duration(self, text: str, factor: float | None, line: int) -> float:
        try:
            seconds, with_unit = float(text) * (factor or 1.0), False
        except ValueError:
            parsed = parse_duration(text)
            if parsed is None:
                raise TraceError(
                    self.file, line, f"duration is {text!r}, must be a number or a time as 120ms"
                ) from None
            seconds, with_unit = parsed, True
        if self._go_durations is None:
            self._go_durations = with_unit
        if self._go_durations != with_unit:
            units = ("without a unit", "with a unit") if not with_unit else ("with a unit", "without a unit")
            message = f"duration {text} is {units[0]}, and the rows above are {units[1]}; use one way for all rows"
            raise TraceError(self.file, line, message)
        if not (math.isfinite(seconds) and seconds >= 0):
            raise TraceError(self.file, line, f"duration is {text}, must not be negative")
        return seconds


def read_csv(file: str, lines: Iterable[str], options: TraceOptions) -> Trace | CountTrace:
    """Return the trace of a CSV file, whose first line names its columns unless it is one column of times."""
    reader, offset, first = iter(lines), 0, ""
    for first in reader:
        offset += 1
        if first.strip():
            break
    delimiter = max(",;\t", key=first.count)
    header = next(csv.reader([first], delimiter=delimiter), [])
    bucket = options.seconds("bucket", math.nan)
    duration = options.seconds("duration", 0.0)
    zeros = options.choice("gaps", ("error", "zero")) == "zero"
    chosen = {name: options.text(name) for name in options.others() if name in header}
    options.check_read()
    columns, single_column = columns_of(header), len(header) == 1 and header[0].strip()[:1].isdigit()
    if not columns and not single_column:
        raise TraceError(file, offset, f"no column is a time or a count: {', '.join(header)[:200]}", NO_COLUMN)
    rows = Rows(file, columns or {TIME: Column(0, None)})
    if single_column:
        rows.add(header, offset)
    wanted = [(header.index(name), value) for name, value in chosen.items()]
    cells = csv.reader(reader, delimiter=delimiter)
    for row in cells:
        if row and all(row[cell : cell + 1] == [value] for cell, value in wanted):
            rows.add(row, cells.line_num + offset)
    if not rows.lines:
        which = " with " + ", ".join(f"{name} {value}" for name, value in chosen.items()) if chosen else ""
        raise TraceError(file, 0, f"it has no rows{which}")
    return counted(rows, bucket, zeros=zeros) if COUNT in columns else single(rows, duration)


def columns_of(header: Sequence[str]) -> dict[str, Column]:
    """Return the columns by what they are; empty without a time and without counts."""
    columns: dict[str, Column] = {}
    for index, name in enumerate(header):
        words = [word.lower() for word in _WORD.findall(name)]
        role, factor = ROLES.get("".join(words)), None
        if role is None and words and words[-1] in FACTORS:
            role, factor = ROLES.get("".join(words[:-1]) or TIME), FACTORS[words[-1]]
        if role is not None and role not in columns:
            columns[role] = Column(index, factor)
    return columns if columns.keys() & {TIME, END, COUNT} else {}


def single(rows: Rows, duration: float) -> Trace:
    """Return requests in the order of their arrivals; rows in order of their ends arrived a duration before.

    `duration`: seconds that the trace covers; 0: up to its last request.
    """
    values = {role: np.frombuffer(numbers, dtype=np.float64) for role, numbers in rows.values.items()}
    if TIME in values:
        arrivals = values[TIME]
        if (wrong := np.flatnonzero(np.diff(arrivals) < 0)).size:
            raise TraceError(rows.file, rows.lines[int(wrong[0]) + 1], f"the request {NOT_ASCENDING}")
        order = np.arange(arrivals.size)
    else:
        arrivals = values[END] - values[DURATION] if DURATION in values else values[END]
        order = np.argsort(arrivals, kind="stable")
        arrivals = arrivals[order]
    begin = min(0.0, float(arrivals[0])) if rows.times.is_offset else float(arrivals[0])
    given, made = (values[role][order].astype(np.int64) if role in values else None for role in (INPUT, OUTPUT))
    durations = values[DURATION][order] if DURATION in values else None
    return Trace(arrivals - begin, durations, given, made, start_of(begin, rows.times), duration)


def start_of(begin: float, times: TimeReader) -> datetime | None:
    return None if times.is_offset or not times.notation else datetime.fromtimestamp(begin, UTC)


def counted(rows: Rows, bucket: float, *, zeros: bool) -> CountTrace:
    """Return counts per bucket. Without times a row is a bucket; with them none may be missing, unless `zeros`."""
    values = {role: np.frombuffer(numbers, dtype=np.float64) for role, numbers in rows.values.items()}
    times = values.get(TIME, values.get(END))
    if math.isnan(bucket):
        if times is None or times.size < 2:
            problem = "counts without times" if times is None else "one bucket"
            raise TraceError(rows.file, 0, f"it has {problem}", f"give the length of a bucket: {rows.file}?bucket=60s")
        bucket = float(times[1] - times[0])
    if times is None:
        times = np.linspace(0.0, bucket * values[COUNT].size, values[COUNT].size, endpoint=False)
    index = bucket_numbers(rows, times, bucket, zeros=zeros)

    def spread(role: str) -> Floats | None:
        return None if role not in values else np.bincount(index, weights=values[role]).astype(np.float64)

    counts = np.bincount(index, weights=values[COUNT]).astype(np.int64)
    start = start_of(float(times[0]), rows.times)
    return CountTrace(bucket, counts, spread(DURATION), spread(INPUT), spread(OUTPUT), start)


def bucket_numbers(rows: Rows, times: Floats, bucket: float, *, zeros: bool) -> Counts:
    """Return the bucket of each row, from 0. Raise TraceError at the first that does not follow the one before."""
    numbers: Counts = np.rint((times - times[0]) / (bucket or 1.0)).astype(np.int64)
    apart, steps = np.diff(times), np.diff(numbers)
    wrong = (apart <= 0) | (np.abs(apart - steps * bucket) > 0.01 * bucket) | ((steps > 1) & (not zeros))
    if wrong.any():
        at = int(np.argmax(wrong))
        if apart[at] <= 0:
            message, hint = "the bucket is not later than the one before it; sort the trace by time", ""
        elif abs(apart[at] - steps[at] * bucket) > 0.01 * bucket:
            message, hint = f"the bucket begins {apart[at]:g} s after the one before it, the first {bucket:g} s", ""
        else:
            message = f"{steps[at] - 1} bucket{' is' if steps[at] == 2 else 's are'} missing before this one"
            hint = f"if they had no requests: {rows.file}?gaps=zero"
        raise TraceError(rows.file, rows.lines[at + 1], message, hint)
    if numbers[-1] >= MAX_BUCKETS:
        raise TraceError(rows.file, rows.lines[-1], f"the trace has more than {MAX_BUCKETS} buckets of {bucket:g} s")
    return numbers

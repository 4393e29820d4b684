"""Azure Functions' trace of 2019: a row for each function, with its invocations in each of the 1440 minutes of a day.

Rows are chosen by HashOwner, HashApp, HashFunction and Trigger, and added up: `day01.csv?HashFunction=…&Trigger=http`.
"""

import csv
from collections.abc import Iterable
from typing import Final

import numpy as np

from pilotlight.simulation.trace import CountTrace, TraceError
from pilotlight.simulation.traces.trace_options import TraceOptions

NAMES: Final = ("HashOwner", "HashApp", "HashFunction", "Trigger")
MINUTES: Final = 1440


def is_azure_functions(first_line: str) -> bool:
    return first_line.startswith("HashOwner,HashApp,HashFunction,Trigger,1,2,")


def read_azure_functions(file: str, lines: Iterable[str], options: TraceOptions) -> CountTrace:
    wanted = {index: value for index, name in enumerate(NAMES) if (value := options.text(name))}
    options.check_read()
    rows = csv.reader(lines)
    next(rows, None)
    counts, found = np.zeros(MINUTES, dtype=np.int64), False
    for row in rows:
        if not row or any(row[index : index + 1] != [value] for index, value in wanted.items()):
            continue
        try:
            minutes = np.array(row[len(NAMES) :], dtype=np.int64)
        except ValueError as error:
            raise TraceError(file, rows.line_num, f"a count is not a whole number: {error}") from None
        if minutes.size != MINUTES:
            raise TraceError(file, rows.line_num, f"the row has {minutes.size} minutes, must have {MINUTES}")
        if minutes.min() < 0:
            raise TraceError(file, rows.line_num, f"a count is {minutes.min()}, must not be negative")
        counts, found = counts + minutes, True
    if not found:
        raise TraceError(file, 0, f"no function has {', '.join(wanted.values())}" if wanted else "it has no functions")
    return CountTrace(60.0, counts)

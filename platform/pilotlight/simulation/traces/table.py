"""Traces by name: `poisson:rate=5`, `prometheus:iris?hours=24`, `history:iris`, or a file whose first line decides."""

import gzip
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, TextIO, cast

from pilotlight.errors import UsageError
from pilotlight.simulation.trace import CountTrace, Trace, TraceError
from pilotlight.simulation.traces.azure_functions import is_azure_functions, read_azure_functions
from pilotlight.simulation.traces.csv_file import read_csv
from pilotlight.simulation.traces.generators import GENERATORS, generate
from pilotlight.simulation.traces.log_file import read_log
from pilotlight.simulation.traces.recorded import read_history, read_prometheus
from pilotlight.simulation.traces.trace_options import TraceOptions
from pilotlight.wire.messages import suggestion

SERVICES: Final[Mapping[str, Callable[[str, TraceOptions], CountTrace]]] = {
    "prometheus": read_prometheus, "history": read_history,
}  # fmt: skip
KNOWN: Final = (*GENERATORS, *SERVICES)


def read_trace(trace: str) -> Trace | CountTrace:
    """Return the trace of a file, a generator or a running service.

    Raise UsageError for a wrong option, TraceError for a file that cannot be read, with its line, and PlatformError
    for a platform or Prometheus that does not respond.
    """
    name, colon, rest = trace.partition(":")
    if colon and name in GENERATORS:
        return generate(name, TraceOptions(trace, rest, ","))
    if colon and name in SERVICES:
        service, _, text = rest.partition("?")
        return SERVICES[name](service, TraceOptions(trace, text, "&"))
    file, _, text = (trace, "", "") if Path(trace).exists() else trace.partition("?")
    if not Path(file).is_file():
        hint = f"a trace is a file or one of {', '.join(f'{each}:…' for each in KNOWN)}{suggestion(name, KNOWN)}"
        raise UsageError(f"trace {trace}: there is no such file", hint)
    return read_file(file, TraceOptions(trace, text, "&"))


def read_file(file: str, options: TraceOptions) -> Trace | CountTrace:
    try:
        with _opened(file) as opened:
            lines = iter(opened)
            first = next(lines, "")
            whole: Iterator[str] = chain([first], lines)
            if is_azure_functions(first):
                return read_azure_functions(file, whole, options)
            if first.lstrip().startswith(("{", "==> ")):
                return read_log(file, whole, options)
            return read_csv(file, whole, options)
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise TraceError(file, 0, f"it cannot be read: {error}") from None


def _opened(file: str) -> TextIO:
    if file.endswith(".gz"):
        return cast("TextIO", gzip.open(file, "rt", encoding="utf-8-sig"))
    return Path(file).open(encoding="utf-8-sig")

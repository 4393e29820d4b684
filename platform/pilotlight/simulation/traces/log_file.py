"""Traces from our logs: a predictor's access log, a service's request log (CloudEvents), the gateway's audit log.

All are JSON lines in the order in which requests ended, so arrivals are sorted here. Calls other than POST, such as
probes and metadata, are no requests of clients. Only the access log has durations, which contain the predictor's own
queue, but no cold start; responses of a request log have the tokens of language models.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np

from pilotlight.k8s.timestamps import parse_utc
from pilotlight.simulation.trace import Trace, TraceError
from pilotlight.simulation.traces.trace_options import TraceOptions
from pilotlight.wire.request_log.events import TYPE

Json = Any
HINT: Final = (
    "a predictor logs requests with --access-log and --log-format json, a service with pilotlight.dev/request-log"
)


class LoggedRequest(NamedTuple):
    at: float  # Unix time of its arrival, as near as the log has it
    service: str = ""
    seconds: float | None = None
    id: str = ""


def read_log(file: str, lines: Iterable[str], options: TraceOptions) -> Trace:
    """Return the requests of a log; `service`, a name or NAMESPACE/NAME, chooses one. Other lines are skipped."""
    service, with_durations = options.text("service"), options.choice("durations", ("yes", "no")) == "yes"
    options.check_read()
    requests: list[LoggedRequest] = []
    tokens: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(lines, 1):
        if not line.startswith("{"):
            continue
        try:
            record = json.loads(line)
            if (request := request_of(record)) is not None:
                requests.append(request)
            elif record.get("type") == f"{TYPE}response":
                tokens |= response_tokens(record)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise TraceError(file, number, f"it is not a line of a log of requests: {error!r}") from None
        if request is not None and request.seconds is not None and not 0 <= request.seconds < math.inf:
            raise TraceError(file, number, f"duration_ms is {record['duration_ms']}, must not be negative")
    services = Counter(request.service for request in requests)
    if service:
        requests = [each for each in requests if service in (each.service, each.service.partition("/")[2])]
    elif len(services) > 1:
        names = ", ".join(sorted(services)[:5])
        raise TraceError(file, 0, f"it has requests of several services: {names}", f"choose one: {file}?service=NAME")
    if not requests:
        raise TraceError(file, 0, f"it has no requests{f' of service {service}' if service else ''}", HINT)
    return trace_of(sorted(requests), tokens, with_durations=with_durations)


def trace_of(
    requests: list[LoggedRequest], tokens: Mapping[str, tuple[int, int]], *, with_durations: bool
) -> Trace:  # fmt: skip
    arrivals = np.array([request.at for request in requests])
    seconds = [request.seconds for request in requests if request.seconds is not None]
    counts = np.array([tokens[request.id] for request in requests if request.id in tokens], dtype=np.int64)
    complete = with_durations and len(seconds) == len(requests)
    known = len(counts) == len(requests)
    return Trace(
        arrivals - arrivals[0], np.array(seconds) if complete else None, counts[:, 0] if known else None,
        counts[:, 1] if known else None, datetime.fromtimestamp(requests[0].at, UTC),
    )  # fmt: skip


def request_of(record: Mapping[str, Json]) -> LoggedRequest | None:
    """Return the request that a line is about; None: about something else, or it was not a POST."""
    if record.get("event") == "request" and "duration_ms" in record:
        seconds = float(record["duration_ms"]) / 1000
        at = parse_utc(record["ts"]).timestamp() - max(0.0, seconds)
        return LoggedRequest(at, "", seconds) if record["method"] == "POST" else None
    if record.get("event") == "request" and "seq" in record:
        name = f"{record['namespace']}/{record['service']}"
        return LoggedRequest(_at(record), name) if record["call"].startswith("POST ") else None
    if record.get("type") == f"{TYPE}request":
        name = f"{record['namespace']}/{record['inferenceservicename']}"
        return (
            LoggedRequest(_at(record), name, None, record["id"]) if record.get("httpmethod", "POST") == "POST" else None
        )
    return None


def _at(record: Mapping[str, Json]) -> float:
    return parse_utc(record["time"]).timestamp()


def response_tokens(record: Mapping[str, Json]) -> dict[str, tuple[int, int]]:
    """Return the tokens of a logged response by its id; empty without `usage` in its body."""
    data = record.get("data")
    usage = data.get("usage") if isinstance(data, dict) else None
    if not isinstance(usage, dict):
        return {}
    given = usage.get("prompt_tokens", usage.get("input_tokens"))
    made = usage.get("completion_tokens", usage.get("output_tokens"))
    return {record["id"]: (int(given), int(made))} if given is not None and made is not None else {}

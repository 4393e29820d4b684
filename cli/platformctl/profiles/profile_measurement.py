"""Measurement of a service for its profile: latency by concurrency and batch size, cold starts by phase.

A copy of the service with one replica is measured, so that neither the autoscaler nor clients take part.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pilotlight.contract import HEADER_COLD_START, METRIC_COLD_START, METRIC_PROCESS_CPU, METRIC_REQUEST_DURATION
from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.prometheus import histograms
from pilotlight.prometheus.metric_queries import labels
from pilotlight.simulation.service_times import ColdStart, Samples, ServiceTimes, Start
from pilotlight.spec.canary_policy import PATH_BY_KEY, request_path, zero_request
from pilotlight.targets.local.scaling.promql.evaluator import Evaluator
from pilotlight.targets.target import Key, RevisionStatus, Sample, ServiceStatus, Target
from pilotlight.v2_tensors import inputs_of
from pilotlight.wire.http_client import FAILURES, HttpClient
from platformctl.services import infer_request
from platformctl.targets import Gateway

MAX_SAMPLES: Final = 200  # of a level in the file: quantiles, so that the tail is in it
SATURATED: Final = 1.15  # more concurrency raises the throughput of a saturated replica by less
DEFAULT_SEQUENCES: Final = 32  # of the text backend without MAX_SEQUENCES
POLL_S: Final = 0.1
PATIENCE_S: Final = 60.0
REQUEST_TIMEOUT_S: Final = 60.0
Json = Any


class Request(NamedTuple):
    path: str
    body: bytes
    headers: Mapping[str, str]


class Level(NamedTuple):
    """Closed loop of so many clients: seconds of each request, requests per second."""

    samples: Samples
    rate: float


class Batching(NamedTuple):
    """Dynamic batching of a model's configuration; `max_batch` 0: it has none."""

    max_batch: int = 0
    delay_s: float = 0.0
    instances: int = 1


class Measured(NamedTuple):
    """Model that is called through a gateway. `values` are those of one request; None: zeros by its metadata."""

    gateway: Gateway
    model: str
    values: Json = None

    def metadata(self) -> dict[str, Json]:
        return self._get("")

    def batching(self) -> Batching:
        config = self._get("/config")
        groups = config.get("instance_group") or [{}]
        instances = sum(max(1, int(group.get("count", 1))) for group in groups)
        if "dynamic_batching" not in config or int(config.get("max_batch_size", 0)) < 2:
            return Batching(instances=instances)
        delay_us = int(config["dynamic_batching"].get("max_queue_delay_microseconds", 0))
        return Batching(int(config["max_batch_size"]), delay_us / 1e6, instances)

    def max_sequences(self) -> int:
        """Return how many answers our own text backend writes at a time; 0: the server is another engine."""
        try:
            parameters = self._get("/config").get("parameters") or {}
        except PlatformError:
            return 0
        return int((parameters.get("MAX_SEQUENCES") or {}).get("string_value", DEFAULT_SEQUENCES))

    def _get(self, suffix: str) -> dict[str, Json]:
        reply = self.gateway.request("GET", f"/v2/models/{quote(self.model, safe='')}{suffix}", timeout=PATIENCE_S)
        try:
            document = json.loads(reply.body) if reply.status == 200 else None
        except ValueError:
            document = None
        if not isinstance(document, dict):
            hint = "--data with a whole request measures other servers; a profile can also be written as JSON"
            raise PlatformError(f"{self.model} has no metadata: status {reply.status}", hint)
        return document

    def request(self, batch: int = 1) -> Request:
        """Return the request to repeat. Raise UsageError if the values do not fit."""
        values = self.values
        if isinstance(values, dict) and PATH_BY_KEY.keys() & values.keys():
            return Request(request_path(values, self.model), json.dumps(values).encode(), _JSON)
        metadata = self.metadata()
        if values is not None:
            built = infer_request.from_json(repeated(values, batch), inputs_of(metadata), "")
            return Request(f"/v2/models/{quote(self.model, safe='')}/infer", built.body, built.headers)
        body = zero_request(metadata)
        for tensor in body["inputs"] if batch > 1 else ():
            tensor["shape"][0] *= batch
            tensor["data"] *= batch
        return Request(request_path(body, self.model), json.dumps(body).encode(), _JSON)


_JSON: Final = {"Content-Type": "application/json"}


def repeated(values: Json, batch: int) -> Json:
    """Return the values of one request as those of a batch: lists become longer, by input name too."""
    if isinstance(values, dict):
        return {name: repeated(value, batch) for name, value in values.items()}
    return values * batch if isinstance(values, list) else values


def load(
    url: str, headers: Mapping[str, str], request: Request, clients: int, seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Level:  # fmt: skip
    """Send the request from so many clients, each again when it has its response. Raise PlatformError for an error."""
    end = clock() + seconds

    def client(_: int) -> list[float]:
        times: list[float] = []
        with HttpClient(url, REQUEST_TIMEOUT_S, headers) as connection:
            while not times or clock() < end:
                reply = connection.request("POST", request.path, request.body, request.headers)
                if reply.status != 200:
                    text = reply.body[:200].decode(errors="replace")
                    raise PlatformError(f"the service responded {reply.status}: {text}", "--data has a valid request")
                times.append(reply.seconds)
        return times

    start = clock()
    try:
        with ThreadPoolExecutor(clients) as pool:
            samples = [each for times in pool.map(client, range(clients)) for each in times]
    except FAILURES as error:
        raise PlatformError(f"the service does not respond: {error!r}", "see platformctl logs") from error
    return Level(thinned(samples), len(samples) / (clock() - start))


def thinned(samples: Iterable[float]) -> Samples:
    """Return at most MAX_SAMPLES of the values, evenly by rank, in microseconds' precision."""
    ordered = sorted(samples)
    count = min(len(ordered), MAX_SAMPLES)
    return tuple(round(ordered[int((index + 0.5) * len(ordered) / count)], 6) for index in range(count))


def service_times(levels: Mapping[int, Level], batches: Mapping[int, Level], batching: Batching) -> ServiceTimes:
    """Return the model that the measurement shows: batches, a queue in front of instances, or shared capacity.

    Where more clients do not raise the throughput, requests wait for as many instances as run at once: that number is
    the throughput times the latency of a request alone.
    """
    alone = levels[min(levels)]
    if batches:
        by_batch = {size: level.samples for size, level in sorted(batches.items())}
        return ServiceTimes(
            alone.samples, batching.instances, by_batch=by_batch, max_batch=batching.max_batch,
            batch_delay=batching.delay_s,
        )  # fmt: skip
    best = max(level.rate for level in levels.values())
    parallel = max(1, round(best * median(alone.samples)))
    smaller = [level.rate for clients, level in levels.items() if parallel <= clients < max(levels)]
    if parallel < max(levels) and any(levels[max(levels)].rate < rate * SATURATED for rate in smaller):
        return ServiceTimes(alone.samples, parallel)
    return ServiceTimes(
        alone.samples, by_concurrency={clients: level.samples for clients, level in sorted(levels.items())}
    )


def newest(status: ServiceStatus) -> RevisionStatus:
    return status.revisions[0]


def start_kind(revision: RevisionStatus) -> Start:
    return "pilot-light" if any(replica.forked for replica in revision.replicas) else "process"


def phases_of(cold_start: Mapping[str, float], held_s: float) -> dict[str, float]:
    """Return seconds by phase that add up to what the first request was held; `wake` is what the platform took.

    Phases of a predictor may overlap: then the longest one is shortened.
    """
    total = cold_start.get("total", 0.0)
    phases = {name: seconds for name, seconds in cold_start.items() if name != "total"}
    if phases and (excess := sum(phases.values()) - total) > 0:
        longest = max(phases, key=lambda name: phases[name])
        phases[longest] = max(0.0, phases[longest] - excess)
    elif phases:
        phases["other"] = total - sum(phases.values())
    return {name: round(seconds, 4) for name, seconds in {**phases, "wake": max(0.0, held_s - total)}.items()}


def cold_start(target: Target, key: Key, measured: Measured, request: Request) -> tuple[Start, dict[str, float]]:
    """Wait until the service is at zero, wake it, and return how it started and the seconds by phase."""
    wait(lambda: target.status(key).phase == "Standby", f"{key[1]} to scale to zero")
    reply = measured.gateway.request("POST", request.path, request.body, request.headers, REQUEST_TIMEOUT_S)
    held_s = float(reply.headers.get(HEADER_COLD_START) or 1000 * reply.seconds) / 1000
    wait(lambda: newest(target.status(key)).ready > 0, f"{key[1]} to be ready")
    status = target.status(key)
    revision, (cpu,) = newest(status), query_page(target, status, (METRIC_PROCESS_CPU,))
    return start_kind(revision), {**phases_of(revision.cold_start, held_s), "cpuSeconds": cpu[0].value if cpu else 0.0}


def wait(reached: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > until:
            raise TimedOut(f"waited {PATIENCE_S:g} s for {what}", "see platformctl events")
        time.sleep(POLL_S)


def grouped(starts: Sequence[tuple[Start, Mapping[str, float]]]) -> dict[Start, ColdStart]:
    """Return the phases of each kind of start; a phase that one start did not have took 0 s."""
    kinds: dict[Start, list[Mapping[str, float]]] = {}
    for kind, phases in starts:
        kinds.setdefault(kind, []).append(phases)
    samples = {
        kind: {name: tuple(each.get(name, 0.0) for each in rows) for name in {n: 0 for r in rows for n in r}}
        for kind, rows in kinds.items()
    }
    cpu_s = {kind: median(phases.pop("cpuSeconds", (0.0,))) for kind, phases in samples.items()}
    return {kind: ColdStart(phases, cpu_s[kind]) for kind, phases in samples.items()}


def from_metrics(target: Target, key: Key) -> tuple[ServiceTimes, dict[Start, ColdStart]]:
    """Return what the metrics of running replicas show: response times, which contain their queue, and cold starts."""
    status, chosen = target.status(key), labels(key[1], key[0])
    queries = (
        f"sum by (le) ({METRIC_REQUEST_DURATION}_bucket{{{chosen}}})",
        f"max by (phase) ({METRIC_COLD_START}{{{chosen}}})",
    )
    durations, starts = query_page(target, status, queries) if target.embedded else map(target.query, queries)
    buckets = tuple(sorted((histograms.upper_bound(row.labels.get("le", "")), row.value) for row in durations))
    if not buckets or not buckets[-1][1] > 0:
        raise UsageError(f"{key[1]} has no metrics of requests", "send it some, or measure it without --from-metrics")
    quantiles = (histograms.quantile(buckets, (index + 0.5) / MAX_SAMPLES) for index in range(MAX_SAMPLES))
    phases = {row.labels["phase"]: row.value for row in starts}
    kinds = [(start_kind(newest(status)), phases_of(phases, 0.0))] if phases else []
    return ServiceTimes(thinned(filter(None, quantiles))), grouped(kinds)


def query_page(target: Target, status: ServiceStatus, queries: Sequence[str]) -> list[list[Sample]]:
    """Return the results of queries over the page of one replica: the control process scrapes only what it needs."""
    with target.open_route(status) as route:
        reply = Gateway(route.url, route.headers).request("GET", "/metrics", timeout=PATIENCE_S)
    evaluator = Evaluator()
    for query in queries:
        evaluator.watch(query)
    evaluator.ingest(reply.body.decode() if reply.status == 200 else "", {}, 0.0)
    return [[Sample(dict(found), value) for found, value in evaluator.vector(query, 0.0).items()] for query in queries]

"""Tokens of requests to models: counts by service, model and caller, time to first token and per output token.

An observer reads the `usage` of each response (`token_usage.py`). The counts go to /metrics, by our names and by
those of OpenTelemetry's semantic conventions, and with the reports to the control process, which stores them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pilotlight import contract
from pilotlight.gateway.control_link import TokenQueue, TokenReport
from pilotlight.gateway.proxy.interfaces import ObservedRequest
from pilotlight.gateway.proxy.proxied_request import CLIENT_CLOSED
from pilotlight.gateway.proxy.response_observers import ResponseObserver
from pilotlight.gateway.routing_table import Route, RouteKey, Table
from pilotlight.gateway.token_usage import BYTES_PER_TOKEN, Usage, UsageReader
from pilotlight.wire.prometheus_text import Family

MAX_CALLERS: Final = 100  # with series of their own, per service
OTHER: Final = "other"  # callers beyond
PROVIDER: Final = "pilotlight"
CUT: Final = (0, CLIENT_CLOSED)  # the response was truncated, or its client has disconnected
OPERATIONS: Final = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}  # others: chat
TYPES: Final = {"prompt": "input", "completion": "output"}  # those of OpenTelemetry's metric
Model = tuple[str, str, str]  # namespace, route, model


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class CallerCounts:
    """Counts of one model and caller: since the start, or since the last report."""

    __slots__ = ("cached", "completion", "first_token", "prompt", "requests")

    def __init__(self) -> None:
        self.requests = self.prompt = self.cached = self.completion = 0
        self.first_token: Histogram | None = None

    def add(self, usage: Usage, first_token_s: float | None) -> None:
        self.requests += 1
        self.prompt += usage.prompt
        self.cached += usage.cached
        self.completion += usage.completion
        if first_token_s is not None:
            self.first_token = self.first_token or Histogram(contract.FIRST_TOKEN_BUCKETS)
            self.first_token.add(first_token_s)


class ModelLatency:
    """Histograms of one model and operation."""

    def __init__(self) -> None:
        self.first_token = Histogram(contract.FIRST_TOKEN_BUCKETS)
        self.output_token = Histogram(contract.OUTPUT_TOKEN_BUCKETS)
        self.sizes = {kind: Histogram(contract.TOKEN_BUCKETS) for kind in TYPES}


class TokenMeter:
    """Used from one event loop. `on_spent` is called with the tokens of each response, for quotas.

    With `reports`, counts are collected for `take_report`. With `from_zero`, a new series is 0 on the first page that
    has it: `increase` of Prometheus does not count what a series begins with.
    """

    def __init__(self) -> None:
        self.reports = self.from_zero = False
        self._shown: set[tuple[Model, str]] = set()  # series that a page has had
        self.on_spent: Callable[[Route, str, int], None] = lambda route, caller, tokens: None
        self._totals: dict[tuple[Model, str], CallerCounts] = {}
        self._callers: dict[RouteKey, set[str]] = {}  # with series of their own
        self._latencies: dict[tuple[Model, str], ModelLatency] = {}
        self._unreported: dict[tuple[Model, str], CallerCounts] = {}
        self._waiting: dict[RouteKey, int] = {}  # bytes of prompts without a first token

    def observe(self, request: ObservedRequest) -> ResponseObserver | None:
        """Return the observer of a request to a model; None: it has none."""
        route = request.prepared.route
        if route is None or not route.route.has_tokens or request.method != "POST":
            return None
        return _TokenObserver(self, request, route.route)

    def add_waiting(self, key: RouteKey, size: int) -> None:
        self._waiting[key] = self._waiting.get(key, 0) + size
        if not self._waiting[key]:
            del self._waiting[key]

    def count(self, request: ObservedRequest, route: Route, reader: UsageReader) -> None:
        """Count the tokens of a response that has ended."""
        usage, key = reader.usage, (route.namespace, route.name)
        adapter = request.prepared.adapter
        model = (*key, adapter.name if adapter is not None else (*route.models, route.name)[0])
        first_token_s = reader.first_at - request.arrived_at if reader.first_at else None
        if self.reports:
            self._unreported.setdefault((model, request.caller), CallerCounts()).add(usage, first_token_s)
        callers = self._callers.setdefault(key, set())
        if len(callers) < MAX_CALLERS:
            callers.add(request.caller)
        shown = request.caller if request.caller in callers else OTHER
        self._totals.setdefault((model, shown), CallerCounts()).add(usage, None)
        path = request.prepared.head.target.partition("?")[0]
        operation = next((each for end, each in OPERATIONS.items() if path.endswith(end)), "chat")
        latency = self._latencies.setdefault((model, operation), ModelLatency())
        for kind, size in latency.sizes.items():
            size.add(getattr(usage, kind))
        if first_token_s is not None:
            latency.first_token.add(first_token_s)
        if (seconds := reader.per_output_token) is not None:
            latency.output_token.add(seconds)
        self.on_spent(route, request.caller, usage.total)

    def take_report(self) -> tuple[TokenReport, ...]:
        """Return the counts since the last call."""
        counted, self._unreported = self._unreported, {}
        return tuple(
            TokenReport(
                *model, caller, each.requests, each.prompt, each.cached, each.completion,
                tuple(each.first_token.counts) if each.first_token else (),
                each.first_token.total if each.first_token else 0.0,
            )
            for (model, caller), each in counted.items()
        )  # fmt: skip

    def queues(self) -> tuple[TokenQueue, ...]:
        return tuple(TokenQueue(*key, size // BYTES_PER_TOKEN) for key, size in self._waiting.items())

    def prune(self, table: Table) -> None:
        routes = {(route.namespace, route.name) for route in table.routes}
        self._callers = {key: callers for key, callers in self._callers.items() if key in routes}
        self._totals = {key: each for key, each in self._totals.items() if key[0][:2] in routes}
        self._latencies = {key: each for key, each in self._latencies.items() if key[0][:2] in routes}

    def families(self) -> Iterator[Family]:
        """Yield the metrics; none before the first request to a model."""
        tokens = Family(contract.METRIC_TOKENS, "counter", "Tokens of prompts, of them cached, and generated.")
        requests = Family(contract.METRIC_MODEL_REQUESTS, "counter", "Requests whose tokens are counted.")
        nothing = CallerCounts()
        for key, each in sorted(self._totals.items()):
            (model, caller), counts = key, nothing if self.from_zero and key not in self._shown else each
            requests.add(counts.requests, **_labels(model), caller=caller)
            for kind in ("prompt", "cached", "completion"):
                tokens.add(getattr(counts, kind), **_labels(model), caller=caller, type=kind)
        self._shown = set(self._totals)
        waiting = Family(
            contract.METRIC_TOKENS_WAITING, "gauge", "Tokens of prompts without a first token yet, 4 bytes each."
        )
        for queue in self.queues():
            labels = {contract.LABEL_NAMESPACE: queue.namespace, contract.LABEL_SERVICE: queue.name}
            waiting.add(queue.tokens, **labels)
        yield from (tokens, requests, waiting, *self._histograms())

    def _histograms(self) -> Iterator[Family]:
        first, rest = "Time to first token of streams in seconds.", "Time per output token of streams in seconds."
        for name, text, field in (
            (contract.METRIC_FIRST_TOKEN, first, "first_token"),
            (contract.METRIC_OUTPUT_TOKEN, rest, "output_token"),
            (contract.METRIC_GENAI_FIRST_TOKEN, f"{first} OpenTelemetry's name.", "first_token"),
            (contract.METRIC_GENAI_OUTPUT_TOKEN, f"{rest} OpenTelemetry's name.", "output_token"),
        ):
            family = Family(name, "histogram", text)
            for (model, operation), latency in sorted(self._latencies.items(), key=lambda each: each[0]):
                histogram: Histogram = getattr(latency, field)
                labels = {**_labels(model), "operation": operation}
                if name.startswith("gen_ai"):
                    labels = _genai_labels(model, operation)
                family.add_histogram(histogram.bounds, histogram.counts, histogram.total, **labels)
            yield family
        sizes = Family(contract.METRIC_GENAI_TOKENS, "histogram", "Tokens of requests. OpenTelemetry's name.")
        for (model, operation), latency in sorted(self._latencies.items(), key=lambda each: each[0]):
            for kind, histogram in latency.sizes.items():
                labels = {**_genai_labels(model, operation), "gen_ai_token_type": TYPES[kind]}
                sizes.add_histogram(histogram.bounds, histogram.counts, histogram.total, **labels)
        yield sizes


class _TokenObserver:
    """Reads the usage of one response."""

    def __init__(self, meter: TokenMeter, request: ObservedRequest, route: Route) -> None:
        self._meter, self._request, self._route = meter, request, route
        self._reader: UsageReader | None = None  # once a successful response has begun
        self._size = self._waiting = 0  # bytes of the prompt; of these, those that wait
        # Engines generate on paths of their own too, such as /generate: a quota must hold there.
        self._counted = request.prepared.has_prompt or route.quota is not None

    def on_request_body(self, piece: bytes) -> None:
        if not self._size and not self._request.prepared.has_prompt:
            self._counted = self._counted and not piece.startswith(b"--")  # a form, which contains audio
        if self._counted:
            self._size += len(piece)
        if self._request.prepared.has_prompt:
            self._wait(self._waiting + len(piece))

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        if status == 200 and "content-encoding" not in headers:
            stream = headers.get("content-type", "").startswith("text/event-stream")
            self._reader = UsageReader(stream, self._size, self._request.usage_added)

    def on_body(self, piece: bytes) -> bytes:
        if self._reader is None:
            return piece
        passed = self._reader.feed(piece, self._request.now())
        if self._waiting and self._reader.first_at:
            self._wait(0)
        return passed

    def on_body_end(self) -> bytes:
        return self._reader.finish(self._request.now()) if self._reader is not None else b""

    def on_end(self, status: int, now: float) -> None:
        self._wait(0)
        if self._reader is None and status == CLIENT_CLOSED and self._request.sent_at and self._size:
            self._reader = UsageReader(False, self._size)  # the engine has the prompt
        if self._reader is not None and (status == 200 or status in CUT):
            self._meter.count(self._request, self._route, self._reader)

    def _wait(self, size: int) -> None:
        if size != self._waiting:
            self._meter.add_waiting((self._route.namespace, self._route.name), size - self._waiting)
            self._waiting = size


def _labels(model: Model) -> dict[str, str]:
    return {contract.LABEL_NAMESPACE: model[0], contract.LABEL_SERVICE: model[1], "model": model[2]}


def _genai_labels(model: Model, operation: str) -> dict[str, str]:
    return {
        contract.LABEL_NAMESPACE: model[0],
        contract.LABEL_SERVICE: model[1],
        "gen_ai_operation_name": operation,
        "gen_ai_provider_name": PROVIDER,
        "gen_ai_request_model": model[2],
    }

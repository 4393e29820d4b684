"""A target on paper: releases as they are applied, revisions that are ready at once, and requests that a test makes up.

Its metrics are read as any replica's page is and asked by the platform's own evaluator, so that queries are real.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from pilotlight.contract import LATENCY_BUCKETS, METRIC_IN_FLIGHT, METRIC_REQUEST_DURATION
from pilotlight.errors import Conflict, NotFound
from pilotlight.k8s.manifest import Manifest
from pilotlight.targets.kubernetes.scale_traffic_overrides import is_knative
from pilotlight.targets.local.scaling.promql.evaluator import Evaluator
from pilotlight.targets.target import (
    CanaryRecord,
    Key,
    ModelState,
    Release,
    RevisionStatus,
    Sample,
    ServiceRoute,
    ServiceStatus,
    Share,
)

Json = Any
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class PaperTarget:
    name = "paper"
    poll_s = 0.0
    embedded = False

    def __init__(self) -> None:
        self.found: list[Release] = []  # newest first
        self.kept: dict[Key, CanaryRecord] = {}
        self.seconds = 0.0
        self.failed: dict[str, str] = {}  # revisions that do not start, and why
        self.loading: set[str] = set()
        self.slow: dict[str, float] = {}  # seconds that a revision takes to answer; 10 ms unless told
        self.wrong: dict[str, float] = {}  # share of its answers that are errors
        self.asked: Callable[[str], Sequence[Sample]] | None = None  # in place of the metrics
        self._counts: dict[str, dict[str, list[float]]] = defaultdict(dict)  # by revision and code: latencies
        self._evaluator = Evaluator()

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds)

    def clock(self) -> float:
        return self.seconds

    def pass_time(self, seconds: float, requests: int = 100) -> None:
        """Meanwhile requests come, and go where the newest release leads them."""
        self.seconds += seconds
        for row in self.rows() if self.found else ():
            self.serve(row.name, requests * row.percent // 100)

    def serve(self, revision: str, requests: int) -> None:
        bad = round(requests * self.wrong.get(revision, 0.0))
        for code, count in (("200", requests - bad), ("500", bad)):
            self._counts[revision].setdefault(code, []).extend([self.slow.get(revision, 0.01)] * count)

    def capabilities(self) -> Mapping[str, Json]:
        return {}

    def catalogue(self, namespaces: Sequence[str]) -> tuple[Sequence[tuple[str, Mapping[str, Json]]], Sequence[str]]:
        return (), ()

    def open_route(self, status: ServiceStatus) -> AbstractContextManager[ServiceRoute]:
        return nullcontext(ServiceRoute(status.url))

    def rows(self) -> tuple[RevisionStatus, ...]:
        (service,) = [each for each in self.found[0].manifests if is_knative(each)]
        shares = service["spec"]["traffic"]
        latest = service["spec"]["template"]["metadata"]["name"]
        names = dict.fromkeys([latest, *(each["revisionName"] for each in shares)])
        return tuple(self._row(name, service["metadata"]["name"], shares) for name in names)

    def _row(self, name: str, workload: str, shares: Sequence[Mapping[str, Json]]) -> RevisionStatus:
        mine = [each for each in shares if each["revisionName"] == name]
        percent = sum(each.get("percent") or 0 for each in mine)
        tags = tuple(each["tag"] for each in mine if each.get("tag"))
        why = self.failed.get(name, "")
        state: ModelState = "FailedToLoad" if why else "Loading" if name in self.loading else "Loaded"
        return RevisionStatus(
            name, workload, "predictor", percent, tags, ready=0 if why else 1, model_state=state, reason=why
        )

    def live(self, key: Key) -> list[Manifest]:
        return [Manifest(self._live(each)) for each in self.found[0].manifests] if self.found else []

    def _live(self, document: Mapping[str, Json]) -> Mapping[str, Json]:
        if not is_knative(document):
            return document
        name = document["spec"]["template"]["metadata"]["name"]
        told = {"latestCreatedRevisionName": name, "latestReadyRevisionName": name}
        return {**document, "status": {**told, "traffic": document["spec"]["traffic"]}}

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        generation = self.found[0].generation if self.found else 0
        if release.expected not in (None, generation):
            raise Conflict("another deploy was quicker")
        same = self.found and (self.found[0].document, self.found[0].manifests) == (release.document, release.manifests)
        if not same:
            self.found.insert(0, replace(release, generation=generation + 1, expected=None))
        return self.status((release.namespace, release.name))

    def status(self, key: Key) -> ServiceStatus:
        if not self.found:
            raise NotFound(f"there is no service {'/'.join(key)}")
        return ServiceStatus(*key, self.found[0].generation, "Ready", "http://paper", revisions=self.rows())

    def releases(self, key: Key) -> Sequence[Release]:
        return tuple(self.found)

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        return self.status(key)

    def canaries(self, namespace: str | None) -> Sequence[CanaryRecord]:
        return tuple(self.kept.values())

    def canary(self, key: Key) -> CanaryRecord | None:
        return self.kept.get(key)

    def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord:
        present = self.kept[key].version if key in self.kept else ""
        if present != version:
            raise Conflict("another was quicker")
        self.kept[key] = CanaryRecord(*key, state, str(int(present or 0) + 1))
        return self.kept[key]

    def query(self, promql: str) -> Sequence[Sample]:
        if self.asked is not None:
            return self.asked(promql)
        self._evaluator.watch(promql)
        for revision in [row.name for row in self.rows()]:
            self._evaluator.ingest("\n".join(self._page(revision)), self._labels(revision), self.seconds)
        found = self._evaluator.vector(promql, self.seconds)
        return [Sample(dict(labels), value, self.seconds) for labels, value in found.items()]

    def forget_metrics(self) -> None:
        """As one that begins to read them with its first question; replicas count on."""
        self._evaluator = Evaluator()

    def _labels(self, revision: str) -> dict[str, str]:
        return {"namespace": "default", "inference_service": "iris", "revision": revision}

    def _page(self, revision: str) -> Iterator[str]:
        yield f"{METRIC_IN_FLIGHT} 0"
        for code, latencies in self._counts[revision].items():
            for edge in LATENCY_BUCKETS:
                count = sum(each <= edge for each in latencies)
                yield f'{METRIC_REQUEST_DURATION}_bucket{{code="{code}",le="{edge}"}} {count}'
            yield f'{METRIC_REQUEST_DURATION}_bucket{{code="{code}",le="+Inf"}} {len(latencies)}'
            yield f'{METRIC_REQUEST_DURATION}_count{{code="{code}"}} {len(latencies)}'
            yield f'{METRIC_REQUEST_DURATION}_sum{{code="{code}"}} {sum(latencies)}'


class Died(Exception):
    """Of whoever asked a target."""


class Dying:
    """The same target, asked by somebody who dies once that many of his changes have been made."""

    def __init__(self, target: PaperTarget, changes: int) -> None:
        self._target, self._left = target, changes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in ("apply", "save_canary", "traffic"):
            return found

        def called(*given: Any, **named: Any) -> Any:
            answer = found(*given, **named)
            self._left -= 1
            if not self._left:
                raise Died
            return answer

        return called

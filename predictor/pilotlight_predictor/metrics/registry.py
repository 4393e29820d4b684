"""Metrics of a process: written by transports and schedulers, read by `/metrics` and `/stats`.

Writers hold references to a `Histogram` or `ModelStats`, so that hot paths look up no labels. Queue depths and model
states are read by callbacks at scrape time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight.contract import LABEL_NAMESPACE, LABEL_REVISION, LABEL_SERVICE
from pilotlight_predictor.config import ObservabilitySettings
from pilotlight_predictor.metrics.cpu_readings import CpuMeter
from pilotlight_predictor.metrics.model_stats import Histogram, ModelStats

if TYPE_CHECKING:
    from pilotlight.wire.request_log.sender import LogCounts
    from pilotlight_predictor.metrics.custom import CustomMetrics
    from pilotlight_predictor.metrics.exposition import Family
    from pilotlight_predictor.metrics.gpu_readings import GpuSample

# Bounds the memory if clients invent model names; further requests are counted under model="".
MAX_REQUEST_SERIES: Final = 5000


class QueueDepth(NamedTuple):
    model: str
    version: int
    requests: int


class ModelState(NamedTuple):
    model: str
    version: int
    state: str  # READY, PARKED, LOADING, UNLOADING or UNAVAILABLE


def identity_labels(settings: ObservabilitySettings) -> dict[str, str]:
    """Return the labels for service, namespace and revision of this process, without those that are not set."""
    labels = {LABEL_SERVICE: settings.service, LABEL_NAMESPACE: settings.namespace, LABEL_REVISION: settings.revision}
    return {label: value for label, value in labels.items() if value}


class Metrics:
    """All metrics of one process. Used on the event loop only, without locks; `custom` from any thread."""

    def __init__(self, identity: Mapping[str, str] | None = None) -> None:
        self.identity = identity or {}
        self.in_flight = self.responses_refused = 0
        self.requests: dict[tuple[str, int, str, int], Histogram] = {}
        self.models: dict[tuple[str, int], ModelStats] = {}
        self.wakes: dict[tuple[str, int], Histogram] = {}
        self.loads: dict[tuple[str, int], dict[str, float]] = {}
        self.cold_start: dict[str, float] = {}
        self.queue_depths: Callable[[], Iterable[QueueDepth]] = tuple
        self.model_states: Callable[[], Iterable[ModelState]] = tuple
        self.log_counts: LogCounts | None = None  # of the request log
        self.parked: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.gpus: Callable[[], Sequence[GpuSample]] = tuple
        self.cpu = CpuMeter()
        self._custom: CustomMetrics | None = None
        self._lock = Lock()

    def request(self, model: str, version: int, protocol: str, code: int) -> Histogram:
        """Return the duration histogram of such requests; valid until the version is dropped.

        Pass only models that exist: clients must not create label values. Model "" and version 0: none.
        """
        key = (model, version, protocol, code)
        histogram = self.requests.get(key)
        if histogram is None:
            if len(self.requests) >= MAX_REQUEST_SERIES:
                key = ("", 0, protocol, code)
            histogram = self.requests.setdefault(key, Histogram())
        return histogram

    def model(
        self, name: str, version: int, tags: Mapping[str, str] | None = None, cache_enabled: bool = False
    ) -> ModelStats:
        """Return the statistics of a version that is being loaded; a reload continues the counts."""
        stats = self.models.setdefault((name, version), ModelStats(name, version))
        stats.tags, stats.cache_enabled = tags or {}, cache_enabled
        return stats

    def drop(self, name: str, version: int) -> None:
        """Remove an unloaded version, so that a series of new versions does not grow the scrape for ever."""
        self.models.pop((name, version), None)
        self.loads.pop((name, version), None)
        self.wakes.pop((name, version), None)
        for key in [key for key in self.requests if key[:2] == (name, version)]:
            del self.requests[key]

    def wake(self, name: str, version: int) -> Histogram:
        """Return the histogram of the seconds to restore a parked version."""
        return self.wakes.setdefault((name, version), Histogram())

    def wake_seconds(self) -> float:
        """Return how long the wake of all models that have been parked takes, each as its mean so far."""
        return sum(wakes.sum / wakes.count for wakes in self.wakes.values() if wakes.count)

    def record_load(self, model: str, version: int, phases: Mapping[str, float], total: float) -> None:
        """Record the seconds of a load by phase. Phases overlap, so their sum is not the total."""
        self.loads[model, version] = {**phases, "total": total}

    @property
    def custom(self) -> "CustomMetrics":
        """Metrics of user models. Created on first use, from any thread."""
        with self._lock:
            if self._custom is None:
                from pilotlight_predictor.metrics.custom import CustomMetrics

                self._custom = CustomMetrics()
            return self._custom

    def forget_custom(self, owner: object) -> None:
        if self._custom is not None:
            self._custom.remove_owner(owner)

    @property
    def custom_families(self) -> "list[Family]":
        return self._custom.collect() if self._custom is not None else []

    def statistics(self) -> dict[str, Any]:
        """Return the body of `/v2/models/stats`."""
        return {"model_stats": [self.models[key].as_v2() for key in sorted(self.models)]}

"""Loads of versions off the event loop: a few at a time, each within the load timeout; loaded version → ModelVersion.

`open_version` is synchronous, so that the registry never exposes an incomplete version.
"""

import asyncio
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Final

from pilotlight_predictor.backends.base import adapters_of
from pilotlight_predictor.config import Settings
from pilotlight_predictor.core.byte_budget import ByteBudget
from pilotlight_predictor.core.threads import in_thread_under_load
from pilotlight_predictor.errors import LoadFailed, PredictorError
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.models.bls import WAITING, BlsClient, BlsContext, FindVersion
from pilotlight_predictor.models.loader import LoadedVersion, discard, load_version
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.models.response_cache import ResponseCache
from pilotlight_predictor.models.warmup import DecodeExample
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.autocomplete import metadata_specs
from pilotlight_predictor.repository.layout import ModelSource
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.scheduling.batching import policy_of
from pilotlight_predictor.scheduling.ensemble import Ensemble
from pilotlight_predictor.scheduling.executor_interface import Executor
from pilotlight_predictor.scheduling.queue import RequestQueue
from pilotlight_predictor.scheduling.scheduler import Scheduler
from pilotlight_predictor.scheduling.sequence_scheduler import SequenceScheduler

MAX_CONCURRENT: Final = 4


class LoadQueue:
    """Queue of loads in threads; a failure is logged and becomes one sentence for operators."""

    def __init__(self, settings: Settings, context: BlsContext, decode_example: DecodeExample | None = None) -> None:
        self._settings, self._context, self._decode_example = settings, context, decode_example
        self._bls: BlsClient | None = None
        self._timeout_s = settings.model.load_timeout_s
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def run(self, source: ModelSource, version: int, config: ModelConfig | None) -> LoadedVersion:
        """Load one version. Raises LoadFailed with the reason."""
        self._bls = self._bls or BlsClient(self._context)
        # A load requested by a model that is itself being loaded must not wait for a slot: its caller holds one.
        async with nullcontext() if WAITING.get() else self._slots:
            started = perf_counter()
            try:
                work = partial(load_version, source, version, config, self._settings, self._bls, self._decode_example)
                loading = in_thread_under_load(work, lambda late: discard(late.instances))
                loaded = await asyncio.wait_for(loading, self._timeout_s or None)
            except Exception as error:
                late = f"loading took longer than {self._timeout_s:g} s (--load-timeout)"
                reason = late if isinstance(error, TimeoutError) else reason_of(error)
                # The traceback of a bug, or of the model's own code.
                shown = error.__cause__ if isinstance(error, PredictorError | TimeoutError) else error
                cause = shown if isinstance(shown, Exception) else None
                message = f"failed to load '{source.name}' version {version}: {reason}"
                log("model.failed", message, level="ERROR", error=cause, model=source.name, version=version)
                raise LoadFailed(reason) from None
            loaded.phases["total"] = perf_counter() - started
            return loaded


def reason_of(error: Exception) -> str:
    """Return why a model does not serve, for operators: the server's own errors are sentences already."""
    return str(error) if isinstance(error, PredictorError) else f"{type(error).__name__}: {error}"


def log_load_failure(name: str, error: Exception) -> None:
    unexpected = None if isinstance(error, PredictorError) else error
    log("model.failed", f"failed to load '{name}': {reason_of(error)}", level="ERROR", error=unexpected, model=name)


def open_version(
    loaded: LoadedVersion,
    stats: ModelStats,
    find: FindVersion,
    max_queue_size: int,
    cache: ResponseCache | None,
    budget: ByteBudget | None,
) -> ModelVersion:
    """Create the version that accepts requests. `find`: lookup of an ensemble's steps."""
    config = loaded.config
    executor = _executor(loaded, stats, find, max_queue_size, budget)
    version = ModelVersion(config, loaded.version, executor, stats, metadata_specs(config), loaded.labels, cache)
    version.answered_warmup, version.example = loaded.verified, loaded.example
    version.warmup_failure = loaded.warmup_failure
    version.adapters = adapters_of(loaded.instances)
    for instance in loaded.instances[:1]:
        version.v1_verbs = getattr(instance, "verbs", frozenset())
        version.chats = getattr(instance, "chats", True)
    ordered = config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering
    version.instances = min(len(loaded.instances), 1) if ordered else len(loaded.instances)
    return version


def _executor(
    loaded: LoadedVersion, stats: ModelStats, find: FindVersion, max_queue_size: int, budget: ByteBudget | None
) -> Executor:
    config = loaded.config
    if config.ensemble:
        return Ensemble(config, find, stats)
    if config.sequence_batching is not None:
        return SequenceScheduler(loaded.instances, config, stats, max_queue_size, loaded.trial_ns)
    batching = config.dynamic_batching
    return Scheduler(
        loaded.instances, policy_of(config.max_batch_size, batching), RequestQueue(batching, max_queue_size), stats,
        preserve_ordering=batching is not None and batching.preserve_ordering, trial_ns=loaded.trial_ns, budget=budget,
    )  # fmt: skip

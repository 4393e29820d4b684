"""Creates the ModelVersion and the executor of a loaded version, by its configuration.

Synchronous, so that the registry never exposes an incomplete version.
"""

from pilotlight_predictor.backends.ensemble import Ensemble
from pilotlight_predictor.batcher import policy_of
from pilotlight_predictor.executor import Executor
from pilotlight_predictor.loader import LoadedVersion
from pilotlight_predictor.model_management import FindVersion
from pilotlight_predictor.repository.complete import metadata_specs
from pilotlight_predictor.response_cache import ResponseCache
from pilotlight_predictor.scheduler import Scheduler
from pilotlight_predictor.sequence_scheduler import SequenceScheduler
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.stats import ModelStats
from pilotlight_predictor.waiting import RequestQueue


def open_version(
    loaded: LoadedVersion, stats: ModelStats, find: FindVersion, max_queue_size: int, cache: ResponseCache | None
) -> ModelVersion:
    """Create the version that accepts requests. `find`: lookup of an ensemble's steps."""
    config = loaded.config
    executor = _executor(loaded, stats, find, max_queue_size)
    version = ModelVersion(config, loaded.version, executor, stats, metadata_specs(config), loaded.labels, cache)
    for instance in loaded.instances[:1]:
        version.v1_verbs = getattr(instance, "verbs", frozenset())
    ordered = config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering
    version.instances = min(len(loaded.instances), 1) if ordered else len(loaded.instances)
    return version


def _executor(loaded: LoadedVersion, stats: ModelStats, find: FindVersion, max_queue_size: int) -> Executor:
    config = loaded.config
    if config.ensemble:
        return Ensemble(config, find, stats)
    if config.sequence_batching is not None:
        return SequenceScheduler(loaded.instances, config, stats, max_queue_size, loaded.trial_ns)
    batching = config.dynamic_batching
    return Scheduler(
        loaded.instances, policy_of(config.max_batch_size, batching), RequestQueue(batching, max_queue_size), stats,
        preserve_ordering=batching is not None and batching.preserve_ordering, trial_ns=loaded.trial_ns,
    )  # fmt: skip

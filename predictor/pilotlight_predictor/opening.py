"""A loaded version becomes one that takes requests: its configuration says what runs them.

The registry puts it in its place. Between the two nothing waits, so a version is never seen half made.
"""

from pilotlight_predictor.backends.ensemble import Ensemble
from pilotlight_predictor.batcher import policy_of
from pilotlight_predictor.executor import Executor
from pilotlight_predictor.loader import Loaded
from pilotlight_predictor.model_calls import Find
from pilotlight_predictor.repository.complete import metadata_specs
from pilotlight_predictor.response_cache import ResponseCache
from pilotlight_predictor.scheduler import Scheduler
from pilotlight_predictor.sequence_scheduler import SequenceScheduler
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.stats import ModelStats
from pilotlight_predictor.waiting import WaitingLine


def open_version(
    loaded: Loaded, stats: ModelStats, find: Find, max_queue_size: int, cache: ResponseCache | None
) -> ServedVersion:
    """`find` gives an ensemble the models of its steps."""
    config = loaded.config
    executor = _executor(loaded, stats, find, max_queue_size)
    served = ServedVersion(config, loaded.version, executor, stats, metadata_specs(config), loaded.labels, cache)
    for instance in loaded.instances[:1]:
        served.verbs = getattr(instance, "verbs", frozenset())
    ordered = config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering
    served.instances = min(len(loaded.instances), 1) if ordered else len(loaded.instances)
    return served


def _executor(loaded: Loaded, stats: ModelStats, find: Find, max_queue_size: int) -> Executor:
    config = loaded.config
    if config.ensemble:
        return Ensemble(config, find, stats)
    if config.sequence_batching is not None:
        return SequenceScheduler(loaded.instances, config, stats, max_queue_size, loaded.trial_ns)
    batching = config.dynamic_batching
    return Scheduler(
        loaded.instances, policy_of(config.max_batch_size, batching), WaitingLine(batching, max_queue_size), stats,
        preserve_ordering=batching is not None and batching.preserve_ordering, trial_ns=loaded.trial_ns,
    )  # fmt: skip

"""Load queue: version loads off the event loop, a few at a time, each within the load timeout."""

import asyncio
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Final

from pilotlight_predictor.beside_requests import in_thread_under_load
from pilotlight_predictor.errors import LoadFailed, PredictorError
from pilotlight_predictor.loader import LoadedVersion, discard, load_version
from pilotlight_predictor.logs import log
from pilotlight_predictor.model_calls import BlsClient
from pilotlight_predictor.model_management import WAITING, BlsContext
from pilotlight_predictor.repository.layout import ModelSource
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.settings import Settings

MAX_CONCURRENT: Final = 4


class LoadQueue:
    """Runs loads in threads; a failure is logged and becomes one sentence for operators."""

    def __init__(self, settings: Settings, context: BlsContext) -> None:
        self._settings, self._context = settings, context
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
                loaded = await self._load_within_timeout(source, version, config)
            except Exception as error:
                raise LoadFailed(self._report_failure(source.name, version, error)) from None
            loaded.phases["total"] = perf_counter() - started
            return loaded

    async def _load_within_timeout(
        self, source: ModelSource, version: int, config: ModelConfig | None
    ) -> LoadedVersion:
        work = partial(load_version, source, version, config, self._settings, self._bls)
        loading = in_thread_under_load(work, lambda late: discard(late.instances))
        return await asyncio.wait_for(loading, self._timeout_s or None)

    def _report_failure(self, name: str, version: int, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            reason = f"loading took longer than {self._timeout_s:g} s (--load-timeout)"
        else:
            reason = reason_of(error)
        unexpected = None if isinstance(error, PredictorError | TimeoutError) else error
        message = f"failed to load '{name}' version {version}: {reason}"
        log("model.failed", message, level="ERROR", error=unexpected, model=name, version=version)
        return reason


def reason_of(error: Exception) -> str:
    """Return why a model does not serve, for operators: the server's own errors are sentences already."""
    return str(error) if isinstance(error, PredictorError) else f"{type(error).__name__}: {error}"


def log_load_failure(name: str, error: Exception) -> None:
    unexpected = None if isinstance(error, PredictorError) else error
    log("model.failed", f"failed to load '{name}': {reason_of(error)}", level="ERROR", error=unexpected, model=name)

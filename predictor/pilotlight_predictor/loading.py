"""Loads off the event loop: a few at a time, each within the load timeout, each failure one sentence for operators."""

import asyncio
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import Final

from pilotlight_predictor.beside_requests import beside_requests
from pilotlight_predictor.errors import LoadFailed, PredictorError
from pilotlight_predictor.loader import Loaded, discard, load_version
from pilotlight_predictor.logs import log
from pilotlight_predictor.model_calls import ModelCalls, Reach
from pilotlight_predictor.repository.layout import ModelSource
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.settings import Settings

AT_A_TIME: Final = 4
# Models that wait for what is done here, their own load maybe: set where a model asks for it.
WAITING: Final[ContextVar[frozenset[str]]] = ContextVar("waiting", default=frozenset())


class Loads:
    def __init__(self, settings: Settings, reach: Reach) -> None:
        self._settings, self._reach = settings, reach
        self._calls: ModelCalls | None = None
        self._timeout_s = settings.model.load_timeout_s
        self._slots = asyncio.Semaphore(AT_A_TIME)

    async def run(self, source: ModelSource, version: int, config: ModelConfig | None) -> Loaded:
        """Raises LoadFailed with the reason."""
        self._calls = self._calls or ModelCalls(self._reach)
        async with nullcontext() if WAITING.get() else self._slots:  # whoever waits has one already
            started = perf_counter()
            try:
                loaded = await self._within_timeout(source, version, config)
            except Exception as error:
                raise LoadFailed(self._explain(source.name, version, error)) from None
            loaded.phases["total"] = perf_counter() - started
            return loaded

    async def _within_timeout(self, source: ModelSource, version: int, config: ModelConfig | None) -> Loaded:
        """What a load brings after it was given up is freed."""
        work = partial(load_version, source, version, config, self._settings, self._calls)
        loading = beside_requests(work, lambda late: discard(late.instances))
        return await asyncio.wait_for(loading, self._timeout_s or None)

    def _explain(self, name: str, version: int, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            reason = f"loading took longer than {self._timeout_s:g} s (--load-timeout)"
        else:
            reason = reason_of(error)
        unexpected = None if isinstance(error, PredictorError | TimeoutError) else error
        message = f"failed to load '{name}' version {version}: {reason}"
        log("model.failed", message, level="ERROR", error=unexpected, model=name, version=version)
        return reason


def reason_of(error: Exception) -> str:
    """Why a model does not serve, for operators: our own errors are sentences already."""
    return str(error) if isinstance(error, PredictorError) else f"{type(error).__name__}: {error}"


def tell_failed(name: str, error: Exception) -> None:
    unexpected = None if isinstance(error, PredictorError) else error
    log("model.failed", f"failed to load '{name}': {reason_of(error)}", level="ERROR", error=unexpected, model=name)

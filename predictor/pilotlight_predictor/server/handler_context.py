"""Server context of the handlers: models, control, metrics, limits and readiness."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from pilotlight_predictor import __version__
from pilotlight_predictor.config import Settings, limits
from pilotlight_predictor.core.shared_memory import SharedMemory
from pilotlight_predictor.core.threads import ThreadLimiter
from pilotlight_predictor.metrics import Metrics
from pilotlight_predictor.models.control_modes import ModelControl
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.models.registry import ModelRegistry
from pilotlight_predictor.models.sources import ModelSources
from pilotlight_predictor.models.version_routing import VersionRouter
from pilotlight_predictor.models.warmup import DecodeExample
from pilotlight_predictor.observability.logs import LogSettings
from pilotlight_predictor.observability.request_traces import RequestTraces
from pilotlight_predictor.server.server_state import Lifecycle, Readiness, ServerState, assess_readiness

HIDDEN_REASON: Final = "see the server's log"


class Caller(Protocol):
    """Request of any transport: header names are in lower case, `peer` is an address."""

    headers: Mapping[str, str]
    peer: str


class Server:
    """Server context. Created after heavy modules are imported; used on the event loop."""

    def __init__(
        self,
        settings: Settings,
        lifecycle: Lifecycle,
        sources: ModelSources,
        metrics: Metrics,
        decode_example: DecodeExample | None = None,
    ) -> None:
        self.settings = settings
        self.lifecycle = lifecycle
        self.metrics = metrics
        metrics.cold_start = lifecycle.phases
        self.registry = ModelRegistry(settings, metrics, decode_example)
        files = settings.observability.files_dir
        options, as_triton = settings.observability.trace_config, settings.server.as_triton
        self.traces = RequestTraces(self.registry.serving, files, options, as_triton=as_triton)
        self.registry.on_version = self.traces.attach
        self.log_settings = LogSettings(settings.observability.log_level, files, settings.observability.log_file)
        self.shared_memory = SharedMemory(settings.server.allow_shared_memory)
        self.control = self.registry.bls.control = ModelControl(settings, self.registry, sources)
        self.limits = limits(settings)
        self.predict_limits = limits(settings, predict=True)
        self.versions = VersionRouter(settings.model)
        self.find = self.registry.find
        self.codecs = ThreadLimiter(2)  # JSON codecs hold the GIL: more threads would not help
        self.not_ready_status = settings.server.not_ready_status
        self.name = "triton" if settings.server.compat == "triton" else settings.server.id
        self.version = __version__
        self.progress: Mapping[str, int] = {}
        self.hold: Callable[[int], AbstractContextManager[None]] = lambda length: nullcontext()  # as bytes in flight
        self.may_read: Callable[[Caller], bool] = lambda caller: True  # may see why a model failed

    @property
    def starting(self) -> bool:
        return self.lifecycle.state in {ServerState.INITIALIZING, ServerState.LOADING}

    def readiness(self) -> Readiness:
        required = self.control.required
        names = (*required, *self.registry.requested()) if self.settings.server.strict_readiness else required
        return assess_readiness(
            self.lifecycle, names, self.registry.is_ready, self.registry.reason, may_be_empty=self.control.may_be_empty
        )

    def visible_reason(self, caller: Caller, reason: str) -> str:
        """Return the reason of a failure as the caller may see it: errors of models may have paths and passwords."""
        return reason if not reason or self.may_read(caller) else HIDDEN_REASON

    def recover(self) -> bool:
        """Leave the FAILED state if the missing models have been loaded. Return whether the server is ready.

        Before the repository was read the missing models are unknown, and the first reason stays.
        """
        if self.lifecycle.state is not ServerState.FAILED or not self.registry.scanned:
            return False
        self.lifecycle.move(ServerState.READY)
        readiness = self.readiness()
        if not readiness.ready:
            self.lifecycle.move(ServerState.FAILED, readiness.reason)
        return readiness.ready

    def observe_rejected(self, protocol: str, params: Mapping[str, str], status: int, seconds: float) -> None:
        """Count an inference that never ran. Unknown models get empty labels: clients must not create label values."""
        name = params.get("model", "")
        served = self.registry.newest(name)
        known = (served.name, served.version) if served is not None else ("", 0)
        self.metrics.request(*known, protocol, status).observe(seconds)

    def observe(self, served: ModelVersion, protocol: str, status: int, seconds: float, adapter: str = "") -> None:
        """Count a finished inference, once for each that was counted in flight. An adapter counts as its own model."""
        self.metrics.in_flight -= 1
        self.count_response(served, protocol, status, seconds, adapter)

    def count_response(
        self, served: ModelVersion, protocol: str, status: int, seconds: float, adapter: str = ""
    ) -> None:
        if status == 500 and not served.verified:
            served.unverified_failures += 1
        self.metrics.request(adapter or served.name, served.version, protocol, status).observe(seconds)

"""The running server as routes see it: models, control, metrics, limits and readiness in one place."""

from collections.abc import Mapping

from pilotlight_predictor import __version__
from pilotlight_predictor.control import ModelControl
from pilotlight_predictor.lifecycle import Lifecycle, State, Verdict, judge
from pilotlight_predictor.log_settings import LogSettings
from pilotlight_predictor.metrics import Metrics
from pilotlight_predictor.registry import ModelRegistry
from pilotlight_predictor.request_traces import Traces
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.settings import Settings, limits
from pilotlight_predictor.shared_memory import SharedMemory
from pilotlight_predictor.sources import Sources
from pilotlight_predictor.threads import FewThreads
from pilotlight_predictor.version_choice import VersionChoice


class Server:
    """Made once heavy modules are there; everything in it is used from the event loop."""

    def __init__(self, settings: Settings, lifecycle: Lifecycle, sources: Sources, metrics: Metrics) -> None:
        self.settings = settings
        self.lifecycle = lifecycle
        self.metrics = metrics
        metrics.cold_start = lifecycle.phases
        self.registry = ModelRegistry(settings, metrics)
        files = settings.observability.files_dir
        self.traces = Traces(self.registry.serving, files)
        self.registry.announce = self.traces.attach
        self.log_settings = LogSettings(settings.observability.log_level, files)
        self.shared_memory = SharedMemory(settings.server.allow_shared_memory)
        self.control = self.registry.reach.control = ModelControl(settings, self.registry, sources)
        self.limits = limits(settings)
        self.predict_limits = limits(settings, predict=True)
        self.versions = VersionChoice(settings.model)
        self.find = self.registry.find
        self.codecs = FewThreads(2)  # (un)packing leaves the interpreter to others, reading and writing JSON hardly
        self.not_ready_status = settings.server.not_ready_status
        self.name = "triton" if settings.server.compat == "triton" else settings.server.id
        self.version = __version__
        self.progress: Mapping[str, int] = {}

    @property
    def starting(self) -> bool:
        return self.lifecycle.state in {State.INITIALIZING, State.LOADING}

    def readiness(self) -> Verdict:
        names = self.registry.asked_for() if self.settings.server.strict_readiness else self.control.required
        return judge(
            self.lifecycle, names, self.registry.is_ready, self.registry.reason, may_be_empty=self.control.may_be_empty
        )

    def heal(self) -> bool:
        """Whether a start that had failed is made up for: what was missing has come.

        Until the repository was read nobody can tell what is missing, and the first reason stands.
        """
        if self.lifecycle.state is not State.FAILED or not self.registry.surveyed:
            return False
        self.lifecycle.move(State.READY)
        verdict = self.readiness()
        if not verdict.ready:
            self.lifecycle.move(State.FAILED, verdict.reason)
        return verdict.ready

    def observe_refusal(self, protocol: str, params: Mapping[str, str], status: int, seconds: float) -> None:
        """An inference that never ran. A client must not make labels: an unknown model counts under none."""
        name = params.get("model", "")
        served = self.registry.newest(name)
        known = (served.name, served.version) if served is not None else ("", 0)
        self.metrics.request(*known, protocol, status).observe(seconds)

    def observe(self, served: ServedVersion, protocol: str, status: int, seconds: float) -> None:
        """Called once for each inference that was counted in flight."""
        self.metrics.in_flight -= 1
        self.metrics.request(served.name, served.version, protocol, status).observe(seconds)

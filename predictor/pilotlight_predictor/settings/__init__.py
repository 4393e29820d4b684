"""Settings of the predictor: flags, `INFERENCE_*` variables and a file, parsed once into one frozen object."""

from pilotlight_predictor.settings.limits import Limits, limits
from pilotlight_predictor.settings.model import (
    ModelSettings,
    ObservabilitySettings,
    PerformanceSettings,
    SafeguardSettings,
    ServerSettings,
    Settings,
)
from pilotlight_predictor.settings.parse import SettingsError, command_line, parse

__all__ = [
    "Limits",
    "ModelSettings",
    "ObservabilitySettings",
    "PerformanceSettings",
    "SafeguardSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "command_line",
    "limits",
    "parse",
]

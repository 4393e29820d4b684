"""Settings of the predictor: flags, `INFERENCE_*` variables and a file, parsed once into one frozen object."""

from pilotlight_predictor.config.merge_sources import SettingsError, command_line, parse
from pilotlight_predictor.config.setting_definitions import (
    ModelSettings,
    ObservabilitySettings,
    PerformanceSettings,
    SafeguardSettings,
    ServerSettings,
    Settings,
)
from pilotlight_predictor.config.settings_table import Limits, limits

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

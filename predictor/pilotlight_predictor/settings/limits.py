"""Request limits of a protocol: only those that are set; `/predict` has defaults.

Admission enforces size and rate, ModelVersion.infer values and timeout.
"""

from typing import NamedTuple

from pilotlight_predictor.settings.model import MIB, Settings

PREDICT_MAX_REQUEST_MB = 10.0
PREDICT_TIMEOUT_S = 30.0


class Limits(NamedTuple):
    """Limits of one protocol. None, or 0 for the timeout: no limit."""

    max_bytes: int
    timeout_s: float
    requests_per_minute: int | None
    max_sequence_length: int | None
    messages_per_second: int | None = None  # per streaming connection


def limits(settings: Settings, *, predict: bool = False) -> Limits:
    """Return the limits of the /predict protocol, or those of all others."""
    rate, check = settings.safeguards.rate_limit, settings.safeguards.input_validation
    return Limits(
        max_bytes=_max_bytes(settings, predict),
        timeout_s=settings.performance.inference_timeout_s or (PREDICT_TIMEOUT_S if predict else 0.0),
        requests_per_minute=rate.requests_per_minute if _applies(rate.enabled, predict) else None,
        max_sequence_length=check.max_sequence_length if _applies(check.enabled, predict) else None,
        messages_per_second=rate.messages_per_second if _applies(rate.enabled, predict) else None,
    )


def _max_bytes(settings: Settings, predict: bool) -> int:
    megabytes = settings.safeguards.max_request_size_mb
    if megabytes is not None:
        return int(megabytes * MIB)
    max_bytes = settings.server.http_max_input_size
    return min(max_bytes, int(PREDICT_MAX_REQUEST_MB * MIB)) if predict else max_bytes


def _applies(enabled: bool | None, predict: bool) -> bool:
    return predict if enabled is None else enabled

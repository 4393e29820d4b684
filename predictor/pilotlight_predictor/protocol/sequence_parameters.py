"""Sequence parameters of a request: sequence_id, sequence_start, sequence_end. Pure."""

from typing import Final

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import Parameters, SequencePoint

KEY: Final = "sequence_id"
MAX_ID: Final = 128  # of a string, as in Triton


def sequence_point(parameters: Parameters) -> SequencePoint | None:
    """Return the request's position in its sequence; None without an id, or with 0 or ""."""
    identity = parameters.get(KEY, 0)
    if isinstance(identity, bool) or not isinstance(identity, int | str):
        raise BadRequest(f"parameters.{KEY} = {identity!r}, must be a number or a string")
    if isinstance(identity, int) and not 0 <= identity < 1 << 64:
        raise BadRequest(f"parameters.{KEY} = {identity}, must be from 0 to {(1 << 64) - 1}")
    if isinstance(identity, str) and len(identity) > MAX_ID:
        raise BadRequest(f"parameters.{KEY} has {len(identity)} characters, must be at most {MAX_ID}")
    start, end = (_flag(parameters, key) for key in ("sequence_start", "sequence_end"))
    return SequencePoint(identity, start, end) if identity else None


def _flag(parameters: Parameters, key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        raise BadRequest(f"parameters.{key} = {value!r}, must be true or false")
    return value

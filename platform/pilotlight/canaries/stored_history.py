"""Canary history as targets store it: encoding, size limits, and the lease of one runner. Pure; `now` is an argument.

Targets accept a write only with the latest version (optimistic locking). So a runner with an expired lease finds out
when it writes, which it does before it changes the service.
"""

from datetime import datetime, timedelta
from typing import Final

from msgspec import DecodeError, ValidationError, json
from msgspec.structs import replace

from pilotlight.canaries.canary_state import (
    ENDED,
    MAX_MEASUREMENTS,
    MAX_PAST_CANARIES,
    Canary,
    CanaryCommand,
    CanaryHistory,
)
from pilotlight.errors import Conflict, NotFound, PlatformError
from pilotlight.k8s.timestamps import format_utc, parse_utc
from pilotlight.targets.target import CanaryRecord, Key, service_argument

LEASE_INTERVALS: Final = 3  # policy intervals without renewal after which a lease expires
MIN_LEASE_S: Final = 5.0  # shortest lease: a busy machine may be late
PAST_MEASUREMENTS: Final = 10  # stored per past canary
MAX_STATE_BYTES: Final = 192 * 1024  # of the history; all annotations of a Kubernetes object together may have 256 KiB
MAX_REASON_LENGTH: Final = 1000
MAX_ATTEMPTS: Final = 8  # of a write with conflicts


def decode_history(stored: CanaryRecord | None) -> CanaryHistory:
    """Decode the stored state; empty without one. Raise PlatformError if it cannot be read."""
    if stored is None:
        return CanaryHistory()
    try:
        return json.decode(stored.state, type=CanaryHistory)
    except (DecodeError, ValidationError) as error:
        message = f"the stored state of the canary of {stored.namespace}/{stored.name} cannot be read: {error}"
        raise PlatformError(message, "another version wrote it; roll back with platformctl rollback") from error


def encode_history(history: CanaryHistory) -> str:
    """Encode within the size limit of every target: a state that cannot be written could not even be aborted."""
    current = _truncated(history.current, MAX_MEASUREMENTS) if history.current is not None else None
    history = CanaryHistory(current, tuple(_truncated(each, PAST_MEASUREMENTS) for each in history.past))
    while len(text := json.encode(history)) > MAX_STATE_BYTES and history != (shorter := _without_oldest(history)):
        history = shorter
    return text.decode()


def _truncated(canary: Canary, most: int) -> Canary:
    """Return the canary with its last measurements; queries only with the last one of each check."""
    measurements, seen = [], set()
    for each in reversed(canary.measurements[-most:]):
        query = "" if each.check in seen else each.query
        seen.add(each.check)
        measurements.append(replace(each, query=query, reason=each.reason[:MAX_REASON_LENGTH]))
    return replace(canary, measurements=tuple(reversed(measurements)), reason=canary.reason[:MAX_REASON_LENGTH])


def _without_oldest(history: CanaryHistory) -> CanaryHistory:
    """Drop the oldest past canary, else half of the measurements of the current one."""
    if history.past or history.current is None:
        return replace(history, past=history.past[:-1])
    measurements = history.current.measurements
    return replace(history, current=replace(history.current, measurements=measurements[len(measurements) // 2 :]))


def running_canary(history: CanaryHistory) -> Canary | None:
    """Return the canary that needs a runner; None if none runs."""
    return None if history.current is None or history.current.phase in ENDED else history.current


def require_running(stored: CanaryRecord) -> Canary:
    """Return the running canary. Raise Conflict if it has ended since it was read."""
    canary = running_canary(decode_history(stored))
    if canary is None:
        raise Conflict(f"the canary of {stored.namespace}/{stored.name} has already ended")
    return canary


def with_command(stored: CanaryRecord | None, key: Key, command: CanaryCommand) -> tuple[str, str]:
    """Return the state with a command for the runner, and the version it replaces. Raise NotFound without a running
    canary."""
    history = decode_history(stored)
    canary = running_canary(history)
    if stored is None or canary is None:
        raise no_running_canary(key)
    return encode_history(replace(history, current=replace(canary, command=command))), stored.version


def no_running_canary(key: Key) -> NotFound:
    return NotFound(f"no canary of {'/'.join(key)} runs", f"platformctl canary start {service_argument(key)} -f FILE")


def too_many_conflicts(key: Key) -> Conflict:
    """Return the error after MAX_ATTEMPTS conflicting writes."""
    return Conflict(f"the canary of {'/'.join(key)} keeps changing; retry")


def merge_concurrent(seen: Canary, canary: Canary, theirs: Canary) -> Canary:
    """Merge the result of a tick with concurrent changes in `theirs`: another policy or command. A command that is
    already in `seen` has been handled by the tick."""
    if canary.phase in ENDED:
        return canary
    command = canary.command if theirs.command == seen.command else theirs.command
    return replace(canary, policy=theirs.policy, command=command)


def with_new_canary(history: CanaryHistory, canary: Canary) -> CanaryHistory:
    """Return the history with a new current canary; the previous one becomes past."""
    previous = history.current
    if previous is None:
        return CanaryHistory(canary, history.past)
    past = replace(previous, measurements=previous.measurements[-PAST_MEASUREMENTS:], stratum=None, strata=())
    return CanaryHistory(canary, (past, *history.past)[:MAX_PAST_CANARIES])


def leased_by_other(canary: Canary, holder: str, now: datetime) -> bool:
    """Whether another runner holds an unexpired lease. A renewal in the future (clock skew) counts as valid."""
    if canary.holder in ("", holder) or not canary.renewed_at:
        return False
    lease = max(MIN_LEASE_S, LEASE_INTERVALS * canary.policy.interval_s)
    return now - parse_utc(canary.renewed_at) < timedelta(seconds=lease)


def renew_lease(canary: Canary, holder: str, now: datetime) -> Canary:
    return replace(canary, holder=holder, renewed_at=format_utc(now))


def seconds_between(earlier: str, later: datetime) -> float:
    """Return the seconds between; 0 if the clock was set back."""
    return max(0.0, (later - parse_utc(earlier)).total_seconds()) if earlier else 0.0

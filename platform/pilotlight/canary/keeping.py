"""A ledger as targets keep it: read, written, held by one runner at a time. Pure; the clock is an argument.

Targets keep it as JSON with a version, and take a change only from whoever has seen the last one. So a runner that
was thought dead and is not finds out when it writes, which it does before it changes what runs (runner.py).
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import DecodeError, ValidationError, json
from msgspec.structs import replace

from pilotlight.canary.model import ENDED, KEPT_CANARIES, KEPT_MEASUREMENTS, Canary, Ledger, Wish
from pilotlight.errors import Conflict, NotFound, PlatformError
from pilotlight.targets.target import KeptCanary, Key

SILENT: Final = 3  # intervals without a word after which a holder is thought dead
LEAST_S: Final = 5.0  # of silence: a busy machine is late sometimes
PAST_MEASUREMENTS: Final = 10  # of a canary that another has followed
MOST_BYTES: Final = 192 * 1024  # of the whole; all annotations of a Kubernetes object together may have 256 KiB
LONGEST_REASON: Final = 1000
TRIES: Final = 8  # of a change that others, who write at the same time, may come before


def read(kept: KeptCanary | None) -> Ledger:
    """Empty where nothing is kept."""
    if kept is None:
        return Ledger()
    try:
        return json.decode(kept.state, type=Ledger)
    except (DecodeError, ValidationError) as error:
        message = f"what is kept of the canary of {kept.namespace}/{kept.name} cannot be read: {error}"
        raise PlatformError(message, "another version wrote it; platformctl rollback goes back by hand") from error


def written(ledger: Ledger) -> str:
    """Never longer than any target takes: one that could not be written could not even be aborted."""
    current = _brief(ledger.current, KEPT_MEASUREMENTS) if ledger.current is not None else None
    ledger = Ledger(current, tuple(_brief(each, PAST_MEASUREMENTS) for each in ledger.past))
    while len(text := json.encode(ledger)) > MOST_BYTES and ledger != (shorter := _shorter(ledger)):
        ledger = shorter
    return text.decode()


def _brief(canary: Canary, most: int) -> Canary:
    """Its last measurements; what was asked stands with the last of each check alone."""
    kept, seen = [], set()
    for each in reversed(canary.measurements[-most:]):
        query = "" if each.check in seen else each.query
        seen.add(each.check)
        kept.append(replace(each, query=query, reason=each.reason[:LONGEST_REASON]))
    return replace(canary, measurements=tuple(reversed(kept)), reason=canary.reason[:LONGEST_REASON])


def _shorter(ledger: Ledger) -> Ledger:
    """Without what is oldest; the current one stays, if need be without its measurements but the last."""
    if ledger.past or ledger.current is None:
        return replace(ledger, past=ledger.past[:-1])
    measurements = ledger.current.measurements
    return replace(ledger, current=replace(ledger.current, measurements=measurements[len(measurements) // 2 :]))


def running(ledger: Ledger) -> Canary | None:
    """The one that somebody has to look after."""
    return None if ledger.current is None or ledger.current.phase in ENDED else ledger.current


def living(kept: KeptCanary) -> Canary:
    """The one that runs, of one who has just seen it run."""
    found = running(read(kept))
    if found is None:
        raise Conflict(f"the canary of {kept.namespace}/{kept.name} has ended meanwhile")
    return found


def wished(kept: KeptCanary | None, key: Key, wanted: Wish) -> tuple[str, str]:
    """The state that tells whoever runs the canary of a wish, and the version whose place it takes."""
    ledger = read(kept)
    canary = running(ledger)
    if kept is None or canary is None:
        raise none_runs(key)
    return written(replace(ledger, current=replace(canary, wish=wanted))), kept.version


def none_runs(key: Key) -> NotFound:
    return NotFound(f"no canary of {'/'.join(key)} runs", f"platformctl canary start {typed(key)} -f FILE")


def contested(key: Key) -> Conflict:
    """After as many tries as anybody makes."""
    return Conflict(f"the canary of {'/'.join(key)} is being changed by others all the time; try again")


def typed(key: Key) -> str:
    """As people type it in a command."""
    namespace, name = key
    return name if namespace == "default" else f"{namespace}/{name}"


def merged(seen: Canary, canary: Canary, theirs: Canary) -> Canary:
    """After a tick that began with what it has `seen`, with what others wrote meanwhile: a policy, or another wish. The
    wish that was there from the beginning is not theirs: the tick has seen to it."""
    if canary.phase in ENDED:
        return canary
    return replace(canary, policy=theirs.policy, wish=canary.wish if theirs.wish == seen.wish else theirs.wish)


def begun(ledger: Ledger, canary: Canary) -> Ledger:
    """With another canary; the one before it becomes history."""
    before = ledger.current
    if before is None:
        return Ledger(canary, ledger.past)
    short = replace(before, measurements=before.measurements[-PAST_MEASUREMENTS:], stratum=None, strata=())
    return Ledger(canary, (short, *ledger.past)[:KEPT_CANARIES])


def held_by_another(canary: Canary, holder: str, now: datetime) -> bool:
    """Whether somebody else looks after it and has said so lately. A holder from the future is believed."""
    if canary.holder in ("", holder) or not canary.renewed_at:
        return False
    silence = max(LEAST_S, SILENT * canary.policy.interval_s)
    return now - instant(canary.renewed_at) < timedelta(seconds=silence)


def held(canary: Canary, holder: str, now: datetime) -> Canary:
    return replace(canary, holder=holder, renewed_at=told(now))


def seconds_between(earlier: str, later: datetime) -> float:
    """A clock that was set back adds nothing."""
    return max(0.0, (later - instant(earlier)).total_seconds()) if earlier else 0.0


def told(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)

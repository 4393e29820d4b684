"""Canaries that judge themselves, as verbs look at, follow and steer them. Below `platformctl canary` and `deploy`.

The embedded platform runs its canaries itself, a cluster's `platformctl api` does; where nobody does, whoever waits for
one runs it meanwhile, and another may take over at any moment.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pilotlight.errors import Conflict, NotFound, PlatformError, RolledBack, TimedOut
from platformctl import canary_view, output

if TYPE_CHECKING:
    from pilotlight.canary.model import Canary, Ledger, Wish
    from pilotlight.canary.runner import Runner
    from pilotlight.targets.target import Key, Target

LOOK_S: Final = 0.3
TROUBLE_S: Final = 5.0
TRIES: Final = 8


def ledger(target: "Target", key: "Key") -> "Ledger":
    from pilotlight.canary import keeping

    return keeping.read(target.canary(key))


def running(target: "Target", key: "Key") -> "Canary | None":
    """The one that is being judged; None also where the service, or any memory of it, is not there."""
    from pilotlight.canary import keeping

    try:
        return keeping.running(ledger(target, key))
    except NotFound:
        return None


def follow(target: "Target", key: "Key", ticker: output.Ticker, paused_s: float, *, patient: bool = True) -> "Canary":
    """Until it ends, run from here where nobody else does. Raises RolledBack, and TimedOut when nobody ends a pause.
    Who is not patient waits for no pause that the canary has made itself: PlatformError, or the canary where it has
    done all and only asks to be promoted."""
    first = ledger(target, key).current
    if first is None:
        raise none_runs(key)
    waits = Waiting(target, key, first, paused_s)
    try:
        while (seen := waits.look()).phase not in ("Promoted", "RolledBack", "Superseded"):
            ticker.say(*canary_view.line(seen))
            if not patient and _pauses_itself(seen):
                break
            time.sleep(max(LOOK_S, target.poll_s))
    except KeyboardInterrupt:
        output.note(f"\n{left(target, key)}")
        raise
    finally:
        waits.leave()
        ticker.close()
    return _ended(key, seen)


def left(target: "Target", key: "Key") -> str:
    if target.name == "local":
        return f"nobody waits any more, but it goes on: platformctl canary status {typed(key)} -w"
    return f"its state is kept; unless platformctl api runs it, go on with platformctl canary follow {typed(key)}"


class Waiting:
    """Looks at one canary until it ends, and ticks it where that is due and nobody else does so."""

    def __init__(
        self, target: "Target", key: "Key", canary: "Canary", paused_s: float,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        from pilotlight.canary.runner import Runner

        self._target, self._key, self._seen, self._paused_s = target, key, canary, paused_s
        self._clock, self._sleep = clock, sleep
        self._runner = None if target.name == "local" else Runner(target)
        self._due = 0.0
        self._troubles = 0
        self._paused_at: float | None = None
        self._told = False

    def look(self) -> "Canary":
        """As it is by now; as it was last seen while nobody can tell."""
        try:
            self._seen = self._found()
            if self._runner is not None and self._clock() >= self._due and not self._seen.ended_at:
                self._tick(self._runner)
            self._troubles = 0
        except NotFound:
            raise
        except PlatformError as error:
            self._troubled(error)
        self._check_pause(self._seen)
        return self._seen

    def _found(self) -> "Canary":
        """The one that is waited for, also when another has taken its place since."""
        kept = ledger(self._target, self._key)
        every = (*([kept.current] if kept.current else []), *kept.past)
        found = next((each for each in every if _same(each, self._seen)), None)
        if found is None:
            raise none_runs(self._key)
        return found

    def leave(self) -> None:
        """Never fails: it is what is done last, whatever went wrong before."""
        if self._runner is not None:
            with suppress(PlatformError):
                self._runner.release(self._key)

    def _tick(self, runner: "Runner") -> None:
        after = runner.tick(self._key)
        self._due = self._clock() + runner.pause_s(after or self._seen)
        self._seen = self._found()
        if after is not None and not self._told:
            self._told = True
            output.note("this command runs the canary until it ends; Ctrl-C leaves it as it stands")

    def _troubled(self, error: PlatformError) -> None:
        """A cluster may be away for a while; who never gets through is told so in the end."""
        self._troubles += 1
        if self._troubles > TRIES:
            raise error
        output.note(f"tried again in {TROUBLE_S:g} s: {error}")
        self._sleep(TROUBLE_S)

    def _check_pause(self, found: "Canary") -> None:
        if found.phase != "Paused":
            self._paused_at = None
            return
        if self._paused_at is None:
            self._paused_at = self._clock()
            output.note(f"waits {self._paused_s:g} s for it to go on: {_verbs(self._key)}")
        if self._clock() - self._paused_at >= self._paused_s:
            hint = f"{_verbs(self._key)}, or wait longer: --timeout"
            raise TimedOut(f"the canary of {'/'.join(self._key)} is paused: {found.reason}", hint)


def _same(one: "Canary", other: "Canary") -> bool:
    return (one.revision, one.started_at) == (other.revision, other.started_at)


def _pauses_itself(canary: "Canary") -> bool:
    """Nobody who asked for it knows of it, unlike of a pause by hand; one that is to be ended already is none."""
    from pilotlight.canary.steps import BY_HAND

    return canary.phase == "Paused" and canary.reason != BY_HAND and not canary.wish


def _verbs(key: "Key") -> str:
    return f"platformctl canary resume {typed(key)}, or promote, or abort"


def _ended(key: "Key", canary: "Canary") -> "Canary":
    from pilotlight.canary.steps import ASKS_PROMOTION

    where = "/".join(key)
    if canary.phase == "Paused" and canary.reason != ASKS_PROMOTION:
        message = f"the canary of {where} has paused itself at {canary.weight} %: {canary.reason}"
        raise PlatformError(message, _verbs(key))
    if canary.phase == "RolledBack":
        hint = f"platformctl canary status {typed(key)} shows what was measured"
        raise RolledBack(f"{canary.revision} of {where} was rolled back: {canary.reason}", hint)
    if canary.phase == "Superseded":
        raise PlatformError(f"the canary {canary.revision} of {where} has ended: {canary.reason}")
    return canary


def wish(target: "Target", key: "Key", wanted: "Wish") -> None:
    """Written down for whoever runs it."""
    from pilotlight.canary import keeping

    for _ in range(keeping.TRIES):
        state, version = keeping.wished(target.canary(key), key, wanted)
        with suppress(Conflict):
            target.keep_canary(key, state, version)
            return
    raise keeping.contested(key)


def granted(target: "Target", key: "Key", timeout_s: float, ticker: output.Ticker) -> "Canary":
    """Waits until whoever runs the canary has taken the wish up; done from here where nobody does."""
    from pilotlight.canary.runner import Runner

    until, runner = time.monotonic() + timeout_s, Runner(target) if target.name != "local" else None
    try:
        while (found := _stepped(target, key, runner)).wish:
            ticker.say("Asked", f"{found.wish}; {found.holder or 'nobody'} runs it")
            if time.monotonic() >= until:
                hint = f"platformctl canary follow {typed(key)} runs it from here"
                raise TimedOut(f"nobody has taken up the wish to {found.wish} within {timeout_s:g} s", hint)
            time.sleep(max(LOOK_S, 2 * target.poll_s))
    finally:
        if runner is not None:
            runner.release(key)
    return found


def _stepped(target: "Target", key: "Key", runner: "Runner | None") -> "Canary":
    if runner is not None and running(target, key) is not None:
        runner.tick(key)
    found = ledger(target, key).current
    if found is None:
        raise none_runs(key)
    return found


def none_runs(key: "Key") -> NotFound:
    from pilotlight.canary import keeping

    return keeping.none_runs(key)


def typed(key: "Key") -> str:
    from pilotlight.canary import keeping

    return keeping.typed(key)

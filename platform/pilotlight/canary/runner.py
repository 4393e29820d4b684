"""One tick of one canary: read, hold, look, measure, decide, act, keep. Driven by loop.py, or by a verb that waits.

Every effect may be repeated: what to do is decided from what is kept and from what runs (looking.py), so whoever comes
after a runner that died at any point goes on. Who was slow gives way: right before it changes what runs it says once
more that it holds the canary, and a release is made only of the generation that was looked at. Where either has been
changed by others meanwhile, nothing is done, and everything is looked at anew.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from pilotlight.canary import acting, keeping, moves, steps
from pilotlight.canary.judge import Judgement
from pilotlight.canary.looking import Standing, look, revision_names
from pilotlight.canary.measuring import look_before, measure
from pilotlight.canary.model import Canary, Ledger, Policy
from pilotlight.canary.moves import Finish, Move, Pause, Probe, Resume, RollBack, Wait
from pilotlight.canary.probing import Deadline
from pilotlight.errors import Conflict
from pilotlight.targets.target import KeptCanary, Key, Release, Target

LOOKS: Final = 2  # in one tick, where others changed what was looked at; after that the next tick sees to it
EAGER_S: Final = 1.0  # between looks while the canary is not ready: it may be at any moment


def own_name() -> str:
    """Who holds: this process of this machine, and no other."""
    return f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(3)}"


def begin(target: Target, fresh: Release, stable: Release, policy: Policy, now: datetime) -> Canary:
    """Keeps a canary of a release that was deployed beside the stable one; one that ran before it is superseded."""
    key = (fresh.namespace, fresh.name)
    revision, before = revision_names(fresh, stable)
    canary = Canary(policy, revision, before, fresh.generation, stable.generation, keeping.told(now))
    for _ in range(keeping.TRIES):
        kept = target.canary(key)
        ledger = keeping.read(kept)
        there = keeping.running(ledger)
        if there is not None and there.revision == revision and there.generation >= fresh.generation:
            after = replace(ledger, current=replace(there, policy=policy))  # a runner was quicker to see the release
        else:
            after = keeping.begun(_superseded(ledger, now), canary)
        try:
            target.keep_canary(key, keeping.written(after), kept.version if kept else "")
            return after.current or canary
        except Conflict:
            continue
    raise keeping.contested(key)


def _superseded(ledger: Ledger, now: datetime) -> Ledger:
    current = keeping.running(ledger)
    if current is None:
        return ledger
    ended = moves.applied(current, Finish("Superseded", "another canary was started"), keeping.told(now))
    return replace(ledger, current=ended)


class Runner:
    """Remembers nothing that matters between two ticks; what it remembers only tells how much time has passed."""

    def __init__(
        self, target: Target, holder: str = "", now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._target, self.holder, self._now, self._clock = target, holder or own_name(), now, clock
        self._ticked: dict[Key, tuple[str, float]] = {}  # with the start of the canary: the next one has its own time
        self._measured: dict[Key, float] = {}

    def tick(self, key: Key) -> Canary | None:
        """The canary as it is kept then; None: none runs, or another runner looks after it. Raises Conflict when others
        change it all the time."""
        for _ in range(LOOKS - 1):
            with suppress(Conflict):
                return self._tick(key)
        return self._tick(key)

    def _tick(self, key: Key) -> Canary | None:
        kept = self._target.canary(key)
        canary = keeping.running(keeping.read(kept))
        if kept is None or canary is None or keeping.held_by_another(canary, self.holder, self._now()):
            self._forget(key)
            return None
        begun, seconds = self._clock(), self._passed(key, canary)
        mine = self._hold(kept)
        mine, after, following = self._moved(mine, seconds)
        found = self._kept(mine, canary, after, following)
        shared = after.weight and not canary.weight  # its time counts from then on; what a tick that failed has not
        last = self._clock() if shared else begun  # counted or measured, the next one does
        self._ticked[key] = (canary.started_at if following is None else following.started_at, last)
        if after.measurements != canary.measurements:
            self._measured[key] = begun
        return found

    def release(self, key: Key) -> None:
        """Whoever comes next need not wait until this one is thought dead."""
        kept = self._target.canary(key)
        ledger = keeping.read(kept)
        canary = keeping.running(ledger)
        if kept is not None and canary is not None and canary.holder == self.holder:
            free = replace(ledger, current=replace(canary, holder="", renewed_at=""))
            with suppress(Conflict):  # then somebody else has taken it already
                self._target.keep_canary(key, keeping.written(free), kept.version)

    def pause_s(self, canary: Canary) -> float:
        """Until the next tick is due."""
        return min(canary.policy.interval_s, EAGER_S) if not canary.weight else canary.policy.interval_s

    def _passed(self, key: Key, canary: Canary) -> float:
        """Since the last tick. After another runner's, no more than it may be silent for: nobody watched meanwhile."""
        last = self._ticked.get(key)
        if last is not None and last[0] == canary.started_at:
            return self._clock() - last[1]
        most = keeping.SILENT * canary.policy.interval_s
        return min(keeping.seconds_between(canary.renewed_at, self._now()), most)

    def _forget(self, key: Key) -> None:
        self._ticked.pop(key, None)
        self._measured.pop(key, None)

    def _hold(self, kept: KeptCanary) -> KeptCanary:
        """Says that this runner looks after it. Raises Conflict where anybody has written since."""
        held = replace(keeping.read(kept), current=keeping.held(keeping.living(kept), self.holder, self._now()))
        return self._target.keep_canary(kept.key, keeping.written(held), kept.version)

    def _moved(self, mine: KeptCanary, seconds: float) -> tuple[KeptCanary, Canary, Canary | None]:
        """What is kept by then, the canary after this tick, and the one of a newer release that takes its place."""
        standing = look(self._target, mine.key, keeping.living(mine))
        at = keeping.told(self._now())
        if standing.outcome == "superseded":
            ended = moves.applied(standing.canary, Finish("Superseded", "another document was deployed"), at)
            return self._hold(mine), ended, acting.begun_anew(self._target, standing, at)
        if standing.outcome:
            return mine, self._found_ended(standing, at), None
        canary = steps.passed(standing.canary, seconds, standing.facts)
        judgement = self._judged(mine.key, standing, canary, at)
        if judgement is not None:
            canary = steps.measured(canary, judgement)
        move = steps.next_move(canary, judgement, standing.facts)
        look_before(self._target, standing, move)
        if not isinstance(move, Wait | Pause | Resume):
            mine = self._hold(mine)  # measuring takes its time, and who was silent may have been taken over from
        deadline = Deadline.of_round(self._clock)
        if isinstance(move, Probe) and (why := acting.why_unfit(self._target, standing, deadline)):
            move = Pause(why)
        generation = acting.act(self._target, standing, move, deadline)
        after = replace(moves.applied(canary, move, at), generation=generation)
        return mine, replace(after, renewed_at=keeping.living(mine).renewed_at), None

    def _found_ended(self, standing: Standing, at: str) -> Canary:
        """Its end is there already; whoever made it did not come to write it down."""
        move: Move = Finish("Promoted")
        if standing.outcome == "rolled back":
            move = RollBack(standing.reason)
        return replace(moves.applied(standing.canary, move, at), generation=standing.newest.generation)

    def _judged(self, key: Key, standing: Standing, canary: Canary, at: str) -> Judgement | None:
        """None: nothing is due, or nothing can have been seen yet."""
        last = self._measured.get(key)
        early = last is not None and self._clock() - last < 0.8 * canary.policy.interval_s
        if not canary.weight or early or standing.facts.failed:
            return None
        return measure(self._target, replace_canary(standing, canary), at)

    def _kept(self, mine: KeptCanary, seen: Canary, canary: Canary, following: Canary | None) -> Canary | None:
        """With whatever was wished for since this tick has `seen` it; None where another runner has taken over."""
        for _ in range(keeping.TRIES):
            ledger = replace(keeping.read(mine), current=canary)
            after = keeping.begun(ledger, following) if following is not None else ledger
            try:
                self._target.keep_canary(mine.key, keeping.written(after), mine.version)
                return following or canary
            except Conflict:
                found = self._target.canary(mine.key)
                theirs = keeping.running(keeping.read(found))
                if found is None or theirs is None or theirs.holder != self.holder:
                    return None
                mine, canary = found, keeping.merged(seen, canary, theirs)
        return None


def replace_canary(standing: Standing, canary: Canary) -> Standing:
    return Standing(standing.status, standing.releases, canary, standing.outcome, standing.reason)

"""One tick of one canary: read, lease, observe, measure, decide, act, save. Called by the controller and the CLI.

Every effect may be repeated: decisions follow from the stored state and the observed releases, so another
runner continues after a crash at any point. A slow runner yields: right before it changes the service it renews its
lease, and a release is made only over the observed generation. If either has been changed concurrently, nothing is
done, and the tick starts over.
"""

import dataclasses
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
from pilotlight.canary.block import CanaryPolicy
from pilotlight.canary.judge import Judgement
from pilotlight.canary.looking import RolloutState, observe, revision_names
from pilotlight.canary.measuring import measure, prime_metrics
from pilotlight.canary.model import Canary, CanaryHistory
from pilotlight.canary.moves import Action, Finish, Pause, Resume, RollBack, SendProbes, Wait
from pilotlight.canary.probing import Deadline
from pilotlight.errors import Conflict
from pilotlight.targets.target import CanaryRecord, Key, Release, Target

ATTEMPTS_PER_TICK: Final = 2  # with conflicts; then the next tick tries
NOT_READY_INTERVAL_S: Final = 1.0  # between ticks while the canary is not ready


def runner_identity() -> str:
    """Return the identity of the lease holder: host, process and a random part."""
    return f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(3)}"


def start_canary(target: Target, release: Release, stable: Release, policy: CanaryPolicy, now: datetime) -> Canary:
    """Save a canary of a release that was deployed with the stable one; a running canary is superseded."""
    key = (release.namespace, release.name)
    revision, baseline = revision_names(release, stable)
    canary = Canary(policy, revision, baseline, release.generation, stable.generation, keeping.timestamp(now))
    for _ in range(keeping.MAX_ATTEMPTS):
        stored = target.canary(key)
        history = keeping.decode_history(stored)
        running = keeping.running_canary(history)
        if running is not None and running.revision == revision and running.generation >= release.generation:
            updated = replace(history, current=replace(running, policy=policy))  # a runner has already started it
        else:
            updated = keeping.with_new_canary(_superseded(history, now), canary)
        try:
            target.save_canary(key, keeping.encode_history(updated), stored.version if stored else "")
            return updated.current or canary
        except Conflict:
            continue
    raise keeping.too_many_conflicts(key)


def _superseded(history: CanaryHistory, now: datetime) -> CanaryHistory:
    current = keeping.running_canary(history)
    if current is None:
        return history
    ended = moves.apply_action(current, Finish("Superseded", "another canary was started"), keeping.timestamp(now))
    return replace(history, current=ended)


class CanaryRunner:
    """Runner of canaries of a target. In-memory state only measures elapsed time; all else is stored."""

    def __init__(
        self, target: Target, holder: str = "", now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._target, self.holder, self._now, self._clock = target, holder or runner_identity(), now, clock
        self._ticked: dict[Key, tuple[str, float]] = {}  # start of the canary, and time of its last tick
        self._measured: dict[Key, float] = {}

    def tick(self, key: Key) -> Canary | None:
        """Run one tick and return the stored canary; None: none runs, or another runner holds it. Raise Conflict after
        repeated conflicts."""
        for _ in range(ATTEMPTS_PER_TICK - 1):
            with suppress(Conflict):
                return self._tick(key)
        return self._tick(key)

    def _tick(self, key: Key) -> Canary | None:
        stored = self._target.canary(key)
        canary = keeping.running_canary(keeping.decode_history(stored))
        if stored is None or canary is None or keeping.leased_by_other(canary, self.holder, self._now()):
            self._ticked.pop(key, None)
            self._measured.pop(key, None)
            return None
        begun, seconds = self._clock(), self._elapsed(key, canary)
        leased = self._renew_lease(stored)
        leased, after, successor = self._reconcile(leased, seconds)
        saved = self._save(leased, canary, after, successor)
        # The time of a canary counts from its first weight on. A failed tick sets nothing, so the next one counts both.
        first_weight = after.weight and not canary.weight
        last = self._clock() if first_weight else begun
        self._ticked[key] = (canary.started_at if successor is None else successor.started_at, last)
        if after.measurements != canary.measurements:
            self._measured[key] = begun
        return saved

    def release_lease(self, key: Key) -> None:
        """Release the lease, so that the next runner need not wait for its expiry."""
        stored = self._target.canary(key)
        history = keeping.decode_history(stored)
        canary = keeping.running_canary(history)
        if stored is not None and canary is not None and canary.holder == self.holder:
            released = replace(history, current=replace(canary, holder="", renewed_at=""))
            with suppress(Conflict):  # another runner has taken it over
                self._target.save_canary(key, keeping.encode_history(released), stored.version)

    def tick_interval_s(self, canary: Canary) -> float:
        """Return the seconds until the next tick."""
        return min(canary.policy.interval_s, NOT_READY_INTERVAL_S) if not canary.weight else canary.policy.interval_s

    def _elapsed(self, key: Key, canary: Canary) -> float:
        """Return the seconds since the last tick; after a tick of another runner at most the lease, since nothing was
        observed in between."""
        last = self._ticked.get(key)
        if last is not None and last[0] == canary.started_at:
            return self._clock() - last[1]
        limit = keeping.LEASE_INTERVALS * canary.policy.interval_s
        return min(keeping.seconds_between(canary.renewed_at, self._now()), limit)

    def _renew_lease(self, stored: CanaryRecord) -> CanaryRecord:
        """Renew the lease. Raise Conflict after a concurrent write."""
        canary = keeping.renew_lease(keeping.require_running(stored), self.holder, self._now())
        renewed = replace(keeping.decode_history(stored), current=canary)
        return self._target.save_canary(stored.key, keeping.encode_history(renewed), stored.version)

    def _reconcile(self, leased: CanaryRecord, seconds: float) -> tuple[CanaryRecord, Canary, Canary | None]:
        """Return the stored state, the canary after this tick, and the canary of a newer release that replaces it."""
        state = observe(self._target, leased.key, keeping.require_running(leased))
        at = keeping.timestamp(self._now())
        if state.outcome == "superseded":
            ended = moves.apply_action(state.canary, Finish("Superseded", "another document was deployed"), at)
            return self._renew_lease(leased), ended, acting.restart_superseded(self._target, state, at)
        if state.outcome:
            return leased, self._with_outcome(state, at), None
        canary = steps.add_elapsed(state.canary, seconds, state.conditions)
        judgement = self._measure_if_due(leased.key, state, canary, at)
        if judgement is not None:
            canary = steps.record_judgement(canary, judgement)
        action = steps.next_action(canary, judgement, state.conditions)
        prime_metrics(self._target, state, action)
        if not isinstance(action, Wait | Pause | Resume):
            # Measuring takes time: another runner may have taken over an expired lease.
            leased = self._renew_lease(leased)
        deadline = Deadline.of_round(self._clock)
        if isinstance(action, SendProbes) and (reason := acting.example_rejection(self._target, state, deadline)):
            action = Pause(reason)
        generation = acting.execute(self._target, state, action, deadline)
        after = replace(moves.apply_action(canary, action, at), generation=generation)
        return leased, replace(after, renewed_at=keeping.require_running(leased).renewed_at), None

    def _with_outcome(self, state: RolloutState, at: str) -> Canary:
        """Record an end that is already released but was not saved by its runner."""
        action: Action = Finish("Promoted")
        if state.outcome == "rolled back":
            action = RollBack(state.reason)
        return replace(moves.apply_action(state.canary, action, at), generation=state.newest.generation)

    def _measure_if_due(self, key: Key, state: RolloutState, canary: Canary, at: str) -> Judgement | None:
        """Return the judgement; None if no measurement is due or possible."""
        last = self._measured.get(key)
        early = last is not None and self._clock() - last < 0.8 * canary.policy.interval_s
        if not canary.weight or early or state.conditions.failed:
            return None
        return measure(self._target, dataclasses.replace(state, canary=canary), at)

    def _save(self, leased: CanaryRecord, seen: Canary, canary: Canary, successor: Canary | None) -> Canary | None:
        """Save the canary, merged with commands since `seen`; None if another runner has taken over."""
        for _ in range(keeping.MAX_ATTEMPTS):
            history = replace(keeping.decode_history(leased), current=canary)
            updated = keeping.with_new_canary(history, successor) if successor is not None else history
            try:
                self._target.save_canary(leased.key, keeping.encode_history(updated), leased.version)
                return successor or canary
            except Conflict:
                stored = self._target.canary(leased.key)
                theirs = keeping.running_canary(keeping.decode_history(stored))
                if stored is None or theirs is None or theirs.holder != self.holder:
                    return None
                leased, canary = stored, keeping.merge_concurrent(seen, canary, theirs)
        return None

"""One tick of one canary: read, lease, observe, measure, decide, act, save. Called by the controller and the CLI.

Every effect may be repeated, so another runner continues after a crash at any point. A slow runner yields: right before
it changes the service it renews its lease, and a release is made only over the observed generation; after a concurrent
change of either the tick starts over.
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

from pilotlight.canaries import actions, next_action, observation, stored_history
from pilotlight.canaries.actions import (
    Action,
    Finish,
    Pause,
    Promote,
    Resume,
    RollBack,
    SendProbes,
    SetWeight,
    Wait,
    restart,
)
from pilotlight.canaries.analysis import Judgement
from pilotlight.canaries.canary_state import Canary
from pilotlight.canaries.probes import Deadline, example_error, send_probes
from pilotlight.errors import Conflict, PlatformError
from pilotlight.k8s.timestamps import format_utc
from pilotlight.release import apply
from pilotlight.release import history as release_history
from pilotlight.spec.canary_policy import CanaryPolicy
from pilotlight.targets.target import CanaryRecord, Key, Release, ServiceStatus, Target, find_revision

ATTEMPTS_PER_TICK: Final = 2  # with conflicts; then the next tick tries
NOT_READY_INTERVAL_S: Final = 1.0  # between ticks while the canary is not ready


def start_canary(target: Target, release: Release, stable: Release, policy: CanaryPolicy, now: datetime) -> Canary:
    """Save a canary of a release that was deployed with the stable one; a running canary is superseded."""
    key = (release.namespace, release.name)
    revision, baseline = observation.revision_names(release, stable)
    canary = Canary(policy, revision, baseline, release.generation, stable.generation, format_utc(now))
    for _ in range(stored_history.MAX_ATTEMPTS):
        stored = target.canary(key)
        history = stored_history.decode_history(stored)
        running = stored_history.running_canary(history)
        if running is not None and running.revision == revision and running.generation >= release.generation:
            updated = replace(history, current=replace(running, policy=policy))  # a runner has already started it
        else:
            if running is not None:
                end = Finish("Superseded", "a newer canary was started")
                history = replace(history, current=actions.apply_action(running, end, format_utc(now)))
            updated = stored_history.with_new_canary(history, canary)
        try:
            target.save_canary(key, stored_history.encode_history(updated), stored.version if stored else "")
            return updated.current or canary
        except Conflict:
            continue
    raise stored_history.too_many_conflicts(key)


class CanaryRunner:
    """Runner of canaries of a target. In-memory state only measures elapsed time; all else is stored."""

    def __init__(
        self, target: Target, holder: str = "", now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.holder = holder or f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(3)}"
        self._target, self._now, self._clock = target, now, clock
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
        canary = stored_history.running_canary(stored_history.decode_history(stored))
        if stored is None or canary is None or stored_history.leased_by_other(canary, self.holder, self._now()):
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
        history = stored_history.decode_history(stored)
        canary = stored_history.running_canary(history)
        if stored is not None and canary is not None and canary.holder == self.holder:
            released = replace(history, current=replace(canary, holder="", renewed_at=""))
            with suppress(Conflict):  # another runner has taken it over
                self._target.save_canary(key, stored_history.encode_history(released), stored.version)

    def tick_interval_s(self, canary: Canary) -> float:
        return min(canary.policy.interval_s, NOT_READY_INTERVAL_S) if not canary.weight else canary.policy.interval_s

    def _elapsed(self, key: Key, canary: Canary) -> float:
        """Return the seconds since the last tick; after a tick of another runner at most the lease, since nothing was
        observed in between."""
        last = self._ticked.get(key)
        if last is not None and last[0] == canary.started_at:
            return self._clock() - last[1]
        limit = stored_history.LEASE_INTERVALS * canary.policy.interval_s
        return min(stored_history.seconds_between(canary.renewed_at, self._now()), limit)

    def _renew_lease(self, stored: CanaryRecord) -> CanaryRecord:
        """Renew the lease. Raise Conflict after a concurrent write."""
        canary = stored_history.renew_lease(stored_history.require_running(stored), self.holder, self._now())
        renewed = replace(stored_history.decode_history(stored), current=canary)
        return self._target.save_canary(stored.key, stored_history.encode_history(renewed), stored.version)

    def _reconcile(self, leased: CanaryRecord, seconds: float) -> tuple[CanaryRecord, Canary, Canary | None]:
        """Return the stored state, the canary after this tick, and the canary of a newer release that replaces it."""
        state = observation.observe(self._target, leased.key, stored_history.require_running(leased))
        at = format_utc(self._now())
        if state.outcome == "superseded":
            ended = actions.apply_action(state.canary, Finish("Superseded", "another manifest was deployed"), at)
            return self._renew_lease(leased), ended, restart_superseded(self._target, state, at)
        if state.outcome:  # already released, but not saved by its runner
            end: Action = RollBack(state.reason) if state.outcome == "rolled back" else Finish("Promoted")
            ended = actions.apply_action(state.canary, end, at)
            return leased, replace(ended, generation=state.newest.generation), None
        canary = next_action.add_elapsed(state.canary, seconds, state.conditions)
        judgement = self._measure_if_due(leased.key, state, canary, at)
        if judgement is not None:
            canary = next_action.record_judgement(canary, judgement)
        action = next_action.next_action(canary, judgement, state.conditions)
        if isinstance(action, SendProbes) and any(each.name == canary.revision for each in state.status.adapters):
            action = Pause(
                f"too few requests to judge the adapter {canary.revision}; send requests to it, or promote it"
            )
        observation.prime_metrics(self._target, state, action)
        if not isinstance(action, Wait | Pause | Resume):
            # Measuring takes time: another runner may have taken over an expired lease.
            leased = self._renew_lease(leased)
        deadline = Deadline.of_round(self._clock)
        stable = find_revision(state.status, state.canary.stable)
        if isinstance(action, SendProbes) and stable is not None:
            example = state.canary.policy.example
            if reason := example_error(self._target, state.status, stable, example, deadline):
                action = Pause(reason)
        generation = execute(self._target, state, action, deadline)
        after = replace(actions.apply_action(canary, action, at), generation=generation)
        return leased, replace(after, renewed_at=stored_history.require_running(leased).renewed_at), None

    def _measure_if_due(self, key: Key, state: observation.RolloutState, canary: Canary, at: str) -> Judgement | None:
        """Return the judgement; None if no measurement is due or possible."""
        last = self._measured.get(key)
        # 0.8: a tick may come a little early.
        early = last is not None and self._clock() - last < 0.8 * canary.policy.interval_s
        if not canary.weight or early or state.conditions.failed:
            return None
        return observation.measure(self._target, dataclasses.replace(state, canary=canary), at)

    def _save(self, leased: CanaryRecord, seen: Canary, canary: Canary, successor: Canary | None) -> Canary | None:
        """Save the canary, merged with commands since `seen`; None if another runner has taken over."""
        for _ in range(stored_history.MAX_ATTEMPTS):
            history = replace(stored_history.decode_history(leased), current=canary)
            updated = stored_history.with_new_canary(history, successor) if successor is not None else history
            try:
                self._target.save_canary(leased.key, stored_history.encode_history(updated), leased.version)
                return successor or canary
            except Conflict:
                stored = self._target.canary(leased.key)
                theirs = stored_history.running_canary(stored_history.decode_history(stored))
                if stored is None or theirs is None or theirs.holder != self.holder:
                    return None
                leased, canary = stored, stored_history.merge_concurrent(seen, canary, theirs)
        return None


def apply_release(
    target: Target, wanted: apply.ReleaseRequest, expected_generation: int | None = None
) -> ServiceStatus:
    """Apply the release of one service; manual traffic overrides end with it. Raise Conflict if its generation is not
    `expected_generation`; None: any."""
    prepared, _ = apply.prepare(wanted, target)
    if expected_generation is None:
        ((_, status),) = apply.apply(wanted, prepared, target)
    else:
        status = target.apply(replace(prepared[0].release, expected=expected_generation), reset=wanted.reset)
    overridden = any(each.get("traffic") for each in status.overrides.values())
    return target.traffic((status.namespace, status.name), None) if overridden else status


def execute(target: Target, state: observation.RolloutState, action: Action, deadline: Deadline) -> int:
    """Execute an action and return the generation of the service. The deadline is that of probes."""
    if isinstance(action, SetWeight):
        return _set_weight(target, state, action.percent)
    if isinstance(action, Promote):
        return _set_weight(target, state, 100)
    if isinstance(action, Finish) and action.phase == "Promoted":
        request = release_history.redeploy_request(state.newest, None, "canary promoted", newest=state.newest)
        return _apply(target, state, request)
    if isinstance(action, RollBack):
        note = f"{observation.ROLLED_BACK_NOTE}: {action.reason}"
        request = release_history.redeploy_request(state.stable(), None, note, newest=state.newest)
        return _apply(target, state, request)
    if isinstance(action, SendProbes):
        _send_probes(target, state, action, deadline)
    return state.newest.generation


def restart_superseded(target: Target, state: observation.RolloutState, at: str) -> Canary | None:
    """Restart the canary for a newer release with a stable one; None if that release has all traffic."""
    try:
        revision, stable = observation.revision_names(state.newest, state.stable())
    except PlatformError:
        return None
    if release_history.receives_all_traffic(state.newest):
        return None
    generation = _set_weight(target, state, 0)
    return replace(restart(state.canary, revision, generation, at), stable=stable)


def _set_weight(target: Target, state: observation.RolloutState, percent: int) -> int:
    note = f"canary {percent} %"
    request = release_history.redeploy_request(state.newest, percent, note, newest=state.newest, judged=True)
    return _apply(target, state, request)


def _apply(target: Target, state: observation.RolloutState, wanted: apply.ReleaseRequest) -> int:
    return apply_release(target, wanted, state.newest.generation).generation


def _send_probes(target: Target, state: observation.RolloutState, action: SendProbes, deadline: Deadline) -> None:
    requested = ((state.canary.revision, action.count), (state.canary.stable, action.baseline))
    variants = [(find_revision(state.status, name), count) for name, count in requested if count]
    running = [(revision, count) for revision, count in variants if revision is not None]
    for index, (revision, count) in enumerate(running):
        part = deadline.part(len(running) - index)
        with suppress(PlatformError):  # the next measurement reports the missing requests and pauses the canary
            send_probes(target, state.status, revision, state.canary.policy.example, count, part)

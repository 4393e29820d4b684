"""Who gets which GPU, and who leaves for it: cases of one decision, and properties of many in a row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight.targets.local.scaling.gpu_admission import (
    SHORTEST_S,
    SWAPS,
    Admission,
    Claim,
    Eviction,
    Gpu,
    Holder,
    Rules,
    Waiter,
    admit,
    idle_residence,
    idle_time,
    impossible,
    patience,
    residence,
)

GIB = 1 << 30
RULES = Rules(residence_s=10.0, patience_s=30.0)


def holder(name: str, memory: int = 8, gpus: tuple[int, ...] = (0,), used: float = 0.0, **fields: object) -> Holder:
    """A model that has been ready since 0, idle since `used`, and may leave."""
    values: dict[str, object] = {"evictable": True, "ready_at": 0.0, "last_used": used} | fields
    return Holder(name, f"default/{name}", gpus, memory * GIB, **values)  # type: ignore[arg-type]


def waiter(name: str, memory: int = 8, claim: Claim = "busy", since: float = 100.0, **fields: object) -> Waiter:
    values: dict[str, object] = {"number": 1, "since": since, "claim": claim} | fields
    return Waiter(name, f"default/{name}", memory=memory * GIB, **values)  # type: ignore[arg-type]


def decide(
    holders: Sequence[Holder], *waiting: Waiter, gpus: int = 1, memory: int = 24, at: float = 100.0
) -> Admission:
    return admit(at, [Gpu(index, memory * GIB) for index in range(gpus)], holders, waiting, RULES)


def evicted(decision: Admission) -> list[str]:
    return [each.replica for each in decision.evictions]


def test_models_share_a_gpu_as_far_as_its_memory_goes() -> None:
    decision = decide([holder("a")], waiter("b"), waiter("c", since=101.0), waiter("d", since=102.0, claim="none"))
    assert decision.admitted == {"b": (0,), "c": (0,)}
    waits = "waiting for 8Gi of a GPU held by default/a, default/b, default/c (1 of 1 in use)"
    assert decision.reasons == {"d": waits}


def test_the_fullest_gpu_that_still_fits_is_chosen_and_whole_ones_stay_whole() -> None:
    assert decide([holder("a", gpus=(1,))], waiter("b"), gpus=3).admitted == {"b": (1,)}
    assert decide([holder("a", gpus=(1,))], waiter("b", memory=0), gpus=3).admitted == {"b": (0,)}
    assert decide([holder("a", memory=0)], waiter("b", memory=1, claim="none")).admitted == {}


def test_memory_that_other_programs_use_is_not_given_away() -> None:
    used = [Gpu(0, 24 * GIB, outside=20 * GIB), Gpu(1, 24 * GIB, outside=10 * GIB)]
    assert admit(0, used, [], [waiter("a")], RULES).admitted == {"a": (1,)}
    full = admit(0, used[:1], [], [waiter("a")], RULES)
    assert full.reasons == {"a": "waiting for 8Gi of a GPU held by other programs (0 of 1 in use)"}


def test_the_least_recently_used_leaves_and_no_more_than_necessary() -> None:
    held = [holder("new", used=90.0), holder("old", used=58.0), holder("middle", used=70.0)]
    assert decide(held, waiter("b")).evictions == [Eviction("old", "default/b needs 8Gi of GPU 0, idle for 42 s")]
    assert evicted(decide(held, waiter("b", memory=12))) == ["old", "middle"]
    sizes = [holder("small", memory=4, used=10.0), holder("large", memory=20, used=20.0)]
    assert evicted(decide(sizes, waiter("b", memory=20))) == ["large"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"evictable": False}, "pinned, or with a lower bound"),
        ({"ready_at": 95.0}, "within its residence time"),
        ({"ready_at": 80.0, "swap_s": 25.0}, "its load took longer than it has served"),
        ({"ready_at": 99.7, "swap_s": 0.4}, "it has served for less than its swap took"),
        ({"swap_s": 0.4, "used": 99.5}, "its last request is nearer than two swaps"),
        ({"swap_s": 5.0, "used": 97.5}, "its last request is nearer than the longest idle time"),
        ({"ready_at": 60.0, "swap_s": 0.4, "residence_s": 60.0}, "within its declared residence time"),
        ({"ready_at": None}, "still loading"),
        ({"busy": True}, "busy, and the other has not waited long"),
    ],
)
def test_a_holder_stays(fields: dict[str, Any], why: str) -> None:
    decision = decide([holder("a", memory=20, **fields)], waiter("b"))
    assert (decision.evictions, decision.admitted) == ([], {}), why


def test_a_busy_one_leaves_once_requests_of_another_have_waited_too_long() -> None:
    busy = [holder("a", memory=20, busy=True, used=130.0)]
    assert not decide(busy, waiter("b"), at=129.0).evictions
    late = decide(busy, waiter("b"), at=130.0)
    assert late.evictions == [Eviction("a", "default/b has waited 30 s for 8Gi of GPU 0")]
    assert not decide(busy, waiter("b", claim="idle"), at=900.0).evictions


def test_one_that_wakes_quickly_leaves_earlier() -> None:
    quick = holder("a", memory=20, swap_s=0.2, ready_at=98.0, used=99.5)
    assert evicted(decide([quick], waiter("b"))) == ["a"]
    assert not evicted(decide([quick._replace(busy=True)], waiter("b"), at=105.9))
    assert evicted(decide([quick._replace(busy=True)], waiter("b"), at=106.0)) == ["a"]
    declared = holder("a", memory=20, swap_s=0.1, residence_s=0.5, ready_at=99.0, used=99.0)
    assert evicted(decide([declared], waiter("b"))) == ["a"]


def test_the_decision_tells_when_the_next_holder_may_leave() -> None:
    """Without that, who waits would wait for the next tick."""
    idle = [holder("a", memory=12, swap_s=0.2, used=99.9), holder("b", memory=12, swap_s=0.5, used=99.8)]
    decision = decide(idle, waiter("c"))
    assert (decision.evictions, decision.next_at) == ([], pytest.approx(100.3))
    assert evicted(decide(idle, waiter("c"), at=100.31)) == ["a"]
    busy = [holder("a", memory=20, swap_s=0.2, busy=True, used=100.0)]
    assert decide(busy, waiter("b")).next_at == pytest.approx(106.0)
    assert decide(busy, waiter("b", claim="idle")).next_at is None


def test_a_holder_is_not_idle_for_longer_than_its_requests_are_known() -> None:
    """The gateway reports each second: who had no request at its last report may have had many since."""
    held = holder("a", memory=20, swap_s=0.2, used=99.0)
    assert evicted(decide([held._replace(seen_at=99.5)], waiter("b"))) == ["a"]
    unknown = decide([held._replace(seen_at=99.3)], waiter("b"))
    assert (unknown.evictions, unknown.next_at) == ([], pytest.approx(102.4))
    assert evicted(decide([held._replace(seen_at=99.3)], waiter("b"), at=102.5)) == ["a"]


def test_a_replica_is_blocked_only_if_no_holder_will_ever_leave() -> None:
    held = [holder("a", memory=20, busy=True)]
    assert not decide(held, waiter("b")).blocked
    assert not decide([held[0]._replace(busy=False, ready_at=None)], waiter("b")).blocked
    assert not decide([held[0]._replace(leaving=True)], waiter("b")).blocked
    assert not decide(held, waiter("b", memory=20), waiter("c", memory=20)).blocked  # c has its turn after b
    assert decide([held[0]._replace(evictable=False)], waiter("b")).blocked == {"b"}


@given(swap_s=st.floats(0, 1000), more_s=st.floats(0, 1000), longest_s=st.floats(SHORTEST_S, 100))
def test_residence_and_patience_follow_the_cost_of_a_swap_within_bounds(
    swap_s: float, more_s: float, longest_s: float
) -> None:
    """Swaps take at most the 11th part of a GPU's time, or half of it where they take longer than the longest time."""
    rules = Rules(longest_s, 3 * longest_s)
    cheap, dear = holder("a", swap_s=swap_s), holder("b", swap_s=swap_s + more_s)
    assert SHORTEST_S <= residence(cheap, rules) <= max(longest_s, swap_s)
    assert residence(cheap, rules) >= min(SWAPS * swap_s, longest_s)
    assert swap_s <= residence(cheap, rules) <= residence(dear, rules)
    assert patience(cheap, rules) <= patience(dear, rules) <= rules.patience_s
    unknown = holder("c")
    assert (residence(unknown, rules), patience(unknown, rules)) == rules


def test_no_second_one_leaves_while_a_first_is_on_its_way_out() -> None:
    held = [holder("a", memory=12, leaving=True), holder("b", memory=12)]
    assert decide(held, waiter("c")).evictions == []
    assert evicted(decide(held, waiter("c"), waiter("d", since=101.0))) == ["b"]


def test_a_small_model_does_not_overtake_a_large_one_that_waits_for_the_same_gpu() -> None:
    held = [holder("a", memory=12, busy=True)]
    large, small = waiter("large", memory=20), waiter("small", memory=4, since=101.0)
    assert decide(held, large, small).admitted == {}
    assert decide(held, large, small, gpus=2).admitted == {"large": (1,), "small": (1,)}
    pinned = [holder("a", memory=12, evictable=False)]
    assert decide(pinned, large, small).admitted == {"small": (0,)}  # the large one cannot come whatever the small does


def test_a_parked_model_needs_its_own_gpu_or_moves_where_that_cannot_be_freed() -> None:
    parked = waiter("p", gpus=(1,))
    assert evicted(decide([holder("a", 20, (1,))], parked, gpus=2)) == ["a"]
    stuck = decide([holder("a", 20, (1,), evictable=False)], parked, gpus=2)
    assert (stuck.evictions, stuck.moves) == ([], ["p"])
    assert stuck.reasons == {"p": "parked, and waiting for its GPU held by default/a"}
    full = [holder("a", 20, (1,), evictable=False), holder("b", 20, (0,), evictable=False)]
    assert decide(full, parked, gpus=2).moves == []


def test_what_can_never_fit_is_known_at_once() -> None:
    assert impossible(2, 0, [Gpu(0)]) == "needs 2 GPUs, but this machine has 1"
    assert impossible(1, 0, []) == "needs 1 GPU, but this machine has none"
    gpus = [Gpu(0, 24 * GIB), Gpu(1, 8 * GIB)]
    assert impossible(1, 30 * GIB, gpus) == "needs 30Gi of GPU memory, but the largest GPU of this machine has 24Gi"
    assert impossible(2, 9 * GIB, gpus) == "needs 9Gi of GPU memory, but 2 GPUs of this machine have 8Gi"
    assert impossible(2, 8 * GIB, gpus) == ""


@dataclass
class Machine:
    """Models on GPUs of 24 GiB through time: each tick admits, starts (a load takes time), drains and serves."""

    gpus: int
    sizes: Sequence[int]
    pinned: frozenset[int]
    demand: Callable[[int, int], bool]  # whether a model has requests at a second
    load_s: int = 4
    drain_s: int = 3
    swap_s: float = 4.0  # as measured
    holders: dict[str, Holder] = field(default_factory=dict)
    waiting: dict[str, Waiter] = field(default_factory=dict)
    ready_in: dict[str, int] = field(default_factory=dict)
    gone_in: dict[str, int] = field(default_factory=dict)
    longest: int = 0
    swaps: int = 0

    def tick(self, now: int) -> None:
        self._progress(now)
        for index, size in enumerate(self.sizes):
            name, wanted = f"m{index}", self.demand(index, now)
            if name in self.holders:
                used = now if wanted else self.holders[name].last_used
                self.holders[name] = self.holders[name]._replace(busy=wanted, last_used=float(used))
            elif wanted and name not in self.waiting:
                self.waiting[name] = waiter(name, size, since=float(now))
        decision = admit(now, [Gpu(i, 24 * GIB) for i in range(self.gpus)], list(self.holders.values()),
                         list(self.waiting.values()), RULES)  # fmt: skip
        self._apply(decision, now)
        for gpu in range(self.gpus):
            assert sum(each.memory for each in self.holders.values() if gpu in each.gpus) <= 24 * GIB

    def _progress(self, now: int) -> None:
        for name in [name for name, at in self.ready_in.items() if at <= now]:
            del self.ready_in[name]
            self.holders[name] = self.holders[name]._replace(ready_at=float(now), swap_s=self.swap_s)
        for name in [name for name, at in self.gone_in.items() if at <= now]:
            del self.gone_in[name]
            del self.holders[name]
            self.swaps += 1

    def _apply(self, decision: Admission, now: int) -> None:
        for name, gpus in decision.admitted.items():
            asked = self.waiting.pop(name)
            self.longest = max(self.longest, now - int(asked.since))
            free = int(name[1:]) not in self.pinned
            self.holders[name] = Holder(name, name, gpus, asked.memory, evictable=free, last_used=float(now))
            self.ready_in[name] = now + self.load_s
        for eviction in decision.evictions:
            victim = self.holders[eviction.replica]
            assert victim.evictable
            assert victim.ready_at is not None
            least = residence(victim, RULES) if victim.busy else idle_residence(victim, RULES)
            assert now - victim.ready_at >= least
            assert victim.busy or now - victim.last_used >= idle_time(victim)
            waited = max(now - each.since for each in self.waiting.values())
            assert not victim.busy or waited >= patience(victim, RULES)
            self.holders[eviction.replica] = victim._replace(leaving=True)
            self.gone_in[eviction.replica] = now + self.drain_s


@settings(deadline=None, max_examples=25)
@given(
    gpus=st.integers(1, 3),
    sizes=st.lists(st.integers(2, 24), min_size=2, max_size=7),
    requests=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 300), st.integers(1, 120)), max_size=30),
    pinned=st.sets(st.integers(0, 6), max_size=1),
)
def test_no_gpu_is_over_its_capacity_and_no_one_leaves_before_it_may(
    gpus: int, sizes: list[int], requests: list[tuple[int, int, int]], pinned: set[int]
) -> None:
    """The machine asserts it of each decision, whatever arrives when."""

    def demand(model: int, now: int) -> bool:
        return any(index == model and start <= now < start + length for index, start, length in requests)

    machine = Machine(gpus, sizes, frozenset(pinned), demand)
    for now in range(420):
        machine.tick(now)


@settings(deadline=None, max_examples=12)
@given(
    gpus=st.integers(1, 2),
    sizes=st.lists(st.integers(2, 24), min_size=2, max_size=8),
    swap_s=st.sampled_from([0.05, 0.2, 0.5, 4.0]),
)
def test_no_model_waits_without_bound_where_all_are_busy_all_the_time(
    gpus: int, sizes: list[int], swap_s: float
) -> None:
    """Each one before it in the queue costs at most a residence, a drain and a load; its own patience comes once."""
    load_s, drain_s = (4, 3) if swap_s > 1 else (1, 1)
    machine = Machine(gpus, sizes, frozenset(), lambda model, now: True, load_s, drain_s, swap_s)
    for now in range(500):
        machine.tick(now)
    any_holder = holder("a", swap_s=swap_s)
    turn = residence(any_holder, RULES) + machine.drain_s + machine.load_s + 2
    bound = patience(any_holder, RULES) + len(sizes) * turn
    still = max((500 - each.since for each in machine.waiting.values()), default=0)
    assert max(machine.longest, still) <= bound


def test_two_models_that_take_turns_do_not_thrash() -> None:
    """Requests alternate every 4 s on a GPU that holds one; each stays as long as its swap takes, then they swap."""
    machine = Machine(1, [20, 20], frozenset(), lambda model, now: now // 4 % 2 == model)
    for now in range(600):
        machine.tick(now)
    assert 30 <= machine.swaps <= 600 / (machine.swap_s + machine.drain_s + machine.load_s)
    quick = Machine(1, [20, 20], frozenset(), lambda model, now: now % 2 == model, load_s=1, drain_s=1, swap_s=0.2)
    for now in range(600):
        quick.tick(now)
    assert 100 <= quick.swaps <= 600 / (SWAPS * 0.2)

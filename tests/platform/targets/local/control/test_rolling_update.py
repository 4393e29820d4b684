"""Who gets requests and how replicas are replaced: the same moves that Knative and a Deployment make."""

import pytest

from pilotlight.targets.local.control.replicas import ReplicaCounts, rolling_update
from pilotlight.targets.local.control.service_state import effective_shares, reachable_revisions
from pilotlight.targets.local.manifests.service_spec_types import Probe
from pilotlight.targets.local.scaling.decision import select_for_removal
from pilotlight.targets.local.supervisor.replica_record import Checks, Replica, State
from pilotlight.targets.target import Share

OLD = (Share("iris-1", 100),)
NEW = (Share("iris-2", 100),)
SPLIT = (Share("iris-2", 20), Share("iris-1", 80, "prev"))


def test_traffic_moves_only_once_the_new_revision_has_been_ready() -> None:
    assert effective_shares([NEW, OLD], {"iris-1"}) == OLD
    assert effective_shares([NEW, OLD], {"iris-1", "iris-2"}) == NEW


def test_a_split_waits_for_every_revision_in_it() -> None:
    assert effective_shares([SPLIT, OLD], {"iris-1"}) == OLD
    assert effective_shares([SPLIT, OLD], {"iris-1", "iris-2"}) == SPLIT


def test_a_second_failed_deploy_still_leads_to_the_revision_that_once_answered() -> None:
    newest = (Share("iris-3", 100),)
    assert effective_shares([newest, NEW, OLD], {"iris-1"}) == OLD


def test_a_first_deploy_gets_its_requests_at_once_so_that_they_are_held() -> None:
    assert effective_shares([NEW], set()) == NEW
    assert effective_shares([], set()) == ()


def test_a_tag_keeps_a_revision_reachable_without_any_share() -> None:
    shares = (Share("a", 100), Share("b", 0, "next"), Share("c", 0))
    assert reachable_revisions(shares) == {"a", "b"}


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (ReplicaCounts(0, 0), ReplicaCounts(4, 4), (1, 4)),  # one more than wanted may run
        (ReplicaCounts(1, 0), ReplicaCounts(4, 4), (1, 4)),  # nothing is given up before it answers
        (ReplicaCounts(1, 1), ReplicaCounts(4, 4), (1, 3)),
        (ReplicaCounts(1, 1), ReplicaCounts(3, 3), (2, 3)),
        (ReplicaCounts(4, 3), ReplicaCounts(1, 1), (4, 1)),
        (ReplicaCounts(4, 4), ReplicaCounts(1, 1), (4, 0)),
        (ReplicaCounts(0, 0), ReplicaCounts(4, 2), (1, 2)),  # two of the old serve nobody, so they make room
        (ReplicaCounts(4, 4), ReplicaCounts(0, 0), (4, 0)),
    ],
)
def test_four_replicas_are_replaced_one_by_one_within_a_surge_of_one(
    new: ReplicaCounts, old: ReplicaCounts, expected: tuple[int, int]
) -> None:
    assert rolling_update(4, new, old, surge=1, unavailable=0) == expected


def test_without_room_the_old_replicas_end_before_the_new_ones_start() -> None:
    assert rolling_update(2, ReplicaCounts(0, 0), ReplicaCounts(2, 2), 0, 0) == (0, 0)
    assert rolling_update(2, ReplicaCounts(0, 0), ReplicaCounts(0, 0), 0, 0) == (2, 0)


@pytest.mark.parametrize("desired", range(1, 8))
@pytest.mark.parametrize("surge", [1, 2])
def test_a_rollout_always_ends_and_never_falls_below_what_is_wanted(desired: int, surge: int) -> None:
    new, old = 0, desired
    for _ in range(50):
        wanted_new, kept_old = rolling_update(desired, ReplicaCounts(new, new), ReplicaCounts(old, old), surge, 0)
        new, old = max(new, wanted_new), kept_old
        assert new + old >= desired
        assert new + old <= desired + surge + 1
    assert (new, old) == (desired, 0)


def replica(name: str, state: State, started: str) -> Replica:
    return Replica(name, "default", "iris", "w", "r", Checks(Probe("/", 1)), state=state, started_at=started)


def test_what_does_not_serve_is_stopped_first_then_the_youngest() -> None:
    fleet = [
        replica("oldest", "ready", "1"), replica("young", "ready", "3"), replica("middle", "ready", "2"),
        replica("booting", "starting", "4"), replica("broken", "unready", "0"),
    ]  # fmt: skip
    assert [found.id for found in select_for_removal(fleet, 4)] == ["broken", "booting", "young", "middle"]
    assert select_for_removal(fleet, -1) == []

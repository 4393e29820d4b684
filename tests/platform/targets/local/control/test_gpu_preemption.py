"""Whose GPU goes to a service that is asked."""

from tests.platform.targets.local.runs import revision, revision_of, running, service, workload

from pilotlight.targets.local.scaling.types import Kpa
from pilotlight.targets.local.supervisor.gpus import GpuRequest, Holder, select_victims

HELD = {"a-1": Holder("default/a", (0,)), "b-1": Holder("default/b", (1,)), "c-1": Holder("default/c", (2, 3))}


def test_a_parked_replica_needs_those_that_have_its_very_devices() -> None:
    assert select_victims(GpuRequest((1,)), HELD, 4, {"a-1", "b-1", "c-1"}, ()) == ["b-1"]
    assert select_victims(GpuRequest((1, 2)), HELD, 4, {"b-1", "c-1"}, ()) == ["b-1", "c-1"]


def test_nobody_parks_where_that_would_not_be_enough() -> None:
    assert select_victims(GpuRequest((1, 2)), HELD, 4, {"b-1"}, ()) == []
    assert select_victims(GpuRequest((), 3), HELD, 4, {"a-1", "b-1"}, ()) == []


def test_a_new_replica_takes_any_and_no_more_than_it_needs() -> None:
    assert select_victims(GpuRequest((), 1), HELD, 4, {"a-1", "b-1"}, ()) == ["a-1"]
    assert select_victims(GpuRequest((), 1), HELD, 5, {"a-1"}, ()) == []  # one is free
    assert select_victims(GpuRequest((), 2), HELD, 5, {"b-1", "c-1"}, ()) == ["b-1"]


def test_no_second_one_parks_while_a_first_is_on_its_way_out() -> None:
    assert select_victims(GpuRequest((), 1), HELD, 4, {"b-1"}, {"a-1"}) == []
    assert select_victims(GpuRequest((), 2), HELD, 4, {"b-1"}, {"a-1"}) == ["b-1"]
    assert select_victims(GpuRequest((0, 1)), HELD, 4, {"b-1"}, {"a-1"}) == ["b-1"]


def test_only_who_is_not_asked_and_may_fall_to_zero_yields() -> None:
    run = running(service(workload(revision(scaling=Kpa(min_scale=0)))))
    unit = run.unit_of(revision_of(run), 0.0)
    assert unit.is_preemptible({})
    assert not unit.is_preemptible({"minReplicas": 1})
    unit.traffic.in_flight = 1
    assert not unit.is_preemptible({})
    unit.traffic.in_flight, unit.traffic.waiting = 0, 1
    assert not unit.is_preemptible({})

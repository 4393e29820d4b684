"""The beat of the autoscaler, with a clock of its own: who is asked, what is taken over, and when it rests."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import pytest
from tests.platform.targets.local.runs import replica, revision, revision_of, running, service, workload

from pilotlight.gateway.control_link import BackendReport
from pilotlight.k8s.cron import Schedule
from pilotlight.targets.local.control import autoscaler
from pilotlight.targets.local.control.autoscaler import Autoscaler
from pilotlight.targets.local.control.metrics_source import MetricsSource
from pilotlight.targets.local.control.replicas import ReplicaSet
from pilotlight.targets.local.control.service_state import (
    ServiceRun,
    Unit,
    activation_replicas,
    initial_replicas,
    min_replicas,
)
from pilotlight.targets.local.scaling.types import Decision, Fixed, Hpa, Kpa, Metric, Scaling, ScalingRules
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.targets.target import Share

NAME = "iris-predictor-1"


class Crew:
    """A fleet that starts nothing and notes that it was asked to."""

    def __init__(self) -> None:
        self.replicas: list[Replica] = []
        self.adjusted = 0

    def active(self, run: ServiceRun) -> Sequence[Replica]:
        return self.replicas

    living = active

    def reconcile(self, run: ServiceRun, now: float) -> None:
        self.adjusted += 1


class Silence:
    """Nobody asks for CPU or queries."""

    def values(self, unit: Unit, replicas: Sequence[Replica], now: float) -> dict[str, float | None]:
        return {}

    def refresh(self, fleet: ReplicaSet, runs: Iterable[ServiceRun], now: float) -> None:
        pass


class Stage:
    def __init__(self, run: ServiceRun) -> None:
        self.run, self.crew = run, Crew()
        self.decisions: list[Decision] = []
        self.scaler = Autoscaler(
            lambda: [run], cast(ReplicaSet, self.crew), cast(MetricsSource, Silence()), lambda: 0.0,
            lambda run, unit, decision: self.decisions.append(decision),
        )  # fmt: skip

    @property
    def unit(self) -> Unit:
        return self.run.unit_of(revision_of(self.run), 0.0)

    def beat(self, now: float, concurrency: float = 0.0) -> bool:
        if concurrency:
            load = int(concurrency)
            self.unit.traffic.report(
                BackendReport("default", "iris", "iris-predictor", NAME, concurrency, load, 0, 0, load), now
            )
        return self.scaler.scale(self.run, now)


def staged(scaling: Scaling, **fields: bool) -> Stage:
    return Stage(running(service(workload(revision(scaling=scaling))), **fields))


def asleep(scaling: Scaling) -> Stage:
    stage = staged(scaling)
    stage.unit.desired = 0
    return stage


def test_a_parked_replica_needs_no_beat_and_counts_for_none() -> None:
    stage = asleep(Kpa(min_scale=0))
    stage.crew.replicas = [replica(state="parked")]
    assert not stage.beat(10.0)
    assert not stage.decisions


def test_one_that_gave_its_gpu_away_stays_at_zero_until_it_is_asked() -> None:
    stage = staged(Kpa(min_scale=0))
    stage.crew.replicas = [replica()]
    stage.beat(0.0, concurrency=2.0)
    assert stage.unit.desired > 0
    stage.scaler.preempt(stage.run, stage.unit, "default/other needs GPU 0, idle for 3 s")
    assert stage.decisions[-1].reason == "0: preempted, default/other needs GPU 0, idle for 3 s"
    stage.crew.replicas = [replica(state="parking")]
    stage.unit.traffic.report(BackendReport("default", "iris", "iris-predictor", NAME, 0.0, 0, 0, 0, 0), 1.0)
    stage.beat(1.0)
    assert stage.unit.desired == 0
    stage.scaler.wake(stage.run, stage.unit, 1)
    stage.beat(2.0)
    assert stage.unit.desired > 0


def test_one_that_must_leave_its_gpu_does_not_come_back_before_it_has_left() -> None:
    stage = staged(Kpa(min_scale=0))
    stage.crew.replicas = [replica(gpus=(0,))]
    stage.beat(0.0, concurrency=2.0)
    stage.scaler.preempt(stage.run, stage.unit, "default/other has waited 30 s for GPU 0")
    stage.scaler.wake(stage.run, stage.unit, 1)
    assert stage.beat(1.0)
    assert stage.unit.desired == 0
    stage.crew.replicas = [replica(state="parked", gpus=(0,))]
    stage.beat(2.0)
    assert stage.unit.desired == 1


def test_one_that_gave_its_gpu_away_comes_back_when_its_bounds_say_so() -> None:
    stage = staged(Kpa(min_scale=0))
    stage.scaler.preempt(stage.run, stage.unit, "default/other")
    stage.run.overrides = {"iris-predictor": {"minReplicas": 1}}
    stage.beat(1.0)
    assert stage.unit.desired == 1


def test_a_waiting_request_wakes_without_a_beat_and_tells_why() -> None:
    stage = asleep(Kpa())
    stage.scaler.wake(stage.run, stage.unit, 1)
    assert stage.unit.desired == 1
    assert [decision.reason for decision in stage.decisions] == ["1: a request is waiting"]
    stage.scaler.wake(stage.run, stage.unit, 2)
    assert len(stage.decisions) == 1


def test_as_many_are_woken_as_the_activation_scale_or_a_bound_by_hand_says() -> None:
    stage = asleep(Kpa(activation_scale=3))
    stage.scaler.wake(stage.run, stage.unit, 1)
    assert stage.unit.desired == 3
    stage = asleep(Kpa())
    stage.run.overrides = {"iris-predictor": {"minReplicas": 2}}
    stage.scaler.wake(stage.run, stage.unit, 1)
    assert stage.unit.desired == 2


def test_whoever_paused_scaling_at_zero_is_not_overruled_by_a_request() -> None:
    stage = asleep(Hpa(0, 3, (), ScalingRules(()), ScalingRules(()), keda=True, paused_replicas=0))
    stage.scaler.wake(stage.run, stage.unit, 1)
    assert stage.unit.desired == 0


def test_load_becomes_replicas_within_the_bounds_and_only_changes_are_told() -> None:
    stage = staged(Kpa(target=2.0, utilization=1.0, window_s=6.0, max_scale=3))
    stage.crew.replicas = [replica(own="a")]
    for second in range(1, 8):
        assert stage.beat(float(second), concurrency=8.0)
    assert stage.unit.desired == 3
    assert stage.unit.decision is not None
    assert "maximum 3" in stage.unit.decision.reason
    assert [decision.desired for decision in stage.decisions] == [3]
    assert stage.crew.adjusted == 7


def test_without_load_it_falls_to_zero_and_the_beat_rests() -> None:
    stage = staged(Kpa(window_s=6.0, grace_s=0.0))
    stage.crew.replicas = [replica(own="a")]
    beats = 0
    while stage.unit.desired and beats < 30:
        beats += 1
        stage.beat(float(beats))
    assert stage.unit.desired == 0
    assert stage.decisions[-1].reason == "0: no requests for 6 s"
    stage.crew.replicas = []
    assert not stage.beat(float(beats + 1))


def test_a_service_at_zero_is_not_asked_at_all() -> None:
    stage = asleep(Kpa())
    assert not stage.beat(1.0)
    assert stage.unit.decision is None
    assert not stage.unit.traffic.samples


def test_a_minimum_by_hand_is_taken_up_at_zero() -> None:
    stage = asleep(Kpa())
    stage.run.overrides = {"iris-predictor": {"minReplicas": 1}}
    assert stage.beat(1.0)
    assert stage.unit.desired == 1


def test_a_revision_that_nothing_leads_to_goes_to_zero_and_says_so() -> None:
    run = running(service(workload(revision(scaling=Kpa(min_scale=2)))))
    stage = Stage(run)
    second = revision("iris-predictor-2")
    run.update(2, service(workload(second, Share(second.name, 100))), 1.0)
    run.revisions[second.name].ready_once = True
    stage.beat(2.0)
    old = run.units[NAME]
    assert old.desired == 0
    assert old.decision is not None
    assert old.decision.reason == "0: it has no traffic and no tag"


def test_how_many_a_start_an_activation_and_the_minimum_are() -> None:
    hpa = Hpa(2, 5, (Metric("cpu", "cpu", "Utilization", 50),), ScalingRules(()), ScalingRules(()))
    table = {Kpa(): (1, 1, 0), Kpa(initial_scale=3, min_scale=2): (3, 2, 2), Fixed(4): (4, 4, 4), hpa: (2, 2, 2)}
    for scaling, (first, woken, low) in table.items():
        assert (initial_replicas(scaling), activation_replicas(scaling), min_replicas(scaling)) == (
            first,
            woken,
            low,
        ), scaling


def test_the_beat_goes_on_though_metrics_cannot_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def refresh(silence: Silence, fleet: ReplicaSet, runs: Iterable[ServiceRun], now: float) -> None:
        asked.append(now)
        raise OSError("Too many open files")

    async def play() -> None:
        stage = staged(Fixed(1))
        stage.scaler.start()
        stage.scaler.resume()
        async with asyncio.timeout(30):
            while len(asked) < 2:
                await asyncio.sleep(0.01)
        await stage.scaler.close()

    monkeypatch.setattr(Silence, "refresh", refresh)
    monkeypatch.setattr(autoscaler, "TICK_S", 0.01)
    asyncio.run(play())


def test_a_service_with_a_schedule_is_decided_at_zero_too() -> None:
    """Without requests nothing would resume the loop when the schedule starts."""
    daily = Metric("schedule", "cron", "AverageValue", 1.0, schedule=Schedule("0 8 * * *", "0 18 * * *", "UTC", 2))
    rules = Hpa(0, 5, (daily,), ScalingRules(()), ScalingRules(()), keda=True)
    for scaling, needed in ((rules, True), (replace(rules, metrics=()), False)):
        stage = staged(scaling)
        stage.unit.desired = 0
        assert stage.beat(1.0) is needed

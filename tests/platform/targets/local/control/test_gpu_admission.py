"""What a decision about GPUs learns of services: who may leave, for whom, and how much memory each needs."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.doc_pages import page_section
from tests.eventually import eventually_async
from tests.platform.targets.local.runs import container, replica, revision, revision_of, running, service, workload

from pilotlight.targets.local.control.gpu_admission import (
    MARGIN,
    MEASURE_EVERY_S,
    GpuAdmission,
    needed_memory,
)
from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.scaling.gpu_admission import (
    DEFAULT_RULES,
    IDLE_AT_LEAST_S,
    IDLE_AT_MOST_S,
    SHORTEST_S,
    Admission,
)
from pilotlight.targets.local.scaling.types import Kpa
from pilotlight.targets.local.supervisor.gpus import GpuFacts
from pilotlight.targets.local.supervisor.replica_record import Replica

GIB = 1 << 30
PAGE = page_section("docs/how-to/gpus.md", "Several models on one GPU")


def run_of(**fields: Any) -> ServiceRun:
    spec = revision(scaling=Kpa(min_scale=0))
    spec = replace(spec, container=replace(container(), gpus=1, gpu_memory=8 * GIB, **fields))
    return running(service(workload(spec)))


def facts(run: ServiceRun, asked: Replica, *others: Replica) -> GpuFacts:
    supervisor, publisher = SimpleNamespace(replicas=lambda: [asked, *others]), SimpleNamespace(retiring=set())
    nothing = cast(Any, None)
    admission = GpuAdmission(
        {run.key: run}, cast(Any, supervisor), cast(Any, publisher), nothing, nothing, lambda: 50.0, nothing, nothing
    )
    return admission.facts(asked)


def test_only_an_unpinned_service_that_may_scale_to_zero_leaves() -> None:
    run = run_of()
    assert facts(run, replica()).evictable
    run.overrides = {"iris-predictor": {"minReplicas": 1}}
    assert not facts(run, replica()).evictable
    assert not facts(run_of(gpu_pinned=True), replica()).evictable


@pytest.mark.parametrize(("field", "value"), [("in_flight", 1), ("waiting", 1)])
def test_a_service_with_requests_is_busy(field: str, value: float) -> None:
    run = run_of()
    traffic = run.unit_of(revision_of(run), 0.0).traffic
    traffic.last_used = 46.0
    assert not facts(run, replica()).busy
    setattr(traffic, field, value)
    assert facts(run, replica()).busy


def test_requests_that_no_replica_can_take_claim_busy_holders_and_more_replicas_only_what_is_free() -> None:
    run = run_of()
    traffic = run.unit_of(revision_of(run), 0.0).traffic
    waits = replica(state="waiting")
    assert facts(run, waits).claim == "none"
    traffic.waiting = 2
    assert facts(run, waits).claim == "busy"
    assert facts(run, waits, replica()).claim == "idle"
    traffic.waiting = 0
    revision_of(run).ready_once = False
    assert facts(run, waits).claim == "idle"  # a deploy


def test_measured_memory_replaces_what_was_declared_but_never_shares_a_whole_gpu() -> None:
    run = run_of()
    assert facts(run, replica()).memory == 8 * GIB
    revision_of(run).gpu_peak = 2 * GIB
    assert facts(run, replica()).memory == int(2.1 * GIB)
    assert [needed_memory(0, 0), needed_memory(0, 100), needed_memory(None, 100)] == [0, 105, 0]


def test_the_cost_of_a_swap_is_that_of_its_last_parking_and_of_its_start_before() -> None:
    run = run_of(gpu_residence=4.0)
    unknown = facts(run, replica())
    assert (unknown.swap_s, unknown.residence_s) == (None, 4.0)
    assert facts(run, msgspec.structs.replace(replica(), swap_s=0.2)).swap_s == 0.2


def test_the_page_names_the_times_and_margins() -> None:
    residence, patience = DEFAULT_RULES
    for words in (
        f"between {SHORTEST_S:g} and {residence:g} s", f"have waited for {patience:g} s",
        "three times as long" if patience == 3 * residence else "",
        f"at least {IDLE_AT_LEAST_S:g} and at most {IDLE_AT_MOST_S:g} s",
        f"measured every {MEASURE_EVERY_S:g} s", f"its peak plus {100 * (MARGIN - 1):.0f} %",
    ):  # fmt: skip
        assert words in PAGE


def test_a_decision_is_taken_again_at_the_moment_when_a_holder_may_leave() -> None:
    """The autoscaler's tick comes up to a second later."""
    decisions = [Admission(next_at=50.02), Admission()]
    supervisor = SimpleNamespace(replicas=list, admit=lambda: decisions.pop(0))
    nothing = cast(Any, None)

    async def play() -> None:
        admission = GpuAdmission({}, cast(Any, supervisor), nothing, nothing, nothing, lambda: 50.0, nothing, nothing)
        admission.reconcile()
        await eventually_async(lambda: not decisions, "a second decision")
        admission.close()

    asyncio.run(play())

"""What a person is told, from what is known: phases, model states and conditions."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from tests.platform.targets.local.control.statuses import conditions, single, told
from tests.platform.targets.local.runs import replica, revision, revision_of, running, service, workload

from pilotlight.errors import Conflict, UsageError
from pilotlight.gateway.control_link import BackendReport
from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.control.status import (
    ServiceView,
    check_bounds,
    check_name,
    check_target,
    model_state,
    moved_bounds,
    status_of,
    url_of,
    with_transition_times,
)
from pilotlight.targets.local.scaling.types import Kpa
from pilotlight.targets.target import ReplicaStatus, Share

ONE, TWO = "iris-predictor-1", "iris-predictor-2"


def updated() -> ServiceRun:
    """A second revision was deployed and has not answered yet."""
    run = single()
    run.update(2, service(workload(revision(TWO))), 5.0)
    return run


@pytest.mark.parametrize("name", ["v1", "v2", "api", "metrics", "console", "healthz"])
def test_the_gateways_own_paths_are_no_names(name: str) -> None:
    with pytest.raises(UsageError, match="choose another name"):
        check_name(("default", name))
    with pytest.raises(UsageError, match="choose another name"):
        check_name((name, "iris"))
    check_name(("default", f"{name}-of-mine"))


def test_a_service_has_the_target_of_its_revisions_and_stays_there() -> None:
    on_docker = service(workload(revision(target="docker")))
    assert (told(single()).target, told(running(on_docker)).target) == ("local", "docker")
    check_target(None, on_docker)
    check_target(running(on_docker), on_docker)
    with pytest.raises(Conflict, match="default/iris runs on local, delete it there first") as refused:
        check_target(single(), on_docker)
    assert refused.value.hint == "platformctl delete iris --target local"
    ending = single()
    ending.deleting = True
    check_target(ending, on_docker)


def test_the_default_namespace_may_be_left_out() -> None:
    assert url_of("http://x", ("default", "iris")) == "http://x/iris"
    assert url_of("http://x", ("team", "iris")) == "http://x/team/iris"


def test_a_service_without_replicas_that_has_answered_is_on_standby_and_well() -> None:
    run = single()
    run.unit_of(revision_of(run), 0.0).desired = 0
    status = told(run)
    assert (status.phase, status.message) == ("Standby", "")
    assert status.revisions[0].model_state == "Standby"
    assert set(conditions(status).values()) == {"True"}


def test_a_service_whose_replica_is_parked_says_so_and_is_well() -> None:
    run = single()
    run.unit_of(revision_of(run), 0.0).desired = 0
    status = told(run, replica(state="parked"))
    assert (status.phase, status.message) == ("Parked", "")
    assert status.revisions[0].model_state == "Parked"
    assert set(conditions(status).values()) == {"True"}


def test_a_parked_service_that_waits_for_its_gpu_says_for_whom() -> None:
    run = single()
    run.unit_of(revision_of(run), 0.0).desired = 1
    status = told(run, replica(state="parked", reason="parked, and waiting for its GPU held by default/two"))
    assert (status.phase, status.message) == (
        "Progressing", "a replica is starting (parked, and waiting for its GPU held by default/two)",
    )  # fmt: skip


def test_a_service_with_a_ready_replica_is_ready() -> None:
    status = told(single(), replica())
    assert status.phase == "Ready"
    assert (status.revisions[0].ready, status.revisions[0].model_state) == (1, "Loaded")


@pytest.mark.parametrize("desired", [1, 0])
def test_a_service_is_not_called_ready_before_the_gateway_has_its_route(desired: int) -> None:
    run = single()
    run.unit_of(revision_of(run), 0.0).desired = desired
    view = ServiceView(run, [replica()] if desired else [], 10.0, "http://127.0.0.1:8090")
    status = status_of(view)
    assert (status.phase, status.message) == ("Progressing", "the gateway is applying its route")
    assert (conditions(status)["IngressReady"], conditions(status)["Ready"]) == ("Unknown", "Unknown")
    applied = status_of(replace(view, confirmed={ONE: 100}))
    assert applied.phase == ("Ready" if desired else "Standby")
    assert set(conditions(applied).values()) == {"True"}


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:9100"), ("unix:/run/x", "unix:/run/x/9100")])
def test_a_service_that_is_not_exposed_is_ready_at_the_address_of_its_replica(host: str, url: str) -> None:
    run = running(service(workload(revision()), exposed=False))
    own = replica(port=9100)
    own = structs.replace(own, checks=structs.replace(own.checks, host=host))
    status = status_of(ServiceView(run, [own], 10.0, "http://127.0.0.1:8090", https="example.org:8443"))
    assert (status.phase, status.url, status.urls) == ("Ready", url, {"http": url})
    assert set(conditions(status).values()) == {"True"}
    assert status.revisions[0].url == ""


def test_a_service_that_wakes_is_progressing_though_it_is_proven() -> None:
    run = single()
    run.unit_of(revision_of(run), 0.0).desired = 1
    assert told(run, replica(state="starting")).phase == "Progressing"


def test_a_first_start_is_progressing_and_says_what_it_waits_for() -> None:
    waiting = replica(state="waiting", reason="waiting for a GPU held by other-1")
    status = told(single(ready=False), waiting)
    assert (status.phase, status.message) == (
        "Progressing", f"{ONE} is starting (waiting for a GPU held by other-1)",
    )  # fmt: skip
    assert conditions(status) == {
        "PredictorReady": "Unknown", "LatestDeploymentReady": "Unknown", "IngressReady": "True", "Ready": "Unknown",
    }  # fmt: skip


def test_a_replica_in_a_queue_is_pending_and_not_starting() -> None:
    queued = replica(state="pending", reason="PENDING: Resources", launcher="slurm", handle="17", own="iris-1")
    status = told(single(ready=False), queued)
    assert (status.phase, status.message) == ("Progressing", f"{ONE} is pending (PENDING: Resources)")
    row = status.revisions[0]
    assert (row.starting, row.model_state) == (1, "Pending")
    assert row.replicas == (ReplicaStatus("iris-1", "pending", "", "17", "PENDING: Resources"),)
    assert model_state(revision_of(single()), [queued, replica(state="starting")], 2) == "Loading"


def test_a_failure_says_more_than_the_queue_that_its_next_attempt_waits_in() -> None:
    run = single(ready=False)
    found = revision_of(run)
    found.failure, found.failures, found.start_failed = "no credentials were found", 2, True
    row = told(run, replica(state="pending", reason="PENDING", launcher="slurm")).revisions[0]
    assert (row.model_state, row.reason) == ("FailedToLoad", "no credentials were found")


def test_the_lower_bound_is_not_zero_where_a_request_cannot_wait_for_a_replica() -> None:
    job, container = (replace(revision(), target=target) for target in ("slurm", "docker"))
    check_bounds(service(workload(container)), {"minReplicas": 0})
    check_bounds(service(workload(job)), {"minReplicas": 1, "maxReplicas": 3})
    with pytest.raises(UsageError, match="min is 0, but slurm cannot queue requests at zero"):
        check_bounds(service(workload(job)), {"minReplicas": 0})


@pytest.mark.parametrize(
    ("bounds", "sentences"),
    [
        ({"minReplicas": 5}, ["max replicas raised to 5: the manifest has 3, below --min 5"]),
        ({"maxReplicas": 1}, ["min replicas lowered to 1: the manifest has 2, above --max 1"]),
        ({"minReplicas": 3}, []),
        ({"minReplicas": 5, "maxReplicas": 6}, []),
        ({}, []),
    ],
)
def test_a_bound_of_the_manifest_that_gives_way_is_named(bounds: dict[str, int], sentences: list[str]) -> None:
    spec = service(workload(revision(scaling=Kpa(min_scale=2, max_scale=3))))
    assert list(moved_bounds(spec, bounds)) == sentences
    assert not list(moved_bounds(service(workload(revision(scaling=Kpa()))), {"minReplicas": 5})), "it has no max"


def test_one_crash_may_be_an_accident_and_two_are_a_failure() -> None:
    run = single(ready=False)
    found = revision_of(run)
    found.failure, found.failures = "exited with 1", 1
    assert told(run).phase == "Progressing"
    found.failures = 2
    status = told(run)
    assert (status.phase, status.message) == ("Failed", f"{ONE}: exited with 1")
    assert conditions(status) == {
        "PredictorReady": "False", "LatestDeploymentReady": "False", "IngressReady": "True", "Ready": "False",
    }  # fmt: skip


def test_a_crash_after_readiness_is_no_failure_to_load_and_says_when_the_next_start_is() -> None:
    run = single()
    found = revision_of(run)
    found.failure, found.failures, found.next_start = "ended by signal 9", 3, 13.5
    run.unit_of(found, 10.0).desired = 1
    status = told(run)
    row = status.revisions[0]
    assert (status.phase, row.model_state, row.retry_in_s) == ("Progressing", "Pending", 3.5)
    assert row.reason == "ended by signal 9"
    found.start_failed = True
    assert told(run).revisions[0].model_state == "FailedToLoad"


def test_a_model_that_refuses_to_load_has_failed_at_once() -> None:
    run = single(ready=False)
    found = revision_of(run)
    found.failure, found.failures, found.load_failed = "no such file", 1, True
    assert told(run).phase == "Failed"


def test_an_update_that_fails_leaves_the_service_degraded_with_the_name_of_who_still_serves() -> None:
    run = updated()
    found = revision_of(run, TWO)
    found.failure, found.deadline_exceeded = "no such file", True
    status = told(run, replica())
    assert (status.phase, status.message) == ("Degraded", f"{TWO}: no such file; {ONE} keeps serving")
    assert [(row.name, row.percent) for row in status.revisions] == [(TWO, 0), (ONE, 100)]


def test_an_update_moves_the_share_only_when_the_new_revision_has_answered() -> None:
    run = updated()
    assert {row.name: row.percent for row in told(run, replica()).revisions} == {ONE: 100, TWO: 0}
    revision_of(run, TWO).ready_once = True
    assert {row.name: row.percent for row in told(run, replica(), replica(TWO)).revisions} == {ONE: 0, TWO: 100}
    assert [row.name for row in told(run, replica(TWO)).revisions] == [TWO]


def test_a_replica_that_came_down_leaves_the_others_serving_degraded() -> None:
    run = single(min_scale=2)
    run.unit_of(revision_of(run), 0.0).desired = 2
    status = told(run, replica(), replica(state="starting", reason="liveness probe failed"))
    assert (status.phase, status.message) == ("Degraded", f"{ONE}: liveness probe failed")


def test_a_service_whose_next_replica_is_in_a_queue_is_ready_and_scales() -> None:
    run = single(min_scale=2)
    run.unit_of(revision_of(run), 0.0).desired = 2
    queued = replica(state="pending", reason="PENDING (Resources)", launcher="slurm", handle="17", own="iris-2")
    status = told(run, replica(), queued)
    assert (status.phase, status.message) == ("Ready", f"{ONE} scales from 1 to 2: PENDING (Resources)")
    revision_of(run).failure = "exit code 1"  # of the one that it replaces
    assert told(run, replica(), queued).phase == "Degraded"


def test_a_service_that_is_deleted_is_stopping() -> None:
    run = single()
    run.deleting = True
    assert told(run, replica(state="draining")).phase == "Stopping"


@pytest.mark.parametrize(
    ("states", "ready_once", "failure", "state"),
    [
        ([], False, "", "Pending"),
        (["waiting"], False, "", "Pending"),
        (["starting"], False, "", "Loading"),
        (["waiting", "starting"], True, "", "Loading"),
        (["unready"], True, "", "Loading"),
        (["ready", "starting"], True, "", "Loaded"),
        (["parking"], True, "", "Parked"),
        (["parked", "ready"], True, "", "Loaded"),
        ([], True, "", "Standby"),
        ([], False, "no such file", "FailedToLoad"),
        (["starting"], False, "no such file", "Loading"),
    ],
)
def test_the_state_of_a_model(states: list[Any], ready_once: bool, failure: str, state: str) -> None:
    run = single(ready=ready_once)
    found = revision_of(run)
    found.failure, found.start_failed = failure, bool(failure)
    assert model_state(found, [replica(state=one) for one in states], 0) == state


def test_figures_are_of_the_revisions_own_requests() -> None:
    run = single()
    log = run.unit_of(revision_of(run), 0.0).traffic
    counts = [0] * 20
    counts[7], counts[10] = 3, 1  # three up to 100 ms, one up to 300 ms
    report = BackendReport(
        "default", "iris", "iris-predictor", ONE, 0.5, 4, 1, 0, 0, cold_starts=2, latencies=tuple(counts)
    )
    log.report(report, 9.0)
    seen = told(run, replica()).revisions[0]
    assert (seen.requests, seen.error_percent, seen.cold_starts) == (4, 25.0, 2)
    assert seen.p50_ms == pytest.approx(50 + 50 * 2 / 3)
    assert told(run, replica(), now=400.0).revisions[0].requests == 0  # of the last five minutes


def test_shares_and_tags_are_those_that_hold() -> None:
    run = single()
    split = (Share(ONE, 80, "prev"), Share(TWO, 20, "latest"))
    run.update(2, service(workload(revision(TWO), *split)), 5.0)
    assert {row.name: (row.percent, row.tags) for row in told(run, replica()).revisions} == {
        ONE: (100, ()), TWO: (0, ()),
    }  # fmt: skip
    revision_of(run, TWO).ready_once = True
    assert {row.name: (row.percent, row.tags) for row in told(run, replica(), replica(TWO)).revisions} == {
        ONE: (80, ("prev",)), TWO: (20, ("latest",)),
    }  # fmt: skip


def test_a_condition_is_dated_by_its_last_change() -> None:
    run = single(ready=False)
    first = with_transition_times(told(run, replica(state="starting")), {}, "10:00")
    known = {condition.type: condition for condition in first.conditions}
    revision_of(run).ready_once = True
    later = with_transition_times(told(run, replica()), known, "10:05")
    assert {condition.type: condition.since for condition in later.conditions} == {
        "PredictorReady": "10:05", "LatestDeploymentReady": "10:05", "IngressReady": "10:00", "Ready": "10:05",
    }  # fmt: skip


def test_each_component_has_a_condition_of_its_own() -> None:
    spec = service(
        workload(revision("iris-router-1", "iris-router")), workload(revision("iris-engine-1", "iris-engine"))
    )
    run = running(spec)
    revision_of(run, "iris-engine-1").ready_once = False
    status = told(run, replica("iris-router-1"))
    assert conditions(status)["RouterReady"] == "True"
    assert conditions(status)["EngineReady"] == "Unknown"
    assert conditions(status)["Ready"] == "Unknown"


@pytest.mark.parametrize(
    ("led", "told_of"),
    [((0, 0), {}), ((8100, 0), {"port": "http://127.0.0.1:8100"}), ((8100, 8101), {"grpc": "127.0.0.1:8101"})],
)
def test_a_port_of_its_own_is_told_once_it_leads_to_the_service(led: tuple[int, int], told_of: dict[str, str]) -> None:
    run = single()
    run.ports = {"http": 8100, "grpc": 8101}
    urls = status_of(ServiceView(run, (), 10.0, "http://127.0.0.1:8090", None, led)).urls
    assert urls["http"] == "http://127.0.0.1:8090/iris"
    assert told_of.items() <= urls.items()
    assert len(urls) == 2 + sum(map(bool, led))  # by path, by host, by the ports that lead here


def test_with_https_the_address_is_told_and_grpc_is_told_to_have_tls() -> None:
    run = single()
    run.ports = {"http": 8100, "grpc": 8101}
    view = ServiceView(run, (), 10.0, "http://127.0.0.1:8090", None, (8100, 8101), "0.0.0.0:8443")
    urls = status_of(view).urls
    assert urls["https"] == "https://0.0.0.0:8443/iris"
    assert urls["grpcs"] == "0.0.0.0:8101"
    assert urls["port"] == "http://127.0.0.1:8100"
    assert "grpc" not in urls

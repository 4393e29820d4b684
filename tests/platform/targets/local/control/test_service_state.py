"""A service over its releases: which shares hold, what must run, what is remembered and what is forgotten."""

from tests.platform.targets.local.runs import revision, revision_of, running, service, workload

from pilotlight.targets.local.control.service_state import REVISION_HISTORY_LIMIT, ServiceRun
from pilotlight.targets.local.scaling.types import Fixed, Hpa, Kpa, ScalingRules
from pilotlight.targets.target import Share

WORK = "iris-predictor"


def release(run: ServiceRun, number: int, *shares: Share, now: float = 0.0, ready: bool = False) -> None:
    newest = revision(f"{WORK}-{number}")
    run.update(number, service(workload(newest, *shares)), now)
    run.revisions[newest.name].ready_once = ready


def percents(run: ServiceRun) -> dict[str, int]:
    return {share.revision: share.percent for share in run.shares(WORK)}


def needed(run: ServiceRun) -> set[str]:
    return run.required_revisions(run.spec.workload(WORK))


def test_shares_stay_until_the_new_revision_has_answered() -> None:
    run = running(service(workload(revision())))
    release(run, 2)
    assert percents(run) == {f"{WORK}-1": 100}
    assert needed(run) == {f"{WORK}-1", f"{WORK}-2"}
    revision_of(run, f"{WORK}-2").ready_once = True
    assert percents(run) == {f"{WORK}-2": 100}
    assert needed(run) == {f"{WORK}-2"}


def test_a_restored_revision_that_is_deployed_again_starts_anew_and_its_first_answers_are_to_come() -> None:
    run = running(service(workload(revision())))
    state = revision_of(run)
    state.restored, state.verification, state.answer_failure = True, "failing", "all 500"
    run.add_revision(revision(), 50.0)
    assert (state.restored, state.verification) == (True, "failing")  # its replicas go on
    state.ready_once = False
    run.add_revision(revision(), 60.0)
    assert (state.restored, state.verification, state.answer_failure) == (False, "unknown", "")


def test_a_release_on_top_of_one_that_never_answered_leaves_the_last_good_one_serving() -> None:
    run = running(service(workload(revision())))
    release(run, 2)
    release(run, 3)
    assert percents(run) == {f"{WORK}-1": 100}
    assert f"{WORK}-2" not in needed(run)


def test_a_revision_with_a_tag_alone_is_still_needed() -> None:
    run = running(service(workload(revision())))
    release(run, 2, Share(f"{WORK}-2", 100), Share(f"{WORK}-1", 0, "prev"), ready=True)
    assert run.reachable_revisions(WORK) == {f"{WORK}-1", f"{WORK}-2"}


def test_a_revision_that_had_failed_gets_another_chance_when_it_is_deployed_again() -> None:
    run = running(service(workload(revision())), ready=False)
    failed = revision_of(run)
    failed.failure, failed.failures, failed.deadline_exceeded, failed.next_start = "no such file", 5, True, 99.0
    again = run.add_revision(revision(), 50.0)
    assert again is failed
    assert (again.deadline_exceeded, again.failures, again.next_start, again.created_at) == (False, 0, 0.0, 50.0)


def test_requests_for_a_revision_are_refused_once_its_start_keeps_failing() -> None:
    run = running(service(workload(revision())), ready=False)
    found = revision_of(run)
    found.failure, found.failures, found.start_failed = "exited with 1", 2, True
    assert run.unavailable_reason(found) == ""
    found.failures = 3
    assert run.unavailable_reason(found) == f"{WORK}-1 cannot start: exited with 1"
    found.start_failed = False  # its replicas crash after they were ready
    assert run.unavailable_reason(found) == ""


def test_units_are_revisions_of_a_knative_service_and_whole_deployments() -> None:
    run = running(service(workload(revision())))
    assert run.unit_of(revision_of(run), 0.0).name == f"{WORK}-1"
    raw = running(service(workload(revision(scaling=Fixed(2)), mode="raw")))
    unit = raw.unit_of(revision_of(raw), 0.0)
    assert (unit.name, unit.desired) == (WORK, 2)


def test_a_deployment_keeps_its_unit_and_takes_over_the_new_rules() -> None:
    rules = Hpa(1, 5, (), ScalingRules(()), ScalingRules(()))
    run = running(service(workload(revision(scaling=rules), mode="raw")))
    unit = run.unit_of(revision_of(run), 0.0)
    unit.desired = 4
    other = Hpa(2, 9, (), ScalingRules(()), ScalingRules(()))
    run.update(2, service(workload(revision(f"{WORK}-2", scaling=other), mode="raw")), 5.0)
    assert run.unit_of(revision_of(run, f"{WORK}-2"), 5.0) is unit
    assert (unit.scaling, unit.desired) == (other, 4)


def test_the_grace_before_zero_is_the_platforms_own() -> None:
    run = ServiceRun(("default", "iris"), 1, service(workload(revision())), zero_grace_s=3.0)
    run.update(1, run.spec, 0.0)
    scaling = run.unit_of(revision_of(run), 0.0).scaling
    assert isinstance(scaling, Kpa)
    assert scaling.grace_s == 3.0


def test_bounds_by_hand_are_found_for_a_workload_and_its_revisions() -> None:
    run = running(service(workload(revision())))
    run.overrides = {WORK: {"minReplicas": 2}}
    assert run.override_of(f"{WORK}-1") == {"minReplicas": 2}
    assert run.override_of(WORK) == {"minReplicas": 2}
    assert run.override_of("other") == {}


def test_after_a_restart_what_runs_goes_on_and_what_slept_sleeps() -> None:
    run = running(service(workload(revision(scaling=Kpa(initial_scale=3)))))
    run.restore_scale({}, 0.0)
    assert run.units[f"{WORK}-1"].desired == 0
    run.restore_scale({f"{WORK}-1": 2}, 0.0)
    assert run.units[f"{WORK}-1"].desired == 2
    run.overrides = {WORK: {"minReplicas": 4}}
    run.restore_scale({f"{WORK}-1": 2}, 0.0)
    assert run.units[f"{WORK}-1"].desired == 4


def test_only_what_is_old_serves_nobody_and_runs_nowhere_is_forgotten() -> None:
    run = running(service(workload(revision())))
    for number in range(2, REVISION_HISTORY_LIMIT + 5):
        release(run, number, now=float(number), ready=True)
    assert [name for _, name in run.expired_revisions(())] == [f"{WORK}-{number}" for number in (1, 2, 3, 4)]
    assert (WORK, f"{WORK}-2") not in run.expired_revisions({f"{WORK}-2"})
    release(run, 99, Share(f"{WORK}-99", 90), Share(f"{WORK}-3", 10), now=99.0, ready=True)
    assert (WORK, f"{WORK}-3") not in run.expired_revisions(())

"""What a target says of a service, in the words of microservices."""

import pytest
from msgspec import structs

from pilotlight.microservices.jobs.service_status import is_accepted, platform_status
from pilotlight.targets.target import Phase, ReplicaStatus, RevisionStatus, ServiceStatus


def status(phase: Phase, *replicas: ReplicaStatus, **revision: object) -> ServiceStatus:
    row = RevisionStatus("ims-a-1", "ims-a", "predictor", 100, replicas=replicas, **revision)  # type: ignore[arg-type]
    return ServiceStatus("acme", "ims-a", 1, phase, "", revisions=(row,), message="a message")


def replica(state: str, reason: str = "") -> ReplicaStatus:
    return ReplicaStatus("ims-a-1-bcdfg", state, handle="container-a", reason=reason)


@pytest.mark.parametrize(
    ("seen", "state", "reason"),
    [
        (status("Ready", replica("ready"), ready=1), "running", ""),
        (status("Progressing", replica("starting")), "running", ""),
        (status("Degraded", replica("unready", "no answer"), reason="no answer"), "running", ""),
        (status("Progressing", replica("pending", "pulling x"), reason="pulling x"), "pending", "pulling x"),
        (status("Progressing", replica("waiting", "for a GPU"), reason="for a GPU"), "pending", "for a GPU"),
        (status("Progressing"), "pending", "a message"),
        (status("Failed", failure="exit code 3"), "failed", "exit code 3"),
        # A crash loop, between tries and during one.
        (status("Progressing", reason="exit code 3", failure="exit code 3"), "failed", "exit code 3"),
        (status("Progressing", replica("pending", "starting"), failure="exit code 3"), "failed", "exit code 3"),
        (status("Stopping", replica("draining")), "running", "it is being stopped"),
        (status("Stopping"), "stopped", "a message"),
        # What a cloud has stopped by itself, or knows no more.
        (status("Failed", replica("stopped"), reason="Lepton says Stopped"), "stopped", "Lepton says Stopped"),
        (status("Failed", replica("gone"), reason="brev has no x any more"), "gone", "brev has no x any more"),
        (status("Unknown", replica("unknown"), reason="no answer by ssh"), "unknown", "no answer by ssh"),
    ],
)
def test_states_of_services_are_states_of_microservices(seen: ServiceStatus, state: str, reason: str) -> None:
    found = platform_status(seen, ["last words"])
    assert (found.state, found.reason, found.tail) == (state, reason, ("last words",))


def test_a_model_that_cannot_be_loaded_is_the_reason_of_one_that_runs() -> None:
    line = '{"level": "ERROR", "event": "model.failed", "message": "no weights here"}'
    assert platform_status(status("Ready", replica("ready"), ready=1), [line]).reason == "no weights here"


@pytest.mark.parametrize(
    ("target", "seen", "accepted"),
    [
        ("docker", status("Progressing", replica("starting")), True),
        ("docker", status("Progressing", replica("pending")), True),
        ("docker", status("Progressing", structs.replace(replica("pending"), handle="")), False),
        ("docker", status("Progressing", structs.replace(replica("waiting"), handle="")), True),
        ("docker", status("Progressing"), False),
        ("local", status("Progressing", replica("starting")), False),  # it is not listening yet
        ("local", status("Ready", replica("ready"), ready=1), True),
        ("local", status("Progressing", replica("pending", "copying the model")), True),
        ("local", status("Progressing", replica("waiting")), True),
        ("local", status("Progressing", replica("starting"), failure="exit code 3"), True),
        ("local", status("Progressing"), False),
    ],
)
def test_a_start_returns_when_its_daemon_has_it_or_its_process_listens(
    target: str, seen: ServiceStatus, accepted: bool
) -> None:
    assert is_accepted(structs.replace(seen, target=target)) is accepted


def test_a_container_or_a_job_is_the_pod() -> None:
    found = platform_status(status("Ready", replica("ready"), ready=1))
    assert (found.pod_name, found.pod_status) == ("container-a", "Running")


def test_a_service_whose_manifests_cannot_be_read_has_failed() -> None:
    found = platform_status(ServiceStatus("acme", "ims-a", 1, "Failed", "", message="unreadable"))
    assert (found.state, found.reason) == ("failed", "unreadable")

"""How a microservice stands, from what is known of it, and what is answered then: every row of the guide's table."""

from typing import Any

import msgspec
import pytest

from pilotlight.microservices.jobs import health_responses
from pilotlight.microservices.jobs.health_responses import Health, assess
from pilotlight.microservices.registry.records import Entry, JobRecord, PlatformStatus, Status

RUNNING = PlatformStatus("running", "pod-0", "Running")
PENDING = PlatformStatus("pending", "pod-0", "Pending", "no node has room")
DEAD = PlatformStatus("failed", "pod-0", "Failed", "the process exited with code 1")
STARVED = PlatformStatus("failed", "pod-0", "Failed", "", ("loading", "torch.OutOfMemoryError: CUDA out of memory."))
LOADING = {"state": "loading", "models": [{"name": "model"}]}
FETCHING = {**LOADING, "progress": {"done_bytes": 10, "total_bytes": 100}}


def record(status: Status = "running", message: str = "") -> JobRecord:
    entry = Entry("local", "pilotlight", "http://x", "now")
    return JobRecord("j", "acme", "e", "inference_microservice", status, "now", "now", entry=entry, message=message)


def standing(kept: JobRecord, seen: PlatformStatus | None, said: Any) -> Health:
    return assess(kept, seen, said)


@pytest.mark.parametrize(
    ("kept", "seen", "said", "phase", "code", "retry"),
    [
        (record("pending"), None, None, "initializing", 202, 5),
        (record(), PENDING, None, "initializing", 202, 5),
        (record(), RUNNING, None, "initializing", 202, 5),  # nobody listens yet
        (record(), RUNNING, {"state": "initializing"}, "initializing", 202, 5),
        (record(), RUNNING, {"state": "loading"}, "initializing", 202, 5),  # its files are being looked for
        (record(), RUNNING, FETCHING, "initializing", 202, 5),
        (record(), RUNNING, {**FETCHING, "progress": {"done_bytes": 9, "total_bytes": -1}}, "initializing", 202, 5),
        (record(), RUNNING, {**FETCHING, "progress": {"done_bytes": 9, "total_bytes": 9}}, "loading", 202, 10),
        (record(), RUNNING, LOADING, "loading", 202, 10),
        (record(), RUNNING, {"state": "stopping"}, "not_ready", 503, 10),
        (record(), RUNNING, {}, "not_ready", 503, 10),
        (record(), RUNNING, {"state": "failed", "reason": "x"}, "failed", 503, None),
        (record(), DEAD, None, "failed", 503, None),
        (record("error", "no room"), None, None, "failed", 503, None),
        (record("stopping"), RUNNING, {"state": "ready"}, "stopping", 503, 10),
    ],
)
def test_a_client_is_told_what_to_do(
    kept: JobRecord, seen: PlatformStatus | None, said: Any, phase: str, code: int, retry: int | None
) -> None:
    found = standing(kept, seen, said)
    assert found.phase == phase
    made = health_responses.unavailable("j", found)
    assert (made.status, made.retry_after_s) == (code, retry)
    body = msgspec.to_builtins(made.body)
    assert body["job_id"] == "j"
    assert body["status"] == {"failed": "error", "stopping": "not_ready"}.get(phase, phase)


def test_a_model_that_is_there_is_healthy() -> None:
    report = health_responses.status_report("j", standing(record(), RUNNING, {"state": "ready", "ready": True}))
    assert (report.model_loaded, report.status, report.pod_name, report.pod_status) == (
        True, "healthy", "pod-0", "Running",
    )  # fmt: skip


def test_what_failed_is_told_as_initialization_or_as_the_load() -> None:
    early = standing(record(), RUNNING, {"state": "failed", "reason": "timeout downloading"})
    assert (early.initialization_error, early.model_load_error) == ("timeout downloading", None)
    assert health_responses.unavailable("j", early).body.error == "Server initialization failed: timeout downloading"
    late = standing(record(), RUNNING, {"state": "failed", "reason": "CUDA out of memory", "models": [{}]})
    assert (late.initialization_error, late.model_load_error) == (None, "CUDA out of memory")
    assert health_responses.unavailable("j", late).body.error == "Model failed to load: CUDA out of memory"
    starved = standing(record(), STARVED, None)
    assert starved.model_load_error == "torch.OutOfMemoryError: CUDA out of memory."
    assert standing(record(), DEAD, None).initialization_error == "the process exited with code 1"
    assert standing(record(), PlatformStatus("gone", "", "Gone"), None).initialization_error == "it exited (Gone)"


def test_a_model_whose_load_has_not_begun_is_not_ready() -> None:
    made = health_responses.unavailable("j", standing(record(), RUNNING, {"state": "stopping"}))
    assert msgspec.to_builtins(made.body) == {
        "job_id": "j", "status": "not_ready", "message": "Model not loaded yet, please try again later",
    }  # fmt: skip

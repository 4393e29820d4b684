"""From applied to ready: what is said on the way, and how it ends when it does not end well."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.test_release import KEY, Shelf

from pilotlight.errors import NotFound, PlatformError, RolledBack, TimedOut
from pilotlight.targets.target import STATUS_READ, Event, Key, ReplicaStatus, RevisionStatus, ServiceStatus
from platformctl import output
from platformctl.services import status_views, wait_ready
from platformctl.services.wait_ready import Expected, progress

NEW, OLD = "iris-predictor-new", "iris-predictor-old"
EXPECTED = Expected(KEY, 2, (NEW,))


def revision(name: str = NEW, state: Any = "Loaded", percent: int = 100, **other: Any) -> RevisionStatus:
    return RevisionStatus(name, "iris-predictor", "predictor", percent, model_state=state, **other)


def status(phase: Any, *revisions: RevisionStatus, generation: int = 2, message: str = "") -> ServiceStatus:
    return ServiceStatus(*KEY, generation, phase, "http://x/iris", revisions=revisions, message=message)


@pytest.mark.parametrize(
    ("seen", "phase", "message"),
    [
        (status("Ready", revision(OLD), generation=1), "Applied", "generation 2"),
        (status("Ready", revision(OLD)), "Applied", "generation 2"),
        (status("Ready", revision(OLD), generation=3), "Superseded", "replaced by generation 3 of another deploy"),
        (status("Progressing", revision(state="Pending", percent=0)), "Pending", NEW),
        (status("Progressing", revision(state="Pending", starting=1)), "Starting", NEW),
        (status("Progressing", revision(
            state="Pending", starting=1, reason="PENDING", replicas=(ReplicaStatus("iris-1", "pending"),)
        )), "Pending", f"{NEW}: PENDING"),
        (status("Progressing", revision(state="Pending", reason="no GPU")), "Pending", f"{NEW}: no GPU"),
        (status("Progressing", revision(state="Loading", starting=1)), "Loading", NEW),
        (status("Progressing", revision(percent=0), revision(OLD)), "Probed", NEW),
        (status("Ready", revision(percent=20), revision(OLD, percent=80)), "Ready", f"20 % to {NEW}, 80 % to {OLD}"),
        (status("Standby", revision(state="Standby")), "Standby", f"100 % to {NEW}"),
        (status("Failed", revision(state="FailedToLoad", reason="no such file")), "Failed", f"{NEW}: no such file"),
    ],
)  # fmt: skip
def test_where_a_deploy_stands_follows_from_its_status(seen: ServiceStatus, phase: str, message: str) -> None:
    found = progress(seen, EXPECTED)
    assert (found.phase, found.message) == (phase, message)
    assert found.done == (phase in ("Ready", "Standby", "Superseded"))
    assert (found.failed is not None) == (phase == "Failed")


def test_an_adapter_that_its_engine_refused_fails_a_deploy_and_is_named_by_status_and_list() -> None:
    law = RevisionStatus("law-1f3a", "iris", "engine", 100, ("law",), model_state="FailedToLoad", reason="rank 24")
    seen = replace(status("Ready", revision()), adapters=(law,))
    page = [each.split() for each in status_views.page(seen)]
    assert ["adapter", "law", "not", "loaded:", "rank", "24"] in page
    assert ["law", "law-1f3a", "100", "%", "0", "FailedToLoad"] in page
    assert any(each[:1] == [NEW] for each in page)  # in full: a request may name it as iris@NEW
    assert " law " in status_views.listing([seen], wide=True)[1]
    loading = replace(seen, adapters=(replace(law, model_state="Loading", reason=""),))
    assert (progress(loading, EXPECTED).phase, progress(loading, EXPECTED).done) == ("Loading", False)
    with pytest.raises(PlatformError) as failed:
        wait([loading, *[seen] * 20])
    assert str(failed.value) == "adapter law of iris was not loaded: rank 24"


def test_a_deploy_ends_ready_and_unverified_where_the_model_has_not_answered() -> None:
    seen = replace(status("Ready", revision(), message="a request verifies it"), verified=False)
    found = progress(seen, EXPECTED)
    assert (found.phase, found.done) == ("Ready, unverified", True)
    assert found.message == f"100 % to {NEW}; a request verifies it"


def test_a_deploy_of_what_never_answered_and_is_at_zero_is_not_waited_for() -> None:
    seen = replace(status("Degraded", revision(state="Standby"), message="all 500"), verified=False)
    found = progress(seen, EXPECTED)
    assert (found.phase, found.message, found.done) == ("Degraded", f"100 % to {NEW}; all 500", True)
    running = replace(status("Degraded", revision(desired=1), message="all 500"), verified=False)
    assert not progress(running, EXPECTED).done


def test_a_deploy_that_is_rolled_back_while_it_is_waited_for_says_so_with_a_code_of_its_own() -> None:
    seen = replace(status("Degraded", revision(OLD), generation=3), rolled_back="rolled back to generation 1: all 500")
    with pytest.raises(RolledBack, match="rolled back to generation 1") as raised:
        progress(seen, EXPECTED)
    assert raised.value.exit_code == 5


def test_a_download_has_its_amount_as_a_bar() -> None:
    loading = revision(state="Loading", progress={"done_bytes": 50 << 20, "total_bytes": 200 << 20})
    found = progress(status("Progressing", loading), EXPECTED)
    assert (found.phase, found.message) == ("Fetching", f"{NEW}: 200 MiB to fetch")
    assert found.amount == "[######------------------] 50.0 MiB of 200 MiB"


@pytest.mark.parametrize("progress", [{"done_bytes": 5, "total_bytes": 5}, {"done_bytes": 5, "total_bytes": -1}, {}])
def test_what_is_fetched_or_has_no_end_has_no_bar(progress: dict[str, int]) -> None:
    loading = revision(state="Loading", progress=progress)
    assert wait_ready.progress(status("Progressing", loading), EXPECTED) == wait_ready.Progress("Loading", NEW)


def test_on_a_terminal_the_amount_is_drawn_in_place(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ticker = output.ProgressLog(lambda: 0.0, 0.0)
    for done in (1, 2):
        ticker.log("Fetching", NEW, output.bar(done, 4))
    ticker.log("Ready", "it is")
    ticker.close()
    drawn, last, _ = capsys.readouterr().err.split("\n")
    assert drawn.startswith(f"   0.0s  Fetching    {NEW}\r")
    assert drawn.endswith("2 B of 4 B")
    assert last == "   0.0s  Ready       it is"


def test_a_phase_that_lasts_shows_its_duration_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    now = [0.0]
    ticker = output.ProgressLog(lambda: now[0], 0.0)
    for now[0] in (0.0, 1.0, 3.0, 3.1):
        ticker.log("Loading", NEW)
    output.note("something else")
    for now[0] in (5.0, 6.0):  # the line above is not the last one any more
        ticker.log("Loading", NEW)
    line = f"   0.0s  Loading     {NEW}"
    assert capsys.readouterr().err == f"{line}\n\x1b[A\r\x1b[K{line}  3 s\nsomething else\n"


class Scripted(Shelf):
    """Each look at the status shows the next one; the last stays."""

    def __init__(self, statuses: Sequence[ServiceStatus]) -> None:
        super().__init__()
        self.statuses = list(statuses)

    def status(self, key: Key) -> ServiceStatus:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]:
        return iter([Event("", *KEY, "Replica/x", "Warning", "Failed", "exit code 3", 1)])

    def logs(self, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]:
        record = {"ts": "2026-01-01T10:00:00.5Z", "level": "ERROR", "event": "failed", "message": "boom"}
        lines = [json.dumps(record | {"traceback": "File x\n  raise"}), "plain"]
        return iter(lines if previous and replica == NEW else [])


class Time:
    """Passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def wait(statuses: Sequence[ServiceStatus], timeout: float = 10.0) -> list[ServiceStatus]:
    time = Time()
    ticker = output.ProgressLog(time.clock, 0.0)
    return wait_ready.wait(Scripted(statuses), [EXPECTED], timeout, ticker, time.clock, time.sleep)


def test_every_change_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    starting, ready = status("Progressing", revision(state="Loading", starting=1)), status("Ready", revision())
    assert wait([starting, starting, starting, ready]) == [ready]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"   0.0s  Loading     {NEW}", f"   0.2s  Ready       100 % to {NEW}"]


def test_a_start_that_fails_once_and_then_works_is_no_failure() -> None:
    failed = status("Progressing", revision(state="FailedToLoad", reason="port taken"))
    ready = status("Ready", revision())
    assert wait([failed, failed, ready]) == [ready]


def test_several_services_are_told_of_by_their_changes(capsys: pytest.CaptureFixture[str]) -> None:
    class Both(Shelf):
        looks = 0

        def status(self, key: Key) -> ServiceStatus:
            self.looks += 1
            seen = revision(state="Loading", starting=1) if self.looks < 8 else revision()
            return ServiceStatus(*key, 2, "Ready", "", revisions=(seen,))

    time = Time()
    both = [Expected(("default", name), 2, (NEW,)) for name in ("a", "b")]
    wait_ready.wait(Both(), both, 10, output.ProgressLog(time.clock, 0.0), time.clock, time.sleep)
    said = [line.split()[1:3] for line in capsys.readouterr().err.splitlines()]
    assert sorted(said) == [["Loading", "a"], ["Loading", "b"], ["Ready", "a"], ["Ready", "b"]]


def test_a_failure_tells_its_reason_once_with_log_who_serves_and_what_to_type() -> None:
    failed = status("Degraded", revision(state="FailedToLoad", percent=0, reason="exit code 3"), revision(OLD))
    with pytest.raises(PlatformError) as raised:
        wait([failed])
    assert str(raised.value).splitlines() == [
        f"{NEW} does not start: exit code 3",
        "  | 10:00:00.5 ERROR failed boom",
        "  | File x",
        "  |   raise",
        "  | plain",
        f"  {OLD} still serves",
    ]
    assert raised.value.hint == f"platformctl logs iris --target shelf --previous --replica {NEW}"
    assert raised.value.exit_code == 1


def test_a_log_that_repeats_the_reason_is_shown_without_that_and_its_routine_lines() -> None:
    def line(level: str, message: str, **more: str) -> str:
        return json.dumps({"ts": "2026-11-18T10:00:00Z", "level": level, "event": "e", "message": message, **more})

    log = [line("INFO", "listening"), line("ERROR", "failed to load: no torch", traceback="model.py:1"), "Killed"]
    assert wait_ready.without_reason(log, "model 'iris': no torch") == ["model.py:1", "Killed"]
    assert len(wait_ready.without_reason(log, "exit code 3")) == 3


def test_missing_credentials_name_the_shell_that_started_the_platform() -> None:
    seen = revision(state="FailedToLoad", reason="s3://b/m: no credentials were found; set AWS_ACCESS_KEY_ID")
    target = Scripted([status("Failed", seen)])
    assert "--previous" in wait_ready.failure(target, EXPECTED, status("Failed", seen), seen).hint
    target.name = "local"
    hint = wait_ready.failure(target, EXPECTED, status("Failed", seen), seen).hint
    assert hint.endswith("set them, then platformctl down; platformctl up")


@pytest.mark.parametrize("reason", ["ModelChanged: /m has changed", "could not be started: Too many open files"])
def test_a_start_without_a_process_shows_no_log_of_another_replica(reason: str) -> None:
    with pytest.raises(PlatformError) as raised:
        wait([status("Failed", revision(state="FailedToLoad", reason=reason))])
    assert str(raised.value).splitlines() == [
        f"{NEW} does not start: {reason}",
        "  last event: Failed: exit code 3",
        "  nothing of it serves; fix it and deploy again, or: platformctl delete iris --target shelf",
    ]
    assert raised.value.hint == "platformctl events iris --target shelf"


def test_time_that_is_up_has_a_code_of_its_own_and_says_where_it_stands() -> None:
    with pytest.raises(TimedOut, match=f"default/iris is not ready after 3 s: Loading, {NEW}") as raised:
        wait([status("Progressing", revision(state="Loading"))], timeout=3)
    assert raised.value.exit_code == 4
    assert "platformctl status iris --target shelf -w" in raised.value.hint


def test_waiting_for_the_end_ends_when_the_service_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    class Ending(Scripted):
        def status(self, key: Key) -> ServiceStatus:
            if not self.statuses:
                raise NotFound("gone")
            return self.statuses.pop(0)

    time = Time()
    stopping = status("Stopping", message="its replicas are draining")
    ticker = output.ProgressLog(time.clock, 0.0)
    wait_ready.wait_deleted(Ending([stopping, stopping]), KEY, 10, ticker, time.clock, time.sleep)
    assert capsys.readouterr().err.count("Stopping") == 1


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain text", "plain text"),
        ("{not json", "{not json"),
        ('{"a": 1}', '{"a": 1}'),
        (
            '{"ts": "2026-01-31T12:00:00.123Z", "level": "INFO", "event": "ready", "message": "m", "n": 1, "s": "t"}',
            "12:00:00.123 INFO ready m (n=1, s=t)",
        ),
        (
            '{"ts": "2026-01-31T12:00:00Z", "level": "ERROR", "event": "failed", "traceback": "Traceback:\\n  x\\n"}',
            "12:00:00 ERROR failed\nTraceback:\n  x",
        ),
    ],
)
def test_a_line_of_a_log_reads_as_a_sentence(line: str, shown: str) -> None:
    assert output.readable(line) == shown


def test_a_service_that_does_not_answer_a_real_request_is_not_ready() -> None:
    class Behind(Shelf):
        def __init__(self) -> None:
            super().__init__()
            self.refusals = ["answered 404: no route", "answered 503: starting"]

        def status(self, key: Key) -> ServiceStatus:
            return status("Ready", revision())

        def probe(self, status: ServiceStatus) -> str:
            return self.refusals.pop(0) if self.refusals else ""

    said: list[str] = []
    ticker = output.ProgressLog()
    ticker.log = lambda phase, message, amount="", of=None: said.append(f"{phase} {message}")  # type: ignore[method-assign]
    target = Behind()
    wait_ready.wait(target, [EXPECTED], 10, ticker, sleep=lambda _: None)
    assert not target.refusals
    assert "Probed answered 404: no route" in said


def test_a_step_of_the_control_process_is_no_line_of_a_deploy(capsys: pytest.CaptureFixture[str]) -> None:
    reads = status("Progressing", revision(), message=STATUS_READ)
    routes = replace(reads, message="the gateway is applying its route")
    wait_ready.wait(
        Scripted([routes, reads, status("Ready", revision())]),
        [EXPECTED],
        10,
        output.ProgressLog(),
        sleep=lambda _: None,
    )
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["Probed", "Ready"]


def test_a_revision_made_from_the_planned_one_is_the_one_that_is_waited_for() -> None:
    found = progress(status("Ready", revision(f"{NEW}-9d48")), EXPECTED)
    assert found.done

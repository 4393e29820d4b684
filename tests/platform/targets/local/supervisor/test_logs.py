"""Log files: bounded while they are written, private, removed after a while, never in the way."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch, lines, program

from pilotlight.errors import UsageError
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor import logs as supervisor_logs
from pilotlight.targets.local.supervisor import supervisor
from pilotlight.targets.local.supervisor.log_writer import RotatedFile
from pilotlight.targets.local.supervisor.logs import (
    LogSettings,
    ServiceLogs,
    expired_logs,
    log_settings,
    prune,
    remove_expired,
    rotate,
)
from pilotlight.targets.local.supervisor.output_pipes import OutputPipes
from pilotlight.targets.local.supervisor.process_inspection import log_writer_pids, replica_processes

LIMIT = 64 << 10


def all_lines(log: Path) -> list[str]:
    """Oldest first, without the blank that stands for what was cut."""
    files = [log.with_name(log.name + suffix) for suffix in (".2", ".1", "")]
    return [line for path in files if path.exists() for line in path.read_text().splitlines() if line.strip()]


def test_a_log_without_a_writer_is_copied_and_emptied(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)) + "half a li")
    assert rotate(log, LIMIT)
    assert log.read_text() == ""
    assert log.with_name("a.log.1").read_text().endswith("line 9999\nhalf a li")


def test_three_files_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for turn in range(5):
        with log.open("a") as file:
            file.write(f"turn {turn}\n" * 10_000)
        assert rotate(log, LIMIT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2"]
    assert "turn 4" in log.with_name("a.log.1").read_text()
    assert "turn 3" in log.with_name("a.log.2").read_text()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 * 100_000


def test_a_short_log_and_one_that_is_gone_are_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert not rotate(log)
    log.write_text("x\n")
    assert not rotate(log)
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]


def test_logs_of_replicas_that_ended_long_ago_are_removed(tmp_path: Path) -> None:
    for number in range(6):
        for name in (f"r{number}.log", f"r{number}.log.1"):
            (tmp_path / name).write_text("x")
            os.utime(tmp_path / name, (number, number))
    prune(tmp_path, {"r0"}, keep=2)
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"r0", "r4", "r5"}


def test_the_log_of_a_living_replica_is_cut_while_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "INTERVAL_S", 0.02)
    enough = supervisor_logs.LIMIT * 3 // 2000
    script = f"i=0; while [ $i -lt {enough} ]; do i=$((i+1)); printf '%1000s' $i; echo; done; exec sleep 600"

    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, script)) as stage:
            log = Path(stage.supervisor.launch(launch()).log)
            await eventually_async(log.with_name(f"{log.name}.1").exists)
            await eventually_async(lambda: log.stat().st_size < supervisor_logs.LIMIT)

    asyncio.run(play())


def test_a_log_that_cannot_be_opened_keeps_no_replica_from_starting(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "echo lost; exit 5")) as stage:
            (stage.home.logs / "default").write_text("a file where the folder should be")
            stage.supervisor.launch(launch())
            assert (await stage.until("exited")).reason == "exit code 5"

    asyncio.run(play())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_for_logs_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    """Every write to the log fails as on a full disk; the real predictor becomes ready, answers and drains."""

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            order = launch()
            log = stage.home.logs / "default/iris" / f"{order.replica}.log"
            log.parent.mkdir(parents=True)
            log.symlink_to("/dev/full")
            ready = await stage.start(order)
            stage.supervisor.drain(ready.id, 30)
            assert (await stage.until("exited")).exit_code == 0

    asyncio.run(play())


def test_an_exit_status_is_known_though_it_could_not_be_noted(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, f"rm -r {tmp_path}/home/run; exit 6")) as stage:
            stage.supervisor.launch(launch())
            assert (await stage.until("exited")).exit_code == 6

    asyncio.run(play())


def test_a_log_belongs_to_its_replica(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "echo out; echo err >&2; exit 3")) as stage:
            replica = stage.supervisor.launch(launch("iris-1"))
            await stage.until("exited")
            assert Path(replica.log) == stage.home.logs / "default/iris/iris-1.log"
            assert lines(replica.log) == ["out", "err"]
            assert Path(replica.log).stat().st_mode & 0o077 == 0

    asyncio.run(play())


def taken(log: Path) -> int:
    """Bytes of the log and its older parts; one that is renamed between two looks counts once."""
    found = {}
    for file in log.parent.glob(f"{log.name}*"):
        with suppress(FileNotFoundError):
            state = file.stat()
            found[state.st_ino] = state.st_size
    return sum(found.values())


def test_a_flood_of_output_never_takes_more_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """252 MB through three files of 1 MiB, looked at all the while."""
    monkeypatch.setenv("PILOTLIGHT_LOG_BYTES", str(1 << 20))

    async def play() -> None:
        flood = "echo first; yes 'a line of a talkative model' | head -n 9000000; echo last; exit 3"
        async with Stage(tmp_path, python=program(tmp_path, flood)) as stage:
            log = Path(stage.supervisor.launch(launch()).log)
            most = 0
            while not any(replica.state == "exited" for replica in stage.told):
                most = max(most, taken(log))
                await asyncio.sleep(0.001)
            assert 2 << 20 < most <= 3 << 20
            assert lines(str(log))[-1] == "last"
            assert set(all_lines(log)) == {"a line of a talkative model", "last"}
            assert {file.stat().st_mode & 0o777 for file in log.parent.iterdir()} == {0o600}

    asyncio.run(play())


def test_a_killed_log_writer_is_replaced_and_costs_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "INTERVAL_S", 0.02)
    monkeypatch.setenv("PILOTLIGHT_LOG_BYTES", str(64 << 20))
    script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; done; sleep 600"

    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, script)) as stage:
            log = stage.supervisor.launch(launch()).log
            for _ in range(3):
                (writer,) = await eventually_async(lambda: log_writer_pids(stage.home))
                os.kill(writer, signal.SIGSTOP)  # so that nothing is between its read and its write
                os.kill(writer, signal.SIGKILL)
                await eventually_async(lambda gone=writer: gone not in log_writer_pids(stage.home))
            await eventually_async(lambda: lines(log)[-1:] == ["20000"])
            assert lines(log) == [str(number) for number in range(1, 20001)]

    asyncio.run(play())


def test_the_log_writer_ends_with_its_supervisor_and_not_before(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "echo 1; sleep 600")) as stage:
            log = stage.supervisor.launch(launch()).log
            await eventually_async(lambda: lines(log) == ["1"])
            assert len(log_writer_pids(stage.home)) == 1
        assert not log_writer_pids(stage.home)

    asyncio.run(play())


def test_the_log_writer_of_a_supervisor_that_adopted_nothing_ends_with_it(tmp_path: Path) -> None:
    """As in a start that fails after the adoption: nobody would end it later."""

    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "echo 1; exec sleep 600")) as first:
            log = first.supervisor.launch(launch()).log
            await eventually_async(lambda: lines(log) == ["1"])
            (replica,) = first.supervisor.replicas()
            await first.supervisor.close(leave_running=True)
            assert len(log_writer_pids(first.home)) == 1, "its replica still writes"
            os.kill(replica.pid, signal.SIGKILL)
            await eventually_async(lambda: not list(replica_processes(first.home)))
            async with Stage(tmp_path) as second:
                second.supervisor.adopt([replica])
                await eventually_async(lambda: not second.supervisor.replicas())
                await second.supervisor.close(leave_running=True)
                assert not log_writer_pids(first.home)

    asyncio.run(play())


def test_a_log_writer_that_has_just_been_started_is_ended_too(tmp_path: Path) -> None:
    """For a moment it has no command line to find it by."""
    pipes = OutputPipes(Home(tmp_path).create(), LogSettings())
    for _ in range(20):
        pipes.wake()
        pipes.close()
        assert not log_writer_pids(Home(tmp_path))


@pytest.mark.parametrize("size", [7, 1000, 100_000])
def test_files_are_cut_between_lines(tmp_path: Path, size: int) -> None:
    log = RotatedFile(str(tmp_path / "a.log"), 4096, 3)
    text = b"".join(b"%d %s\n" % (number, b"x" * (number % 300)) for number in range(300))
    for start in range(0, len(text), size):
        log.write(text[start : start + size])
        assert taken(tmp_path / "a.log") <= 3 * 4096
    log.close()
    files = [tmp_path / name for name in ("a.log.2", "a.log.1", "a.log")]
    assert text.endswith(b"".join(file.read_bytes() for file in files))
    if size > len(text):
        assert all(file.read_bytes().endswith(b"\n") for file in files)


def test_a_line_longer_than_a_file_is_cut(tmp_path: Path) -> None:
    log = RotatedFile(str(tmp_path / "a.log"), 100, 2)
    log.write(b"x" * 950 + b"\n")
    log.close()
    assert taken(tmp_path / "a.log") <= 200


def test_rotated_logs_are_private(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"line\n" * 100_000)
    log.chmod(0o644)
    assert rotate(log, LIMIT)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_logs_of_deleted_services_go_after_their_time_or_for_room() -> None:
    day = 86400.0
    deployed = {("default", "kept")}

    def expired(total: int, *found: ServiceLogs) -> list[str]:
        return [path.name for path in expired_logs(found, deployed, LogSettings(1, 7 * day, total), 100 * day)]

    kept = ServiceLogs(Path("logs/default/kept"), 500, 1 * day)
    old, young = (
        ServiceLogs(Path("logs/default/old"), 10, 92.9 * day),
        ServiceLogs(Path("logs/a/young"), 10, 93.1 * day),
    )
    younger = ServiceLogs(Path("logs/a/younger"), 10, 99 * day)
    assert expired(1000, kept, younger, young, old) == ["old"]
    assert expired(515, kept, younger, young, old) == ["old", "young"]
    assert expired(100, kept, younger, young, old) == ["old", "young", "younger"]
    assert expired(100, kept) == []


def test_expired_folders_are_removed_and_others_stay(tmp_path: Path) -> None:
    for service in ("default/kept", "default/gone", "other/gone"):
        (tmp_path / service).mkdir(parents=True)
        (tmp_path / service / "r.log").write_text("x")
        os.utime(tmp_path / service / "r.log", (0, 0))
    (tmp_path / "daemon.log").write_text("x")
    remove_expired(tmp_path, {("default", "kept")}, LogSettings(), 8 * 86400.0)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "daemon.log", "default", "default/kept", "default/kept/r.log",
    ]  # fmt: skip


def test_settings_of_logs_are_read_and_checked() -> None:
    environ = {"PILOTLIGHT_LOG_BYTES": "1000", "PILOTLIGHT_LOG_DAYS": "2", "PILOTLIGHT_LOG_TOTAL_BYTES": "5000"}
    assert log_settings(environ) == LogSettings(1000, 2 * 86400.0, 5000)
    assert log_settings({}) == LogSettings(10 << 20, 7 * 86400.0, 1 << 30)
    with pytest.raises(UsageError, match=r"PILOTLIGHT_LOG_DAYS = -1, must be a whole number of days above 0"):
        log_settings({"PILOTLIGHT_LOG_DAYS": "-1"})

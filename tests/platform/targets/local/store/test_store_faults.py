"""The file under a dying process, a full disk, other programs, and other versions of ours."""

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pilotlight.errors import PlatformError
from pilotlight.targets.local.store import Store
from pilotlight.targets.local.store.schema import MIGRATIONS
from pilotlight.targets.target import Release

NOON = "2025-03-01T12:00:00Z"
DATABASES = Path(__file__).parent / "databases"

# Every round is four changes; the number that it prints has been applied by then.
WRITER = """
import sys
from pathlib import Path
from pilotlight.targets.local.store import Store
from pilotlight.targets.target import Release
store = Store.open(Path(sys.argv[1]))
number = max((found.generation for found in store.services()), default=0)
while True:
    number += 1
    manifests = tuple({"metadata": {"name": str(number)}, "padding": "x" * 2000} for _ in range(4))
    release = Release("default", "iris", str(number), manifests, expected=number - 1)
    assert store.apply(release, [("iris-predictor", f"r{number % 3}", manifests)], "2025-03-01T12:00:00Z") == number
    store.set_overrides(("default", "iris"), "iris-predictor", {"minReplicas": number})
    store.save_replica("one", {"number": number})
    store.mark_ready(("default", "iris"), "iris-predictor", f"r{number % 3}", "2025-03-01T12:00:00Z")
    print(number, flush=True)
"""


def kill_writer(path: Path, rounds: int, delay_s: float) -> None:
    """It writes for so many rounds, and dies without a word somewhere in the next ones."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            for _ in range(rounds):
                assert process.stdout.readline(), "the writer failed by itself"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(delay_s)
        finally:
            process.kill()


def check_whole(path: Path) -> int:
    """Exactly one generation, and all that belongs to it; returns it."""
    store = Store.open(path)
    try:
        (service,) = store.services()
        names = {manifest["metadata"]["name"] for manifest in service.manifests}
        assert {service.document, *names} == {str(service.generation)}
        releases = [release.generation for release in store.releases(service.key)]
        assert releases[0] == service.generation
        assert {revision.generation for revision in store.revisions(service.key)} <= set(releases)
        behind = service.generation - service.overrides.get("iris-predictor", {"minReplicas": 0})["minReplicas"]
        assert behind in (0, 1)
        return service.generation
    finally:
        store.close()


def kill_many_times(path: Path, times: int) -> None:
    chance = random.Random(5)
    reached = 0
    for _ in range(times):
        rounds = chance.randint(1, 15)
        kill_writer(path, rounds, chance.uniform(0, 0.01))
        generation = check_whole(path)
        assert generation >= reached + rounds
        reached = generation
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_process_killed_at_any_moment_leaves_the_state_before_or_after(tmp_path: Path) -> None:
    kill_many_times(tmp_path / "state.db", 30)


@pytest.mark.long
def test_a_process_killed_three_hundred_times_leaves_the_state_before_or_after(tmp_path: Path) -> None:
    kill_many_times(tmp_path / "state.db", 300)


# The limit on the size of files stands in for a disk without room: the kernel refuses to write in the same place.
FULL = """
import resource, sys
from pathlib import Path
from pilotlight.errors import PlatformError
from pilotlight.targets.local.store import Store
from pilotlight.targets.target import Release
store = Store.open(Path(sys.argv[1]))
def deploy(number):
    manifests = ({"padding": str(number) * 50_000},)
    return store.apply(Release("default", "iris", str(number), manifests), [], "2025-03-01T12:00:00Z")
deploy(1)
room = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, room[1]))
for _ in range(3):
    try:
        for number in range(2, 9):
            deploy(number)
        print("it was written all the same")
    except PlatformError as error:
        print(error)
present = store.service(("default", "iris"))
resource.setrlimit(resource.RLIMIT_FSIZE, room)
assert deploy(9) == present.generation + 1
assert len(store.releases(("default", "iris"))) == present.generation + 1
store.close()
"""


def test_a_full_disk_is_one_sentence_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{path}: ") and "space" in line for line in lines), lines


def test_a_file_that_somebody_holds_is_named_and_waited_for_no_longer_than_moments(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store.open(path)
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PlatformError) as raised:
            store.save_replica("a", {})
        assert str(raised.value) == f"{path}: another program holds it; stop that program and retry"
        other.execute("ROLLBACK")
        store.save_replica("a", {"there": True})
        assert store.replicas() == [{"there": True}]
    finally:
        other.close()
        store.close()


def test_a_file_that_was_removed_takes_no_release(tmp_path: Path) -> None:
    """SQLite itself would write on to the file that nobody finds any more."""
    path = tmp_path / "state.db"
    store = Store.open(path)
    store.apply(Release("default", "iris", "one", ()), [], NOON)
    path.rename(tmp_path / "moved.db")
    for replacement in (None, "another"):
        if replacement:
            path.write_text(replacement)
        with pytest.raises(PlatformError, match=r"state\.db: it was removed or replaced; run platformctl down"):
            store.apply(Release("default", "iris", "two", ()), [], NOON)
    store.close()


def test_a_file_of_a_newer_program_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(PlatformError, match="was written by a newer Pilotlight"):
        Store.open(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    connection.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("hello, " * 1000)
    with pytest.raises(PlatformError, match="is not a Pilotlight database; restore a backup: platformctl restore FILE"):
        Store.open(path)
    assert path.read_text().startswith("hello")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match=r"missing/state\.db: No such file or directory; check its folder"):
        Store.open(tmp_path / "missing" / "state.db")


def test_there_is_a_database_of_every_version_to_migrate_from() -> None:
    assert {found.stem for found in DATABASES.glob("*.sql")} == {f"v{number + 1}" for number in range(len(MIGRATIONS))}


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_a_database_of_an_older_version_is_taken_over(tmp_path: Path, version: int) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((DATABASES / f"v{version}.sql").read_text())
    connection.close()
    store = Store.open(path)
    try:
        (service,) = store.services()
        assert (service.generation, service.document) == (2, "two")
        assert service.overrides == {"iris-predictor": {"minReplicas": 2}}
        assert [release.document for release in store.releases(service.key)] == ["two", "one"]
        assert [revision.name for revision in store.revisions(service.key)] == ["r2", "r1"]
        assert store.port(service.key, "http", []) == 9001
        assert store.replicas() == [{"pid": 7}]
        assert [event.reason for event in store.events(None)] == ["Deployed"]
        assert store.apply(Release(*service.key, "three", (), by="ben"), [], NOON) == 3
        deployed_by = "ana" if version > 3 else ""
        assert [release.by for release in store.releases(service.key)] == ["ben", deployed_by, deployed_by]
    finally:
        store.close()

"""The state survives what happens to files: copies of one file alone, damage, and the way back."""

import os
import random
import shutil
import sqlite3
from pathlib import Path
from time import monotonic

import pytest

from pilotlight.errors import PlatformError, UsageError
from pilotlight.targets.local.store import Store
from pilotlight.targets.local.store.backup import back_up, count_services, restore
from pilotlight.targets.local.store.schema import BUSY_S, MIGRATIONS, check
from pilotlight.targets.target import Release

NOON = "2025-03-01T12:00:00Z"
KEY = ("default", "iris")


def deploy(store: Store, number: int) -> None:
    manifests = ({"metadata": {"name": "iris"}, "padding": "x" * 9000},)
    store.apply(Release(*KEY, f"document {number}", manifests), [("iris", f"r{number}", manifests)], NOON)


def documents(path: Path) -> list[str]:
    store = Store.open(path)
    try:
        return [service.document for service in store.services()]
    finally:
        store.close()


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_copy_of_the_file_alone_has_every_release(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.db")
    try:
        for number in range(3):
            deploy(store, number)
            store.save_replica("one", {"pid": number})  # stays in the write-ahead log
            shutil.copy(tmp_path / "state.db", tmp_path / f"copy{number}.db")
        store.mark_ready(KEY, "iris", "r2", NOON)
        shutil.copy(tmp_path / "state.db", tmp_path / "ready.db")
    finally:
        store.close()
    for number in range(3):
        assert documents(tmp_path / f"copy{number}.db") == [f"document {number}"]
    ready = Store.open(tmp_path / "ready.db")
    assert ready.revisions(KEY)[0].first_ready_at == NOON
    ready.close()


def test_a_reader_delays_no_release(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.db")
    deploy(store, 1)
    reader = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    try:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM services").fetchall()
        began = monotonic()
        deploy(store, 2)
        assert monotonic() - began < BUSY_S  # SQLite would wait that long for the reader
        reader.execute("COMMIT")
        deploy(store, 3)
        shutil.copy(tmp_path / "state.db", tmp_path / "copy.db")
    finally:
        reader.close()
        store.close()
    assert documents(tmp_path / "copy.db") == ["document 3"]


@pytest.mark.parametrize("damage", ["garbage", "truncated", "zeroed head"])
def test_a_damaged_file_is_refused_with_the_way_back(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.db"
    store = Store.open(path)
    for number in range(4):
        deploy(store, number)
    store.close()
    if damage == "garbage":
        overwrite(path, 4096, random.Random(1).randbytes(4096 * 6))
    elif damage == "truncated":
        os.truncate(path, 20_000)
    else:
        overwrite(path, 0, bytes(100))
    for open_it in (Store.open, count_services):
        with pytest.raises(PlatformError, match=r"(is damaged|is not a Pilotlight database); .*restore FILE.*--forget"):
            open_it(path)
    with pytest.raises(PlatformError, match=r"damaged|not a Pilotlight database"):
        back_up(path, tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()


def test_the_check_of_a_large_file_is_bounded_in_time(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "large.db")
    connection.execute("CREATE TABLE rows (value TEXT)")
    connection.executemany("INSERT INTO rows VALUES (?)", (("x" * 50,) for _ in range(50_000)))
    connection.commit()
    check(connection, seconds=-1.0)  # given up at the first look, and passes
    assert connection.execute("SELECT count(*) FROM rows").fetchone() == (50_000,)
    connection.close()


def test_a_backup_is_written_while_the_platform_writes_and_can_be_restored(tmp_path: Path) -> None:
    path, backup = tmp_path / "state.db", tmp_path / "backup.db"
    store = Store.open(path)
    deploy(store, 1)
    store.save_replica("one", {"pid": 7})
    assert back_up(path, backup) == 1
    assert backup.stat().st_mode & 0o777 == 0o600
    deploy(store, 2)
    store.close()
    assert [file.name for file in tmp_path.glob("backup*")] == ["backup.db"]
    assert restore(backup, path, "replaced") == (1, tmp_path / "state.db.replaced")
    assert documents(path) == ["document 1"]
    assert documents(tmp_path / "state.db.replaced") == ["document 2"]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="exists; choose another name"):
        back_up(path, backup)


def test_a_copy_with_its_write_ahead_log_is_restored_with_it(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.db")
    deploy(store, 1)
    store.save_replica("one", {"pid": 7})
    for side in ("", "-wal"):
        shutil.copy(tmp_path / f"state.db{side}", tmp_path / f"copy.db{side}")
    store.close()
    (tmp_path / "home").mkdir()
    assert restore(tmp_path / "copy.db", tmp_path / "home/state.db", "replaced") == (1, None)
    store = Store.open(tmp_path / "home/state.db")
    assert store.replicas() == [{"pid": 7}]
    store.close()


def test_what_is_no_backup_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store.open(path)
    deploy(store, 1)
    store.close()
    (tmp_path / "text.db").write_text("hello " * 1000)
    sqlite3.connect(tmp_path / "other.db").close()
    with sqlite3.connect(tmp_path / "newer.db") as newer:
        newer.executescript("CREATE TABLE services (a); CREATE TABLE releases (a); CREATE TABLE revisions (a);")
        newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    newer.close()
    expected = {
        "text.db": "is not a Pilotlight database; use another backup", "other.db": "is not a platform backup",
        "newer.db": "was written by a newer Pilotlight", "missing.db": "No such file",
    }  # fmt: skip
    for name, problem in expected.items():
        with pytest.raises(PlatformError, match=problem):
            restore(tmp_path / name, path, "replaced")
    assert documents(path) == ["document 1"]
    assert not list(tmp_path.glob("state.db.*"))


def test_a_store_is_new_until_something_is_deployed_and_never_again(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.db")
    assert store.is_new
    deploy(store, 1)
    assert not store.is_new
    store.begin_delete(KEY)
    store.finish_delete(KEY)
    assert not store.services()
    assert not store.is_new
    store.close()

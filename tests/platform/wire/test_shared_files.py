"""Files of several processes: one holder of a lock at a time, and never half a file."""

from pathlib import Path

import pytest

from pilotlight.wire.shared_files import is_locked, replace_file, try_lock


def test_a_lock_has_one_holder_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    held = try_lock(path)
    assert held is not None
    assert is_locked(path)
    assert try_lock(path) is None
    held.close()
    assert not is_locked(path)


def test_a_replaced_file_is_private_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    replace_file(path, b"new", durable=True)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    (path / "inside").mkdir(parents=True)  # a rename over a folder fails
    with pytest.raises(OSError, match=r"state\.json"):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]

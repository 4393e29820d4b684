"""Files of traces in Triton's format: whole arrays, also when the disk is full."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotlight_predictor.observability.triton_trace_file import append_events


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Make this process's writes beyond `size` bytes fail, as on a full disk: a part is written, then an error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("before", [[], [b'{"id":1}']], ids=["empty", "with events"])
def test_a_full_disk_loses_events_and_no_file(tmp_path: Path, before: list[bytes]) -> None:
    path = tmp_path / "trace.json"
    if before:
        append_events(path, before)
    text = path.read_text() if before else ""
    with files_of_at_most(50), pytest.raises(OSError, match="File too large"):
        append_events(path, [b'{"id":2}'] * 20)
    assert path.read_text() == text
    append_events(path, [b'{"id":3}', b'{"id":4}'])
    assert [event["id"] for event in json.loads(path.read_text())] == [1, 3, 4][not before :]


def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    os.symlink("notes", tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    for name in ("notes", "link", "fifo", "."):
        with pytest.raises(OSError):
            append_events(tmp_path / name, [b"{}"])
    assert (tmp_path / "notes").read_text() == "mine"

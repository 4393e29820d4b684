"""Interruptions: a process killed in the middle, and what the next one may believe of what it left."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pilotlight_predictor.storage.fetcher import fetch
from pilotlight_predictor.storage.store_interface import Entry, FetchOptions, Progress
from pilotlight_predictor.storage.transfer import PartFile

KIB = 1024
SIZE = 16 * 64 * KIB


def test_a_killed_download_goes_on_where_it_was(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any, killed_midway: Any
) -> None:
    web.files["/m.bin"] = content(SIZE)
    noted = killed_midway("fetch", web.url("/m.bin"), tmp_path)
    assert noted >= 4
    seen: list[Progress] = []
    found = fetch(web.url("/m.bin"), tmp_path, seen.append, options=options)
    assert found.read_bytes() == content(SIZE)
    assert len(web.requests) == 1 + 16 - noted  # the probe, and each part that was missing once
    assert seen[0].done_bytes >= noted * 64 * KIB
    assert seen[-1].done_bytes == SIZE


def test_a_file_that_changed_in_between_is_fetched_from_its_start(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any, killed_midway: Any
) -> None:
    web.files["/m.bin"] = content(SIZE, seed=1)
    killed_midway("fetch", web.url("/m.bin"), tmp_path)
    web.files["/m.bin"] = content(SIZE, seed=2)
    found = fetch(web.url("/m.bin"), tmp_path, options=options)
    assert found.read_bytes() == content(SIZE, seed=2)
    assert not list((tmp_path / "partial").iterdir())  # the leavings of the other version are gone


def test_a_hash_is_checked_over_parts_of_both_runs(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any, killed_midway: Any
) -> None:
    import hashlib

    web.files["/m.bin"] = content(SIZE)
    uri = web.url("/m.bin") + "#sha256=" + hashlib.sha256(content(SIZE)).hexdigest()
    killed_midway("fetch", uri, tmp_path)
    assert fetch(uri, tmp_path, options=options).read_bytes() == content(SIZE)


def _part_file(tmp_path: Path, entry: Entry, part_bytes: int = 4) -> PartFile:
    file = PartFile(entry, tmp_path / "files", tmp_path, part_bytes, "uri")
    file.resume()
    return file


def test_a_log_is_believed_only_for_the_same_object_parts_and_boot(tmp_path: Path, monkeypatch: Any) -> None:
    entry = Entry("m.bin", 12, etag="v1")
    _part_file(tmp_path, entry).finish_part(1)
    assert _part_file(tmp_path, entry).missing_parts() == [0, 2]
    assert _part_file(tmp_path, replace(entry, etag="v2")).missing_parts() == [0, 1, 2]
    _part_file(tmp_path, entry).finish_part(1)
    assert _part_file(tmp_path, entry, part_bytes=6).missing_parts() == [0, 1]
    _part_file(tmp_path, entry).finish_part(1)
    monkeypatch.setattr("pilotlight_predictor.storage.transfer.boot_id", lambda: "another boot")
    assert _part_file(tmp_path, entry).missing_parts() == [0, 1, 2]


def test_a_log_that_was_cut_off_costs_one_part(tmp_path: Path) -> None:
    entry = Entry("m.bin", 12, etag="v1")
    _part_file(tmp_path, entry).finish_part(1)
    log = next(tmp_path.glob("*.log"))
    log.write_text(log.read_text() + "99\n2garbage")
    assert _part_file(tmp_path, entry).missing_parts() == [0, 2]

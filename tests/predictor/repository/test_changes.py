"""Poll mode's view of a repository: what counts as a change, and when it has settled."""

import os
from pathlib import Path

from pilotlight_predictor.repository.change_detection import (
    Changes,
    Fingerprint,
    changed_versions,
    diff,
    fingerprint,
    settled,
    settled_changes,
)
from pilotlight_predictor.repository.layout import plain_source, scan


def seen(repository: Path) -> dict[str, Fingerprint]:
    return {source.name: fingerprint(source) for source in scan(repository)}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_models_that_come_go_and_change_are_told_apart(tmp_path: Path) -> None:
    for name in ("stays", "goes", "grows"):
        write(tmp_path / name / "1/model.onnx", "x")
    before = seen(tmp_path)
    write(tmp_path / "grows/2/model.onnx", "y")
    write(tmp_path / "comes/1/model.onnx", "z")
    (tmp_path / "goes").rename(tmp_path / ".goes")
    assert diff(before, seen(tmp_path)) == Changes(("comes",), ("goes",), ("grows",))
    assert diff(before, before) == Changes()


def test_each_kind_of_file_counts(tmp_path: Path) -> None:
    for path in ("m/config.pbtxt", "m/labels.txt", "m/warmup/x.bin", "m/1/model.onnx", "m/1/deep/weights.bin"):
        write(tmp_path / path, "x")
        before = seen(tmp_path)
        write(tmp_path / path, "xy")
        assert diff(before, seen(tmp_path)).changed == ("m",), path


def test_a_file_swapped_for_one_of_equal_size_and_time_counts(tmp_path: Path) -> None:
    target = tmp_path / "m/1/model.onnx"
    write(target, "old")
    before, stamp = seen(tmp_path), target.stat()
    write(tmp_path / "new", "new")
    os.utime(tmp_path / "new", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (tmp_path / "new").replace(target)
    assert diff(before, seen(tmp_path)).changed == ("m",)


def test_what_loading_writes_does_not_count(tmp_path: Path) -> None:
    write(tmp_path / "m/1/model.py", "x")
    before = seen(tmp_path)
    write(tmp_path / "m/1/__pycache__/model.pyc", "x")
    write(tmp_path / "m/1/.nfs0001", "x")
    assert seen(tmp_path) == before


def test_a_link_to_a_directory_above_ends(tmp_path: Path) -> None:
    write(tmp_path / "m/1/model.onnx", "x")
    (tmp_path / "m/1/loop").symlink_to(tmp_path / "m/1")
    assert [stamp.path for stamp in seen(tmp_path)["m"].versions[0][1]] == ["model.onnx"]


def test_a_swap_behind_links_counts(tmp_path: Path) -> None:
    """How Kubernetes updates a mounted volume."""
    for version in ("old", "new"):
        write(tmp_path / f"m/..{version}/1/model.onnx", version)
    (tmp_path / "m/..data").symlink_to("..old")
    (tmp_path / "m/1").symlink_to("..data/1")
    before = seen(tmp_path)
    (tmp_path / "m/..tmp").symlink_to("..new")
    (tmp_path / "m/..tmp").replace(tmp_path / "m/..data")
    assert diff(before, seen(tmp_path)).changed == ("m",)


def test_only_the_version_that_changed_is_named_unless_all_share_the_change(tmp_path: Path) -> None:
    for version in ("1", "2"):
        write(tmp_path / f"m/{version}/model.onnx", "x")
    before = seen(tmp_path)["m"]
    write(tmp_path / "m/2/model.onnx", "xy")
    write(tmp_path / "m/3/model.onnx", "x")
    assert changed_versions(before, seen(tmp_path)["m"]) == {2, 3}
    write(tmp_path / "m/config.pbtxt", "")
    assert changed_versions(before, seen(tmp_path)["m"]) == {1, 2, 3}


def test_a_plain_file_is_watched_alone(tmp_path: Path) -> None:
    write(tmp_path / "iris.onnx", "x")
    source = plain_source(tmp_path / "iris.onnx", None)
    before = fingerprint(source)
    write(tmp_path / "other.onnx", "x")
    assert fingerprint(source) == before
    write(tmp_path / "iris.onnx", "xy")
    assert fingerprint(source) != before


def test_a_model_still_being_copied_waits_until_two_polls_agree(tmp_path: Path) -> None:
    acted: dict[str, Fingerprint] = {}
    polls = []
    for content in ("ten", "ten and more", "ten and more"):
        if not polls or (tmp_path / "m/1/model.onnx").read_text() != content:
            write(tmp_path / "m/1/model.onnx", content)
        polls.append(seen(tmp_path))
    assert settled_changes(acted, {}, polls[0]) == Changes()
    assert settled_changes(acted, polls[0], polls[1]) == Changes()
    assert settled_changes(acted, polls[1], polls[2]) == Changes(added=("m",))
    assert settled_changes(polls[2], polls[1], polls[2]) == Changes()


def test_a_model_that_vanished_for_one_poll_only_is_not_removed(tmp_path: Path) -> None:
    write(tmp_path / "m/1/model.onnx", "x")
    there = seen(tmp_path)
    assert settled_changes(there, there, {}) == Changes()
    assert settled_changes(there, {}, there) == Changes()
    assert settled_changes(there, {}, {}) == Changes(removed=("m",))


def test_settled_compares_two_polls() -> None:
    one, other = Fingerprint((), ()), Fingerprint((), ((1, ()),))
    assert settled(one, one)
    assert settled(None, None)
    assert not settled(one, other)
    assert not settled(None, one)

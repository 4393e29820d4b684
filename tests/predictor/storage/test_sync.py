import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.store_interface import FetchOptions
from pilotlight_predictor.storage.sync import SyncPlan, plan_sync, sync_repository


def _tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
    return {path: body for path, body in found.items() if not path.startswith(".pilotlight-")}


def test_a_repository_is_followed_through_its_changes(bucket: Any, tmp_path: Path, options: FetchOptions) -> None:
    bucket.put("repo/iris/config.pbtxt", b"one")
    bucket.put("repo/iris/1/model.onnx", b"v1")
    bucket.put("repo/gone/1/model.onnx", b"gone")
    uri, home = bucket.uri("repo"), tmp_path / "repo"
    assert sync_repository(uri, home, options=options)
    expected = {"iris/config.pbtxt": b"one", "iris/1/model.onnx": b"v1", "gone/1/model.onnx": b"gone"}
    assert _tree(home) == expected
    assert not sync_repository(uri, home, options=options)

    bucket.put("repo/iris/2/model.onnx", b"v2")
    bucket.put("repo/iris/config.pbtxt", b"two")
    bucket.put("repo/fresh/1/model.onnx", b"fresh")
    bucket.delete("repo/iris/1/model.onnx")
    bucket.delete("repo/gone/1/model.onnx")
    assert sync_repository(uri, home, options=options)
    expected = {"iris/config.pbtxt": b"two", "iris/2/model.onnx": b"v2", "fresh/1/model.onnx": b"fresh"}
    assert _tree(home) == expected
    assert sorted(path.name for path in home.iterdir()) == [".pilotlight-sync.json", "fresh", "iris"]
    assert not (home / "iris/1").exists()


def test_what_stays_is_neither_downloaded_nor_touched(
    s3_bucket: Any, tmp_path: Path, options: FetchOptions, content: Any
) -> None:
    s3_bucket.put("repo/iris/1/model.onnx", content(300_000))
    s3_bucket.put("repo/iris/2/model.onnx", b"two")
    sync_repository(s3_bucket.uri("repo"), tmp_path / "repo", options=options)
    before = (tmp_path / "repo/iris/1/model.onnx").stat(), (tmp_path / "repo/iris/1").stat()
    changed = (tmp_path / "repo/iris/2").stat()
    s3_bucket.put("repo/iris/2/model.onnx", b"two again")
    seen: list[Any] = []
    assert sync_repository(s3_bucket.uri("repo"), tmp_path / "repo", seen.append, options=options)
    after = (tmp_path / "repo/iris/1/model.onnx").stat(), (tmp_path / "repo/iris/1").stat()
    assert (after[0].st_ino, after[0].st_mtime_ns) == (before[0].st_ino, before[0].st_mtime_ns)
    assert after[1].st_mtime_ns == before[1].st_mtime_ns
    assert (tmp_path / "repo/iris/2").stat().st_mtime_ns != changed.st_mtime_ns


def test_a_reader_never_sees_half_a_model(s3_bucket: Any, tmp_path: Path, options: FetchOptions) -> None:
    """Two files that must agree, read over and over while the model changes: each pair comes from one state."""
    home = tmp_path / "repo"

    def publish(version: int) -> None:
        for name in ("config.pbtxt", "1/model.onnx"):
            s3_bucket.put(f"repo/iris/{name}", b"%d" % version)

    publish(0)
    sync_repository(s3_bucket.uri("repo"), home, options=options)
    stop, torn, pairs = threading.Event(), [], 0

    def read() -> None:
        nonlocal pairs
        import os

        while not stop.is_set():
            model = os.open(home / "iris", os.O_RDONLY)  # one directory, as a loader that has entered it sees it
            try:
                texts = [_read_at(model, name) for name in ("config.pbtxt", "1/model.onnx")]
            finally:
                os.close(model)
            pairs += 1
            if None not in texts and texts[0] != texts[1]:
                torn.append(texts)

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(1, 8):
        publish(version)
        sync_repository(s3_bucket.uri("repo"), home, options=options)
    stop.set()
    reader.join()
    assert torn == []
    assert pairs > 0
    assert (home / "iris/1/model.onnx").read_bytes() == b"7"


def _read_at(directory: int, name: str) -> bytes | None:
    import os

    try:
        with open(os.open(name, os.O_RDONLY, dir_fd=directory), "rb") as file:
            return file.read()
    except FileNotFoundError:  # the directory was replaced and removed while it was held
        return None


def test_a_store_that_cannot_be_read_changes_nothing(
    s3_bucket: Any, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_bucket.put("repo/iris/1/model.onnx", b"v1")
    sync_repository(s3_bucket.uri("repo"), tmp_path / "repo", options=options)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(LoadFailed, match="gave up after 2 attempts"):
        sync_repository(s3_bucket.uri("repo"), tmp_path / "repo", options=replace(options, retries=1))
    assert _tree(tmp_path / "repo") == {"iris/1/model.onnx": b"v1"}


def test_an_interrupted_sync_keeps_the_old_model_and_goes_on_later(
    s3_bucket: Any, tmp_path: Path, options: FetchOptions, content: Any
) -> None:
    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.done_bytes:
            raise Stop

    s3_bucket.put("repo/iris/1/model.onnx", b"v1")
    sync_repository(s3_bucket.uri("repo"), tmp_path / "repo", options=options)
    s3_bucket.put("repo/iris/1/model.onnx", content(500_000))
    with pytest.raises(Stop):
        sync_repository(s3_bucket.uri("repo"), tmp_path / "repo", stop, options=options)
    assert _tree(tmp_path / "repo") == {"iris/1/model.onnx": b"v1"}
    assert sync_repository(s3_bucket.uri("repo"), tmp_path / "repo", options=options)
    assert _tree(tmp_path / "repo") == {"iris/1/model.onnx": content(500_000)}


def test_another_uri_replaces_what_was_there(s3_bucket: Any, tmp_path: Path, options: FetchOptions) -> None:
    s3_bucket.put("a/iris/1/model.onnx", b"same")
    s3_bucket.put("b/rose/1/model.onnx", b"same")
    sync_repository(s3_bucket.uri("a"), tmp_path / "repo", options=options)
    assert sync_repository(s3_bucket.uri("b"), tmp_path / "repo", options=options)
    assert _tree(tmp_path / "repo") == {"rose/1/model.onnx": b"same"}


def test_one_file_is_no_repository(s3_bucket: Any, tmp_path: Path, options: FetchOptions) -> None:
    s3_bucket.put("repo/model.onnx", b"x")
    with pytest.raises(LoadFailed, match="is one file, a repository is a directory of models"):
        sync_repository(s3_bucket.uri("repo/model.onnx"), tmp_path / "repo", options=options)


def test_the_plan_names_models_not_files() -> None:
    before = {"a/1/m": "1", "b/1/m": "1", "c/1/m": "1", "labels.txt": "1"}
    after = {"a/1/m": "1", "b/1/m": "2", "d/1/m": "1", "labels.txt": "1"}
    assert plan_sync(before, after) == SyncPlan(changed=["b", "d"], removed=["c"])
    assert plan_sync(after, after) == SyncPlan([], [])

from pathlib import Path
from typing import Any

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.fetcher import fetch, listing
from pilotlight_predictor.storage.store_interface import FetchOptions, UriNotFound
from pilotlight_predictor.storage.uri import parse, reference

LFS = frozenset({"model.safetensors"})


def test_a_repository_becomes_a_directory(hub: Any, tmp_path: Path, options: FetchOptions, content: Any) -> None:
    files = {"config.json": b"{}", "model.safetensors": content(500_000), "onnx/model.onnx": b"onnx"}
    hub.publish("org/bert", files, LFS)
    found = fetch("hf://org/bert", tmp_path, options=options)
    assert found.name == "bert"
    assert {p.relative_to(found).as_posix(): p.read_bytes() for p in found.rglob("*") if p.is_file()} == files


def test_a_file_or_a_folder_of_a_repository_can_be_named(hub: Any, tmp_path: Path, options: FetchOptions) -> None:
    hub.publish("org/bert", {"config.json": b"{}", "onnx/model.onnx": b"onnx", "onnx/a/b": b"ab"})
    assert fetch("hf_model://org/bert/onnx/model.onnx", tmp_path, options=options).read_bytes() == b"onnx"
    assert [entry.path for entry in listing("hf://org/bert/onnx", options=options)] == ["model.onnx", "a/b"]


def test_revisions_are_kept_apart(hub: Any, tmp_path: Path, options: FetchOptions) -> None:
    hub.publish("org/bert", {"m": b"old"}, revision="v1")
    hub.publish("org/bert", {"m": b"next"})
    assert (fetch("hf://org/bert@v1", tmp_path, options=options) / "m").read_bytes() == b"old"
    assert (fetch("hf://org/bert", tmp_path, options=options) / "m").read_bytes() == b"next"


def test_a_branch_that_moved_is_fetched_again(hub: Any, tmp_path: Path, options: FetchOptions) -> None:
    hub.publish("org/bert", {"m": b"old"})
    fetch("hf://org/bert", tmp_path, options=options)
    hub.publish("org/bert", {"m": b"next"})
    assert (fetch("hf://org/bert", tmp_path, options=options) / "m").read_bytes() == b"next"


def test_a_pinned_commit_in_the_cache_needs_no_hub(hub: Any, tmp_path: Path, options: FetchOptions) -> None:
    commit = hub.publish("org/bert", {"m": b"x"})
    first = fetch(f"hf://org/bert@{commit}", tmp_path, options=options)
    hub.web.requests.clear()
    assert fetch(f"hf://org/bert@{commit}", tmp_path, options=options) == first
    assert hub.web.requests == []


@pytest.mark.parametrize(("path", "kind"), [("model.safetensors", "sha256"), ("config.json", "git-sha1")])
def test_bytes_that_differ_from_the_hubs_hash_are_refused(
    hub: Any, tmp_path: Path, options: FetchOptions, path: str, kind: str
) -> None:
    commit = hub.publish("org/bert", {"config.json": b"{}", "model.safetensors": b"weights"}, LFS)
    body = hub.web.files[f"/cdn/{commit}/{path}"]
    hub.web.files[f"/cdn/{commit}/{path}"] = b"?" * len(body)
    with pytest.raises(LoadFailed, match=f"{path} has {kind} "):
        fetch("hf://org/bert", tmp_path, options=options)


def test_the_token_goes_to_the_hub_and_to_nobody_else(
    hub: Any, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_s3cr3t")
    commit = hub.publish("org/bert", {"m": b"x"})
    hub.web.redirects[f"/org/bert/resolve/{commit}/m"] = f"http://localhost:{hub.web.port}/cdn/{commit}/m"
    fetch("hf://org/bert", tmp_path, options=options)
    sent = {path.split("?")[0]: headers.get("authorization", "") for path, headers in hub.web.requests}
    assert sent[f"/org/bert/resolve/{commit}/m"] == "Bearer hf_s3cr3t"
    assert sent["/api/models/org/bert/revision/main"] == "Bearer hf_s3cr3t"
    assert sent[f"/cdn/{commit}/m"] == ""


def test_an_unknown_repository_and_revision_are_not_found(hub: Any, tmp_path: Path, options: FetchOptions) -> None:
    hub.web.headers["/api/models/org/none/revision/main"] = {"X-Error-Code": "RepoNotFound"}
    hub.web.headers["/api/models/org/bert/revision/v9"] = {"X-Error-Code": "RevisionNotFound"}
    with pytest.raises(UriNotFound, match="no such repository, or a private one; check the name and set HF_TOKEN"):
        fetch("hf://org/none", tmp_path, options=options)
    with pytest.raises(UriNotFound, match="no revision 'v9'"):
        fetch("hf://org/bert@v9", tmp_path, options=options)


def test_a_path_that_the_repository_lacks_is_not_found(hub: Any, tmp_path: Path, options: FetchOptions) -> None:
    hub.publish("org/bert", {"m": b"x"})
    with pytest.raises(UriNotFound, match="has no onnx"):
        fetch("hf://org/bert/onnx", tmp_path, options=options)


def test_a_hub_in_trouble_is_asked_again(hub: Any, tmp_path: Path, options: FetchOptions) -> None:
    hub.publish("org/bert", {"m": b"x"})
    hub.web.statuses = [503, 502]
    assert (fetch("hf://org/bert", tmp_path, options=options) / "m").read_bytes() == b"x"


def test_a_mirror_on_loopback_is_not_reached_through_a_proxy(
    hub: Any, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish("org/bert", {"m": b"x"})
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (fetch("hf://org/bert", tmp_path, options=options) / "m").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hf://gpt2", ("gpt2", "main", "")),
        ("hf://org/repo@v1.0/sub/m.onnx", ("org/repo", "v1.0", "sub/m.onnx")),
        ("hf://org/repo:abc", ("org/repo", "abc", "")),  # as KServe writes it
        ("hf://org/repo@refs%2Fpr%2F1", ("org/repo", "refs/pr/1", "")),
    ],
)
def test_a_reference_is_taken_apart(uri: str, expected: tuple[str, str, str]) -> None:
    assert tuple(reference(parse(uri))) == expected


@pytest.mark.parametrize("uri", ["hf://", "hf://org/repo@", "hf://org/repo/../x"])
def test_a_reference_that_cannot_be_read_says_how_to_write_it(uri: str) -> None:
    with pytest.raises(LoadFailed, match=r"write hf://org/repo\[@revision\]\[/path\]"):
        reference(parse(uri))

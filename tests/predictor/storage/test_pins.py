"""Pins: a revision serves the bytes it was deployed with, or none."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests import object_stores
from tests.predictor.storage.conftest import WebServer

from pilotlight_predictor.errors import LoadFailed, ModelChanged
from pilotlight_predictor.storage.command import main as fetch_command
from pilotlight_predictor.storage.fetcher import fetch, fetch_into
from pilotlight_predictor.storage.pin_command import main as pin_command
from pilotlight_predictor.storage.pin_command import resolve
from pilotlight_predictor.storage.pins import MAX_FILES, parse_pin, pin_of
from pilotlight_predictor.storage.store_interface import Contents, Entry, FetchOptions, Pin, UriNotFound
from pilotlight_predictor.storage.uri import parse

Pinned = Callable[[str], FetchOptions]


@pytest.fixture
def pinned(options: FetchOptions) -> Pinned:
    """Options with the pin of a URI, after the way through JSON that the platform takes."""

    def resolved(uri: str) -> FetchOptions:
        return replace(options, pin=parse_pin(json.loads(json.dumps(asdict(resolve(uri, options)))), uri))

    return resolved


def _kind(options: FetchOptions) -> str:
    assert options.pin is not None
    return options.pin.kind


def _files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_the_pinned_version_of_an_object_is_fetched_after_an_overwrite(
    versioned_bucket: Any, tmp_path: Path, pinned: Pinned, content: Any
) -> None:
    uri = versioned_bucket.uri("iris/model.onnx")
    versioned_bucket.put("iris/model.onnx", content(300_000))
    old = pinned(uri)
    versioned_bucket.put("iris/model.onnx", content(200_000, seed=1))
    new = pinned(uri)
    assert _kind(old) == _kind(new) == "versions"
    assert fetch(uri, tmp_path, options=old).read_bytes() == content(300_000)
    assert fetch(uri, tmp_path, options=new).read_bytes() == content(200_000, seed=1)
    assert fetch(uri, tmp_path, options=old).read_bytes() == content(300_000)


def test_the_pinned_versions_of_a_folder_are_fetched_after_changes_of_every_kind(
    versioned_bucket: Any, tmp_path: Path, pinned: Pinned
) -> None:
    for path in ("config.pbtxt", "1/model.onnx", "1/weights.bin"):
        versioned_bucket.put(f"iris/{path}", f"old {path}".encode())
    old = pinned(versioned_bucket.uri("iris"))
    versioned_bucket.put("iris/1/model.onnx", b"new")
    versioned_bucket.put("iris/2/model.onnx", b"added")
    versioned_bucket.delete("iris/1/weights.bin")
    expected = {path: f"old {path}".encode() for path in ("config.pbtxt", "1/model.onnx", "1/weights.bin")}
    assert _files(fetch(versioned_bucket.uri("iris"), tmp_path / "cache", options=old)) == expected
    assert _files(fetch_into(versioned_bucket.uri("iris"), tmp_path / "into", options=old)) == expected


def test_a_folder_with_one_file_of_its_own_name_stays_a_folder(
    versioned_bucket: Any, tmp_path: Path, pinned: Pinned
) -> None:
    versioned_bucket.put("iris/iris", b"old")
    old = pinned(versioned_bucket.uri("iris"))
    versioned_bucket.put("iris/iris", b"new")
    assert _files(fetch(versioned_bucket.uri("iris"), tmp_path, options=old)) == {"iris": b"old"}


def test_a_version_that_was_removed_is_a_changed_model(versioned_bucket: Any, tmp_path: Path, pinned: Pinned) -> None:
    versioned_bucket.put("model.onnx", b"old")
    old = pinned(versioned_bucket.uri("model.onnx"))
    versioned_bucket.put("model.onnx", b"new")
    versioned_bucket.expire("model.onnx")
    with pytest.raises(ModelChanged, match=r"model\.onnx changed .*version .* is no longer stored; .* with -f FILE"):
        fetch(versioned_bucket.uri("model.onnx"), tmp_path, options=old)


def test_the_current_version_is_read_without_the_permission_that_older_ones_need(
    s3_server: str, s3_bucket: Any, tmp_path: Path, pinned: Pinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3_bucket.uri("model.onnx")
    object_stores.set_versions(s3_server, s3_bucket, "Enabled")
    s3_bucket.put("model.onnx", b"old")
    old = pinned(uri)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with object_stores.version_headers(s3_server, "x-amz-version-id", refuse_old=True) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert fetch(uri, tmp_path / "one", options=old).read_bytes() == b"old"
        s3_bucket.put("model.onnx", b"new")
        with pytest.raises(ModelChanged, match=r"its version .* was refused; allow it \(on S3: s3:GetObjectVersion\)"):
            fetch(uri, tmp_path / "two", options=old)


def test_objects_that_the_next_write_replaces_are_pinned_by_etag(suspended_bucket: Any, pinned: Pinned) -> None:
    """S3 gives them the version "null", and so it does to what replaces them."""
    suspended_bucket.put("model.onnx", b"old")
    assert _kind(pinned(suspended_bucket.uri("model.onnx"))) == "etags"


def test_without_versions_changed_bytes_are_refused(bucket: Any, tmp_path: Path, pinned: Pinned) -> None:
    bucket.put("iris/model.onnx", b"old")
    bucket.put("iris/other.bin", b"same")
    one, all_of_it = pinned(bucket.uri("iris/model.onnx")), pinned(bucket.uri("iris"))
    assert _kind(one) == _kind(all_of_it) == "etags"
    bucket.put("iris/model.onnx", b"newer")
    with pytest.raises(ModelChanged, match=r"iris/model\.onnx: model\.onnx changed .*5 bytes, was 3; .* again with -f"):
        fetch(bucket.uri("iris/model.onnx"), tmp_path, options=one)
    with pytest.raises(ModelChanged, match="iris: the model changed since this revision was deployed"):
        fetch_into(bucket.uri("iris"), tmp_path / "into", options=all_of_it)
    assert not (tmp_path / "models").exists()


def test_an_equal_listing_is_fetched_and_so_is_the_old_file_put_back(
    s3_bucket: Any, tmp_path: Path, pinned: Pinned
) -> None:
    uri = s3_bucket.uri("model.onnx")
    s3_bucket.put("model.onnx", b"old")
    old = pinned(uri)
    s3_bucket.put("model.onnx", b"new")
    with pytest.raises(ModelChanged):
        fetch(uri, tmp_path, options=old)
    s3_bucket.put("model.onnx", b"old")
    assert fetch(uri, tmp_path, options=old).read_bytes() == b"old"


def test_a_cached_copy_is_used_while_the_store_is_down_and_after_the_model_changed(
    s3_bucket: Any, tmp_path: Path, pinned: Pinned, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3_bucket.uri("model.onnx")
    s3_bucket.put("model.onnx", b"old")
    old = pinned(uri)
    first = fetch(uri, tmp_path, options=options)  # a copy that was fetched without a pin serves as well
    s3_bucket.put("model.onnx", b"new")
    new = fetch(uri, tmp_path, options=pinned(uri))
    assert new.read_bytes() == b"new"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert fetch(uri, tmp_path, options=old) == first
    assert first.read_bytes() == b"old"


def test_a_filled_directory_needs_no_store(
    versioned_bucket: Any, tmp_path: Path, pinned: Pinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    versioned_bucket.put("model.onnx", b"old")
    old, uri = pinned(versioned_bucket.uri("model.onnx")), versioned_bucket.uri("model.onnx")
    fetch_into(uri, tmp_path, options=old)
    for name in ("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert fetch_into(uri, tmp_path, options=old).read_bytes() == b"old"


def test_an_object_replaced_between_listing_and_read_is_read_at_its_version(
    versioned_bucket: Any, tmp_path: Path, pinned: Pinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pilotlight_predictor.storage.stores.object_store import ObjectStore

    versioned_bucket.put("model.onnx", b"old")
    old = pinned(versioned_bucket.uri("model.onnx"))
    read, changes = ObjectStore.read, [b"new"]

    def read_after_change(self: ObjectStore, entry: Entry, start: int, end: int) -> Any:
        if changes:
            versioned_bucket.put("model.onnx", changes.pop())
        return read(self, entry, start, end)

    monkeypatch.setattr(ObjectStore, "read", read_after_change)
    assert fetch(versioned_bucket.uri("model.onnx"), tmp_path, options=old).read_bytes() == b"old"


def test_the_commit_of_a_branch_is_fetched_after_the_branch_moved(hub: Any, tmp_path: Path, pinned: Pinned) -> None:
    commit = hub.publish("org/bert", {"m": b"old", "onnx/model.onnx": b"older"})
    old = {uri: pinned(uri) for uri in ("hf://org/bert", "hf://org/bert:main", "hf://org/bert@main/onnx/model.onnx")}
    assert {options.pin.digest for options in old.values() if options.pin} == {f"commit:{commit}"}
    hub.publish("org/bert", {"m": b"new", "onnx/model.onnx": b"newer"})
    assert (fetch("hf://org/bert", tmp_path, options=old["hf://org/bert"]) / "m").read_bytes() == b"old"
    for uri, content in {"hf://org/bert:main": b"old", "hf://org/bert@main/onnx/model.onnx": b"older"}.items():
        found = fetch(uri, tmp_path, options=old[uri])
        assert (found / "m" if found.is_dir() else found).read_bytes() == content
    hub.web.requests.clear()
    fetch("hf://org/bert", tmp_path, options=old["hf://org/bert"])
    assert hub.web.requests == []


def test_a_web_file_is_pinned_by_its_etag_and_refused_when_it_changed(
    web: WebServer, tmp_path: Path, pinned: Pinned
) -> None:
    web.files["/model.onnx"] = b"old"
    old = pinned(web.url("/model.onnx?sig=s3cr3t"))
    web.files["/model.onnx"] = b"new"
    with pytest.raises(ModelChanged, match=r"model\.onnx\?\*\*\*: model\.onnx changed"):
        fetch(web.url("/model.onnx?sig=s3cr3t"), tmp_path, options=old)


def test_a_server_without_etags_cannot_be_pinned_but_by_a_hash(web: WebServer, options: FetchOptions) -> None:
    web.etags, web.files["/model.onnx"] = False, b"old"
    with pytest.raises(LoadFailed, match=r"neither ETag nor Last-Modified.*add #sha256="):
        resolve(web.url("/model.onnx"), options)
    digest = "a" * 64
    assert resolve(web.url(f"/model.onnx#sha256={digest}"), options) == Pin(f"sha256:{digest}", 3)
    assert resolve(web.url(f"/gone.onnx#sha256={digest}"), options) == Pin(f"sha256:{digest}", 0)


def test_pins_are_stable_and_differ_by_content(versioned_bucket: Any, options: FetchOptions) -> None:
    versioned_bucket.put("iris/a", b"1")
    versioned_bucket.put("iris/b", b"22")
    first = resolve(versioned_bucket.uri("iris"), options)
    assert resolve(versioned_bucket.uri("iris"), options) == first
    assert (first.size, sorted(first.files)) == (3, ["a", "b"])
    versioned_bucket.put("iris/b", b"33")
    assert resolve(versioned_bucket.uri("iris"), options).digest != first.digest


@pytest.mark.parametrize(("count", "kind"), [(MAX_FILES, "versions"), (MAX_FILES + 1, "etags")])
def test_many_files_are_pinned_without_their_versions(
    count: int, kind: str, versioned_bucket: Any, options: FetchOptions
) -> None:
    for number in range(count):
        versioned_bucket.put(f"iris/{number}", b"x")
    assert resolve(versioned_bucket.uri("iris"), options).kind == kind


def test_versions_that_do_not_fit_into_a_variable_are_left_out() -> None:
    entries = tuple(Entry(f"{number}{'x' * 400}", 1, "etag", version="v" * 100) for number in range(40))
    pin = pin_of(parse("s3://b/p"), Contents(entries))
    assert (pin.kind, pin.files) == ("etags", {})


@pytest.mark.parametrize(
    "document",
    [
        "etags:0123456789abcdef0123",
        {},
        {"digest": "etags:?"},
        {"digest": "md5:0123"},
        {"digest": "etags:0123456789abcdef0123", "size": "3"},
        {"digest": "versions:0123456789abcdef0123", "files": {}},
        {"digest": "versions:0123456789abcdef0123", "files": {"../up": "1"}},
    ],
)
def test_a_pin_that_cannot_be_read_is_refused(document: Any) -> None:
    with pytest.raises(LoadFailed, match=r"s3://b/m: pin = .*, must be .*the platform sets it"):
        parse_pin(document, "s3://b/m")


@pytest.mark.parametrize(
    ("uri", "pin"),
    [
        ("s3://b/m", Pin(f"commit:{'0' * 40}")),
        ("https://host/m", Pin(f"versions:{'0' * 20}", files={"m": "1"})),
    ],
)
def test_a_pin_that_its_store_cannot_have_is_refused(uri: str, pin: Pin, tmp_path: Path, options: FetchOptions) -> None:
    with pytest.raises(LoadFailed, match="is not a pin of"):
        fetch(uri, tmp_path, options=replace(options, pin=pin))


def test_the_fetch_command_takes_the_pin_from_its_flag_and_from_the_variable(
    web: WebServer,
    tmp_path: Path,
    options: FetchOptions,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = web.url("/model.onnx")
    web.files["/model.onnx"] = b"old"
    pin = asdict(resolve(uri, options))
    assert fetch_command([uri, str(tmp_path / "a"), "--pin", json.dumps(pin)]) == 0
    web.files["/model.onnx"] = b"new"
    assert fetch_command([uri, str(tmp_path / "a"), "--pin", json.dumps(pin)]) == 0  # it is there already
    assert fetch_command([uri, str(tmp_path / "b"), "--pin", json.dumps(pin)]) == 4
    assert fetch_command([uri, str(tmp_path / "b"), "--pin", "etags"]) == 1
    monkeypatch.setenv("INFERENCE_MODEL_PINS", json.dumps({uri: pin}))
    assert fetch_command([uri, str(tmp_path / "b")]) == 4
    assert "changed since this revision was deployed" in capsys.readouterr().err
    assert fetch_command([web.url("/model.onnx?other"), str(tmp_path / "b")]) == 0


def test_the_pin_command_prints_a_pin_or_an_error_for_each_uri(
    s3_bucket: Any, web: WebServer, capsys: pytest.CaptureFixture[str]
) -> None:
    s3_bucket.put("model.onnx", b"12345")
    web.files["/model.onnx"] = b"123"
    good, gone = [s3_bucket.uri("model.onnx"), web.url("/model.onnx")], web.url("/gone.onnx?sig=s3cr3t")
    assert pin_command(good) == 0
    pins = json.loads(capsys.readouterr().out)
    assert [(pins[uri]["digest"][:6], pins[uri]["size"], pins[uri]["files"]) for uri in good] == [
        ("etags:", 5, {}),
        ("etags:", 3, {}),
    ]
    before = web.body_bytes
    assert pin_command([*good, gone, "file:///model.onnx", "storage-config://model.onnx"]) == 1
    results = json.loads(capsys.readouterr().out)
    assert results[good[0]] == pins[good[0]]
    assert results[gone] == {"error": f"{web.url('/gone.onnx?***')}: the server returned 404; check the URL"}
    assert results["storage-config://model.onnx"]["error"].endswith("storage-config:// cannot be pinned")
    assert web.body_bytes == before  # nothing is downloaded


def test_the_pin_command_does_not_wait_for_a_silent_store(web: WebServer) -> None:
    web.files |= {"/model.onnx": b"1", "/silent.onnx": b"1"}
    web.on_request = lambda path: None if path == "/model.onnx" else web.released.wait(60) and None
    command = [sys.executable, "-m", "pilotlight_predictor", "pin", "--timeout", "1", "-"]
    uris = [web.url("/model.onnx"), web.url("/silent.onnx")]
    started = monotonic()
    process = subprocess.run(command, input="\n".join(uris), capture_output=True, text=True, timeout=50, check=False)
    results = json.loads(process.stdout)
    assert monotonic() - started < 30
    assert process.returncode == 1
    assert results[uris[0]]["digest"].startswith("etags:")
    assert results[uris[1]]["error"].startswith(("the store did not respond within 1 s", f"{uris[1]}: no connection"))


def test_a_model_that_is_gone_is_not_found(s3_bucket: Any, tmp_path: Path, pinned: Pinned) -> None:
    s3_bucket.put("model.onnx", b"old")
    old = pinned(s3_bucket.uri("model.onnx"))
    s3_bucket.delete("model.onnx")
    with pytest.raises(UriNotFound):
        fetch(s3_bucket.uri("model.onnx"), tmp_path, options=old)

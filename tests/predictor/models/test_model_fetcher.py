"""Models from elsewhere: their runtime is imported while their bytes are on the way."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.eventually import eventually
from tests.onnx_models import write_add_sub

from pilotlight_predictor.config import SettingsError, parse
from pilotlight_predictor.core import backend_table
from pilotlight_predictor.errors import ModelChanged
from pilotlight_predictor.models import sources
from pilotlight_predictor.models.sources import ModelFetcher, backends_for, file_names
from pilotlight_predictor.storage.pin_command import resolve
from pilotlight_predictor.storage.store_interface import FetchOptions


@contextmanager
def serving(body: bytes, may_send: threading.Event) -> Iterator[str]:
    """The URL of a model.onnx whose bytes come once `may_send` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{len(body)}"')
            self.end_headers()
            self.wfile.flush()
            may_send.wait(60)
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/model.onnx"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_runtime_is_imported_while_the_bytes_are_still_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are released by the import: were it not beside the download, neither would ever end."""
    may_send, imported = threading.Event(), []

    def prepare(row: backend_table.BackendEntry) -> None:
        imported.append(row.names[0])
        may_send.set()

    monkeypatch.setattr(sources, "prepare", prepare)
    body = (write_add_sub(tmp_path / "models", "m") / "1/model.onnx").read_bytes()
    with serving(body, may_send) as url:
        brings = ModelFetcher(str(tmp_path / "cache"), lambda progress: None)
        assert brings.model(url).read_bytes() == body
        assert brings.model(url).read_bytes() == body
    assert imported == ["onnxruntime"]
    eventually(lambda: brings.import_s > 0, "the end of the import")


def test_a_failed_import_is_the_loads_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(row: backend_table.BackendEntry) -> None:
        raise ImportError("no such runtime")

    may_send = threading.Event()
    may_send.set()
    monkeypatch.setattr(sources, "prepare", fails)
    with serving(b"bytes", may_send) as url:
        assert ModelFetcher(str(tmp_path), lambda progress: None).model(url).read_bytes() == b"bytes"


def test_a_path_of_this_machine_is_taken_as_it_is(tmp_path: Path) -> None:
    brings = ModelFetcher("", lambda progress: None)
    assert brings.model(str(tmp_path)) == brings.repository(str(tmp_path)) == tmp_path
    assert brings.repository(f"file://{tmp_path}") == tmp_path


def test_backends_are_guessed_from_file_names_each_once() -> None:
    names = ["config.pbtxt", "model.onnx", "other.onnx", "model.py", "labels.txt"]
    assert [row.names[0] for row in backends_for(names)] == ["onnxruntime", "python"]
    assert file_names("https://host/a/resnet.onnx?version=3") == ["resnet.onnx"]
    assert file_names("s3://bucket/model.tar.gz") == ["model.tar.gz"]


def _pinned(uri: str) -> dict[str, Any]:
    return {uri: asdict(resolve(uri, FetchOptions()))}


def test_a_pinned_model_in_the_cache_is_served_without_its_store(tmp_path: Path) -> None:
    """Also of a URI whose runtime only a listing could name: none is sent."""
    may_send = threading.Event()
    may_send.set()
    with serving(b"bytes", may_send) as url:
        pins = _pinned(url)
        first = ModelFetcher(str(tmp_path), lambda progress: None, pins).model(url)
    again = ModelFetcher(str(tmp_path), lambda progress: None, pins)
    assert again.model(url) == first
    assert not again._prepared


def test_a_model_that_changed_since_its_revision_was_deployed_fails_to_load(tmp_path: Path) -> None:
    may_send = threading.Event()
    may_send.set()
    with serving(b"bytes", may_send) as url:
        pins = _pinned(url)
        pins[url]["digest"] = "etags:" + "0" * 20
        with pytest.raises(ModelChanged, match=r"model\.onnx changed since this revision was deployed"):
            ModelFetcher(str(tmp_path), lambda progress: None, pins).model(url)
        assert ModelFetcher(str(tmp_path), lambda progress: None).model(url).read_bytes() == b"bytes"


def test_pins_that_are_no_json_object_are_refused_at_start() -> None:
    with pytest.raises(SettingsError, match=r"model\.pins = .*, must be a JSON object of URIs and their pins"):
        parse(["--model-path", "m", "--model-pins", "[]"], {})

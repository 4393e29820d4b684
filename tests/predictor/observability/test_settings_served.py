"""Trace and log settings of a running server, changed by Triton's own clients."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tests.onnx_models import write_add_sub, write_identity
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.serving import RunningServer
from tritonclient.utils import InferenceServerException

Serve = Callable[..., RunningServer]
CLEARED = {"trace_file": None, "trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def server(files: Path, tmp_path_factory: pytest.TempPathFactory, serve_module: Serve) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    write_add_sub(repository, "add_sub", config="max_batch_size: 8")
    write_identity(repository, "words", "BYTES")
    return serve_module(repository, "--grpc-port", "0", "--files-dir", str(files))


class Client:
    """One of Triton's, whose answers are made alike."""

    def __init__(self, library: Any, server: RunningServer) -> None:
        self.library = library
        self.real = library.InferenceServerClient(server.address if library is triton_http else grpc_address(server))

    def trace(self, model: str | None = None, **settings: Any) -> dict[str, Any]:
        real = self.real
        answer = real.update_trace_settings(model, settings) if settings else real.get_trace_settings(model)
        if isinstance(answer, dict):
            return answer
        found = {key: list(value.value) for key, value in answer.settings.items()}
        return {key: value if key == "trace_level" else value[0] for key, value in found.items()}

    def logging(self, **settings: Any) -> dict[str, Any]:
        answer = self.real.update_log_settings(settings) if settings else self.real.get_log_settings()
        if isinstance(answer, dict):
            return answer
        return {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in answer.settings.items()}

    def add(self, identity: str = "") -> None:
        inputs = [self.library.InferInput(name, [1, 4], "FP32") for name in "ab"]
        for tensor in inputs:
            tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        self.real.infer("add_sub", inputs, request_id=identity)


@pytest.fixture(params=["http", "grpc"])
def client(server: RunningServer, request: pytest.FixtureRequest) -> Iterator[Client]:
    made = Client(triton_http if request.param == "http" else triton_grpc, server)
    yield made
    made.trace("add_sub", **CLEARED)
    made.trace(**CLEARED)
    made.logging(
        log_file="", log_info=True, log_warning=True, log_error=True, log_verbose_level=0, log_format="default"
    )
    made.real.close()


def lines(server: RunningServer, path: Path, count: int) -> list[dict[str, Any]]:
    """Of a file that another process may be writing: whole ones."""

    def whole() -> list[str]:
        return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []

    server.wait_until(lambda: len(whole()) >= count, "writing traces")
    return [json.loads(line) for line in whole()]


def test_sampled_requests_are_written_with_their_times(server: RunningServer, client: Client, files: Path) -> None:
    name = f"every-second-{client.library.__name__}"
    told = client.trace(trace_file=name, trace_level=["TIMESTAMPS"], trace_rate="2", trace_count="2")
    assert told == {
        "trace_file": name, "trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": "2", "log_frequency": "0",
        "trace_mode": "triton",
    }  # fmt: skip
    assert client.trace() == told
    for index in range(8):
        client.add(f"request-{index}")
    found = lines(server, files / name, 2)
    assert [line["request_id"] for line in found] == ["request-1", "request-3"]
    assert {(line["model_name"], line["model_version"]) for line in found} == {("add_sub", 1)}
    names = [stamp["name"] for stamp in found[0]["timestamps"]]
    assert (names[0], names[-1]) == ("REQUEST_START", "REQUEST_END")
    assert {"QUEUE_START", "COMPUTE_START", "COMPUTE_END"} <= set(names)
    times = [stamp["ns"] for stamp in found[0]["timestamps"]]
    assert times == sorted(times)


def test_a_model_may_have_settings_of_its_own(server: RunningServer, client: Client, files: Path) -> None:
    name = f"own-{client.library.__name__}"
    client.trace("add_sub", trace_file=name, trace_level=["TENSORS"], trace_rate="1")
    assert client.trace()["trace_level"] == ["OFF"]
    client.add()
    (line,) = lines(server, files / name, 1)
    assert line["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [1, 4], "data": [1.0] * 4}
    assert [tensor["name"] for tensor in line["outputs"]] == ["sum", "difference"]
    assert client.trace("add_sub", trace_level=None, trace_file=None, trace_rate=None) == client.trace()


def test_a_model_that_is_unknown_has_no_settings(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="unknown model"):
        client.trace("nobody")


def test_what_is_wrong_changes_nothing(client: Client) -> None:
    before = client.trace()
    with pytest.raises(InferenceServerException, match="trace_rate"):
        client.trace(trace_level=["TIMESTAMPS"], trace_rate="none")
    with pytest.raises(InferenceServerException, match="trace_file"):
        client.trace(trace_file="../elsewhere")
    assert client.trace() == before


def test_log_settings_are_told_and_changed(client: Client, files: Path) -> None:
    assert client.logging() == {
        "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
        "log_format": "default",
    }  # fmt: skip
    path = files / f"log-{client.library.__name__}"
    told = client.logging(log_file=path.name, log_info=False, log_verbose_level=3, log_format="ISO8601")
    assert told == client.logging() == {
        "log_file": path.name, "log_info": False, "log_warning": True, "log_error": True, "log_verbose_level": 3,
        "log_format": "ISO8601",
    }  # fmt: skip
    assert path.exists()


def test_wrong_log_settings_are_named(client: Client) -> None:
    for wrong in ({"log_format": "xml"}, {"log_file": "../x"}, {"log_colour": True}):
        with pytest.raises(InferenceServerException, match=next(iter(wrong))):
            client.logging(**wrong)


def test_a_missing_folder_of_the_files_is_created(serve: Serve, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "words", "BYTES")
    server = serve(tmp_path / "models", "--files-dir", str(tmp_path / "new/files"))
    server.post("/v2/trace/setting", {"trace_file": "x", "trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    assert server.post("/v2/models/words/infer", body).status == 200
    server.wait_until((tmp_path / "new/files/x").is_file, "the trace")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_folder_of_the_files_that_cannot_be_created_ends_the_start(
    serve: Serve, tmp_path: Path, workers: str
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "file").touch()
    flags = ("--files-dir", str(tmp_path / "file/files"), "--workers", workers)
    with pytest.raises(AssertionError, match="exit code 1") as ended:
        serve(tmp_path / "models", *flags)
    assert f"files_dir = {tmp_path}/file/files, cannot be created: Not a directory (--files-dir)" in str(ended.value)


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_file_that_leads_elsewhere_or_blocks_is_not_written(serve: Serve, tmp_path: Path, kind: str) -> None:
    files, elsewhere = tmp_path / "files", tmp_path / "elsewhere"
    files.mkdir()
    elsewhere.write_text("")
    os.mkfifo(files / "x") if kind == "fifo" else (files / "x").symlink_to(elsewhere)
    write_identity(tmp_path / "models", "words", "BYTES")
    server = serve(tmp_path / "models", "--files-dir", str(files), ready=True)
    reply = server.post("/v2/logging", {"log_file": "x"})
    assert (reply.status, "cannot be opened in --files-dir" in reply.json()["error"]) == (400, True)
    server.post("/v2/trace/setting", {"trace_file": "x", "trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    assert server.post("/v2/models/words/infer", body).status == 200
    server.wait_until(lambda: "trace.failed" in str(server.log()), "refusing the trace file")
    assert server.get("/v2/health/live").status == 200
    assert elsewhere.read_text() == ""


def test_a_level_that_is_off_is_not_logged(serve: Serve, tmp_path: Path) -> None:
    repository, files = tmp_path / "models", tmp_path / "files"
    files.mkdir()
    write_identity(repository, "words", "BYTES")
    mode = ("--model-control-mode", "explicit", "--files-dir", str(files))
    server = serve(repository, *mode, ready=True)

    def load() -> None:
        assert server.post("/v2/repository/models/words/load").status == 200

    server.post("/v2/logging", {"log_file": "one"})
    load()
    events = [json.loads(line)["event"] for line in (files / "one").read_text().splitlines()]
    assert events == ["model.loading", "model.loaded"]
    server.post("/v2/logging", {"log_file": "two", "log_info": False})
    load()
    assert (files / "two").read_text() == ""
    server.post("/v2/logging", {"log_file": "three", "log_info": True, "log_format": "ISO8601"})
    load()
    assert " INFO     model.loaded: " in (files / "three").read_text()
    server.post("/v2/logging", {"log_file": "", "log_format": "default"})
    seen = len(server.log())
    load()
    assert [line["event"] for line in server.log()[seen:]] == ["model.loading", "model.loaded"]


def test_files_need_a_folder_and_changes_an_admin(zoo: Path, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    server = serve(zoo, "--admin-token-file", str(tmp_path / "token"))
    admin = {"Authorization": "Bearer secret"}
    for path in ("/v2/trace/setting", "/v2/models/add_sub/trace/setting", "/v2/logging"):
        assert server.post(path, {}).status == 403
        assert server.post(path, {}, admin).status == 200
    for path, document in (("/v2/trace/setting", {"trace_file": "t"}), ("/v2/logging", {"log_file": "l"})):
        refused = server.post(path, document, admin)
        assert (refused.status, "--files-dir" in refused.error) == (403, True)

"""Real predictors that fail for real, and what is said of each: by the status of the server itself and its log."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests import object_stores
from tests.embedded import Platform
from tests.eventually import eventually
from tests.onnx_models import write_python
from tests.ports import free_port
from tests.serving import RunningServer

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.diagnosis import Advice, Evidence, diagnose
from pilotlight.microservices.inference.client import InferenceFailed
from pilotlight.microservices.inference.predict import predict
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.launcher import StartRequest
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.media import Limits
from pilotlight.microservices.registry.model_kinds import schema, validate
from pilotlight.microservices.registry.records import Entry, PlatformStatus
from pilotlight.microservices.registry.registry_file import registry

IDENTITY = 'INPUTS = {"x": ("FP32", [1])}\nOUTPUTS = {"x": ("FP32", [1])}\n\n\ndef predict(x):\n    return x\n'


@contextmanager
def predictor(folder: Path, model: str, **environ: str) -> Iterator[RunningServer]:
    """A microservice as platforms start it, without the wait for it."""
    flags = ["--model-path", model, "--model-name", "model", "--microservice"]
    own = {"PILOTLIGHT_CACHE_DIR": str(folder / "cache"), **environ}
    with RunningServer(folder, *flags, env=own, ready=False) as server:
        yield server


def diagnosed(server: RunningServer) -> list[Advice]:
    """Once it has given up; what a status would say then."""
    status: dict[str, Any] = {}

    def failed() -> bool:
        status.clear()
        status.update(server.get("/status").json())
        return status["state"] == "failed"

    server.wait_until(failed, "failed", 100)
    tail = tuple(json.dumps(line) for line in server.log()[-20:])
    return list(diagnose(Evidence(phase="failed", status=status, platform=PlatformStatus("running", tail=tail))))


def only(found: list[Advice], name: str) -> Advice:
    assert [each.name for each in found] == [name], found
    return found[0]


def test_a_missing_file(tmp_path: Path) -> None:
    with predictor(tmp_path, str(tmp_path / "none.onnx")) as server:
        assert "checkpoint" in only(diagnosed(server), "missing_file").advice


def test_a_corrupt_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x01this is no model at all" * 50)
    with predictor(tmp_path, str(tmp_path / "model.onnx")) as server:
        assert "export it again" in only(diagnosed(server), "bad_format").advice


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with object_stores.moto() as endpoint:
        yield endpoint


@pytest.mark.long
def test_an_object_that_is_missing(tmp_path: Path, s3: str) -> None:
    bucket = object_stores.s3_bucket(s3, "models")
    with predictor(tmp_path, bucket.uri("none/model.onnx"), **bucket.env) as server:
        only(diagnosed(server), "missing_file")


def test_credentials_that_are_denied(tmp_path: Path, s3: str) -> None:
    """moto lets nobody read a private object unsigned."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3", endpoint_url=s3, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s",
        config=Config(proxies={}),
    )  # fmt: skip
    client.create_bucket(Bucket="private")
    client.put_object(Bucket="private", Key="model.onnx", Body=b"x")
    environ = {"AWS_ENDPOINT_URL": s3, "AWS_SKIP_SIGNATURE": "true"}
    with predictor(tmp_path, "s3://private/model.onnx", **environ) as server:
        assert "credentials" in only(diagnosed(server), "storage_denied").cause


def test_storage_that_cannot_be_reached(tmp_path: Path) -> None:
    environ = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    with predictor(tmp_path, "s3://bucket/model.onnx", **environ) as server:
        assert "endpoint" in only(diagnosed(server), "storage_unreachable").advice


def test_cuda_out_of_memory_by_its_own_words(tmp_path: Path) -> None:
    """No GPU is here: the model says what torch would."""
    source = f"{IDENTITY}\n\nraise RuntimeError('CUDA out of memory. Tried to allocate 20.00 GiB')\n"
    folder = write_python(tmp_path / "models", "model", source)
    with predictor(tmp_path, str(folder)) as server:
        assert "num_gpus" in only(diagnosed(server), "cuda_out_of_memory").advice


def test_a_process_that_is_ended_for_its_memory(tmp_path: Path) -> None:
    """The limit is the kernel's own, on data: what the model takes beyond it cannot be had."""
    folder = write_python(tmp_path / "models", "model", f"{IDENTITY}\n\nheld = bytearray(8 << 30)\n")
    flags = "--host 127.0.0.1 --http-port 0 --metrics-port -1 --grpc-port -1 --log-format json --exit-on-error"
    command = [sys.executable, "-m", "pilotlight_predictor", *flags.split(), "--model-path", str(folder)]
    limited = ["bash", "-c", 'ulimit -d 4000000 && exec "$@"', "limited", *command]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode != 0
    reason = f"the process exited with code {done.returncode}"
    seen = PlatformStatus("failed", reason=reason, tail=tuple(done.stderr.splitlines()))
    found = [each.name for each in diagnose(Evidence(phase="failed", platform=seen))]
    assert found == ["out_of_memory", "crashed"], done.stderr[-2000:]


class Slow(BaseHTTPRequestHandler):
    """Gives a megabyte, and then nothing until it is let go."""

    release = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(64 << 20))
        self.end_headers()
        self.wfile.write(b"\0" * (1 << 20))
        self.wfile.flush()
        self.release.wait(100)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_slow_download(tmp_path: Path) -> None:
    Slow.release.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        with predictor(tmp_path, f"http://127.0.0.1:{server.server_address[1]}/model.onnx") as running:
            status: dict[str, Any] = {}

            def comes() -> bool:
                status.clear()
                status.update(running.get("/status").json())
                return bool(status.get("progress"))

            running.wait_until(comes, "fetching", 100)
            (found,) = diagnose(
                Evidence(phase="initializing", phase_s=120, status=status, platform=PlatformStatus("running"))
            )
            assert found.name == "slow_download"
            assert "MiB of 64.0 MiB in 120 s" in found.cause
            Slow.release.set()
    finally:
        Slow.release.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTLIGHT_", "INFERENCE_"))}
    return {**clean, "PILOTLIGHT_HOME": str(tmp_path / "home")}


DIES = "import os\nprint('the driver went away', flush=True)\nos._exit(3)\n"


def test_a_crash_after_the_start(tmp_path: Path, embedded: Platform) -> None:
    """A predictor that listens and dies while it loads: whoever polls would see 202 for ever."""
    environ = {**embedded.env, "PILOTLIGHT_MICROSERVICE_REGISTRY": str(tmp_path / "registry.json")}
    model = write_python(tmp_path / "models", "model", DIES)
    job = launcher.build_job(StartRequest("pilotlight", str(model), "local", host_port=free_port()), environ)
    here = TargetService("local", environ)
    entry = launcher.start(job, here, registry(environ))
    try:
        eventually(lambda: here.status(job.id, entry).state == "failed", "its end")
        found = diagnose(Evidence(job_id=job.id, phase="initializing", platform=here.status(job.id, entry)))
        assert found[0].name == "crashed"
        assert "the driver went away" in found[0].cause
        assert f"platformctl microservice logs {job.id}" in found[0].advice
    finally:
        here.stop(job.id, entry)


def test_a_stop_that_the_platform_refuses(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """A cluster whose API server is gone: what was to be deleted is still there."""
    (tmp_path / "config").write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: gone\n"
        "clusters: [{name: gone, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: gone, context: {cluster: gone, user: me}}]\nusers: [{name: me, user: {}}]\n"
    )
    entry = Entry("kubernetes", "pilotlight", "http://127.0.0.1:1", "2026-01-01T00:00:00Z", namespace="acme")
    with pytest.raises(PlatformError) as failed:
        TargetService("kubernetes", {**environ, "KUBECONFIG": str(tmp_path / "config")}).stop("job-1", entry)
    evidence = Evidence(phase="stopping", phase_s=3, errors=(str(failed.value),), operations=("stop",))
    found = next(each for each in diagnose(evidence) if each.name == "cannot_stop")
    assert "stop is still running" in found.cause
    assert "kubectl delete statefulset" in found.advice


def test_parameters_that_do_not_fit_are_told_by_us_and_by_the_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as ours:
        validate(schema("rtdetr"), {"images": "a.png", "confidence_threshold": 7})
    only(list(diagnose(Evidence(phase="ready", errors=(str(ours.value),)))), "wrong_parameters")
    folder = write_python(tmp_path / "models", "model", IDENTITY)
    of = schema("tensors")
    body = {"inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}]}
    running = RunningServer(tmp_path, "--model-path", str(folder), "--model-name", "model")
    with running as server, pytest.raises(InferenceFailed) as theirs:
        predict(server.url, of, validate(of, body), [], Limits(), 60)
    assert theirs.value.status == 400
    only(list(diagnose(Evidence(phase="ready", rejected=str(theirs.value)))), "wrong_parameters")

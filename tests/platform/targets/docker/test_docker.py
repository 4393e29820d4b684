"""The contract of targets, kept by containers of a real Docker daemon, and what is of containers alone."""

import asyncio
import hashlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import joblib
import pytest
from sklearn.linear_model import LogisticRegression
from tests.daemons.docker_daemon import IMAGE, load_variant, options
from tests.e2e.embedded.test_components import SPLIT, split
from tests.embedded import IRIS, Platform
from tests.platform.targets.target_contract import TargetContract, TargetGround

from pilotlight.control_plane.launcher_registry import describe_running
from pilotlight.errors import PlatformError, UsageError
from pilotlight.plan.types import Capabilities
from pilotlight.targets.docker.options_and_checks import findings

pytestmark = pytest.mark.platform
OTHER = "dev.local/other/server:1"  # not known as our predictor, though it is
FILES = f"""
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {{name: files}}
spec:
  supportedModelFormats: [{{name: folder, version: "1", autoSelect: true}}]
  containers:
  - name: kserve-container
    image: {OTHER}
    command: [python, -m, http.server, "8000", --directory, /]
    ports: [{{containerPort: 8000}}]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: iris}}
spec:
  predictor:
    minReplicas: 1
    timeout: 2  # seconds, after which it is killed: as first process of a container this server ignores SIGTERM
"""
ESTIMATOR = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: iris}}
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {{name: sklearn}}
      protocolVersion: v2
      storageUri: {uri}
      env: [{{name: INFERENCE_TRUST_PICKLE, value: "{pin}"}}]
"""
ROW = {"instances": [[1.0, 1.0]]}


@pytest.fixture(scope="module")
def ground(docker_engine: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetGround]:
    for name in (Capabilities().image, OTHER):
        docker(docker_engine, "tag", IMAGE, name)
    folder = tmp_path_factory.mktemp("docker") / "home"
    with Platform(folder, docker_engine, name="docker", options=options()) as platform:
        yield TargetGround(platform, IRIS.as_uri(), lambda: containers(platform))
    assert not containers(platform)


def docker(environ: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(["docker", *words], env=dict(environ), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def containers(platform: Platform) -> list[str]:
    """Names of those that the daemon knows, ended ones too."""
    label = f"--filter=label=dev.pilotlight.home={platform.home.root}"
    return sorted(docker(platform.env, "ps", "--all", "--format={{.Names}}", label).split())


class TestDocker(TargetContract):
    pass


def test_another_image_is_reached_by_a_port_of_loopback(ground: TargetGround) -> None:
    document = FILES + "    model: {modelFormat: {name: folder}}\n"
    with ground.deployed(document):
        assert ground.platform.ask("/iris/", None).status == 200
        (name,) = ground.replicas()
        assert docker(ground.platform.env, "port", name).startswith("8000/tcp -> 127.0.0.1:")


def test_an_estimator_is_served_by_the_variant_of_our_image_with_scikit_learn(
    ground: TargetGround, tmp_path: Path
) -> None:
    variant = f"{Capabilities().image}-sklearn"
    docker(ground.platform.env, "tag", load_variant(ground.platform.env, "sklearn"), variant)
    model = tmp_path / "model.joblib"
    joblib.dump(LogisticRegression().fit([[0.0, 0.0], [1.0, 1.0]], [3, 7]), model)
    pin = f"model.joblib={hashlib.sha256(model.read_bytes()).hexdigest()}"
    with ground.deployed(ESTIMATOR.format(uri=model, pin=pin)):
        assert json.loads(ground.platform.ask("/iris/v1/models/iris:predict", ROW).body) == {"predictions": [7]}
        (name,) = ground.replicas()
        assert docker(ground.platform.env, "inspect", "--format={{.Config.Image}}", name).strip() == variant


def test_an_image_that_must_not_be_pulled_is_not(ground: TargetGround) -> None:
    document = FILES.replace(f"image: {OTHER}", f"image: {OTHER}-missing\n    imagePullPolicy: Never")
    ground.platform.deploy(document + "    model: {modelFormat: {name: folder}}\n")
    ground.wait(lambda: "No such image" in ground.platform.status().message, "the reason")
    ground.delete()


def test_a_model_for_another_image_is_fetched_first(ground: TargetGround) -> None:
    serve = partial(SimpleHTTPRequestHandler, directory=IRIS.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as store:
        Thread(target=store.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{store.server_port}"
        with ground.deployed(f"{FILES}    model: {{modelFormat: {{name: folder}}, storageUri: {uri}/model.onnx}}\n"):
            assert ground.platform.ask("/iris/mnt/models/model.onnx", None).body == IRIS.read_bytes()
            log = ground.platform.target.logs(("default", "iris"), follow=False, previous=False, replica="", tail=-1)
            assert not [line for line in log if line.startswith("/")], "the log is the server's"
        ground.platform.deploy(f"{FILES}    model: {{modelFormat: {{name: folder}}, storageUri: {uri}/missing.onnx}}\n")
        ground.wait(lambda: "missing.onnx" in ground.platform.status().message, "the reason")
        ground.delete()
        store.shutdown()


def test_a_replica_is_pending_while_its_model_is_fetched_and_can_be_deleted(ground: TargetGround) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}/model.onnx"
        ground.platform.deploy(f"{FILES}    model: {{modelFormat: {{name: folder}}, storageUri: {uri}}}\n")

        def waits(why: str) -> list[str]:
            rows = [row for revision in ground.platform.status().revisions for row in revision.replicas]
            return [row.name for row in rows if (row.state, row.reason) == ("pending", why)]

        ground.wait(lambda: waits(f"fetching {uri}"), "the replica to be pending")
        before = waits(f"fetching {uri}")
        ground.platform.kill_control()
        ground.platform.wait(ground.platform.answers, "the next control process")
        ground.wait(lambda: waits("fetching its model or pulling its image") == before, "it to be pending still")
        ground.delete()


def test_folders_of_the_machine_are_mounted(ground: TargetGround, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("from outside")
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    volumes = f"""
    volumes: [{{name: notes, hostPath: {{path: {tmp_path}}}}}]
    containers:
    - name: kserve-container
      image: {OTHER}
      command: [python, -m, http.server, "8000", --directory, /]
      ports: [{{containerPort: 8000}}]
      volumeMounts: [{{name: notes, mountPath: /mnt/notes, readOnly: true}}]
"""
    with ground.deployed(FILES.partition("---")[2] + volumes):
        assert ground.platform.ask("/iris/mnt/notes/note", None).body == b"from outside"


def test_an_image_that_cannot_be_had_is_named(ground: TargetGround) -> None:
    ground.platform.deploy(FILES.replace(OTHER, "dev.local/nobody:1") + "    model: {modelFormat: {name: folder}}\n")
    ground.wait(lambda: "Error response from daemon" in ground.platform.status().message, "the reason")
    assert "dev.local/nobody" in ground.platform.status().message
    ground.delete()


def test_a_killed_client_costs_its_container_and_another_takes_its_place(ground: TargetGround) -> None:
    with ground.deployed(ground.document()) as status:
        (before,) = ground.replicas()
        assert [row.handle for row in status.revisions[0].replicas] == [before]
        os.kill(client(before), signal.SIGKILL)
        ground.wait(lambda: before not in ground.replicas() and ground.ready(1), "another replica")
        assert ground.platform.ask().status == 200


def client(name: str) -> int:
    """Process of the docker client of a container, whose parent is the shim."""
    wanted = f"--name={name}".encode()
    commands = {path.parent.name: path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline")}
    return next(int(pid) for pid, words in commands.items() if words[0] == b"docker" and wanted in words)


def test_a_killed_container_is_replaced_and_the_signal_named(ground: TargetGround) -> None:
    with ground.deployed(ground.document()):
        (before,) = ground.replicas()
        docker(ground.platform.env, "kill", before)
        ground.wait(lambda: before not in ground.replicas() and ground.ready(1), "another replica")
        assert any("signal 9" in event for event in ground.platform.events())


def test_a_container_without_a_record_ends_with_the_next_control_process(ground: TargetGround) -> None:
    labels = [f"--label=dev.pilotlight.{name}" for name in (f"home={ground.platform.home.root}", "replica=ghost")]
    with ground.deployed(ground.document()):
        docker(ground.platform.env, "run", "--detach", "--name=ghost", *labels, OTHER, "--model-path=/models/iris")
        ground.platform.kill_control()
        ground.platform.wait(ground.platform.answers, "the next control process")
        ground.wait(lambda: len(ground.replicas()) == 1, "the container without a record to go")
        assert ground.replicas() != ["ghost"]


def test_the_daemon_of_another_environment_is_not_taken_for_this_one(ground: TargetGround) -> None:
    ground.platform.options = {"docker_host": "unix:///elsewhere/docker.sock"}
    try:
        with pytest.raises(UsageError, match=r"docker_host = unix:///elsewhere/docker\.sock, but the control process"):
            ground.platform.deploy(ground.document())
    finally:
        ground.platform.options = options()


def test_a_router_finds_its_engines_on_the_network_of_the_machine(ground: TargetGround) -> None:
    with pytest.raises(PlatformError, match=r"PL376.*--target-option network=host"):
        ground.platform.deploy(split())
    ground.platform.options = {**options(), "network": "host"}
    try:
        ground.platform.deploy(split())
        ground.platform.wait_phase("Ready", name="split", seconds=ground.patience_s)
        assert len(ground.replicas()) == 3
        assert {ground.platform.ask(SPLIT).status for _ in range(4)} == {200}
    finally:
        ground.platform.options = options()
        ground.platform.empty()
        ground.wait(lambda: not ground.replicas(), "every replica to be gone")


def test_doctor_checks_the_daemon_and_the_image(docker_engine: Mapping[str, str], ground: TargetGround) -> None:
    levels = {each.check: each.level for each in findings(docker_engine, {})}
    assert levels == {"daemon": "ok", "image": "ok"}
    silent = list(findings({**docker_engine, "DOCKER_HOST": "unix:///nowhere/docker.sock"}, {}))
    assert [(each.level, each.check) for each in silent] == [("fail", "daemon")]
    assert "systemctl start docker" in silent[0].fix
    assert {each.level for each in ground.platform.target.findings()} == {"ok"}, "the control process has the daemon"


def test_a_container_counts_when_the_state_is_lost(
    docker_engine: Mapping[str, str], ground: TargetGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "DOCKER_HOST"):
        monkeypatch.setenv(name, docker_engine[name])
    with ground.deployed(FILES + "    model: {modelFormat: {name: folder}}\n"):
        (name,) = ground.replicas()
        assert asyncio.run(describe_running(ground.platform.home)) == [f"docker runs {name}"]

"""A revision serves the bytes it was deployed with, on a real cluster: after a rollback, in new pods, from zero."""

import hashlib
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from tests import object_stores
from tests.certificates import Authority
from tests.cluster.bed.places import NODE_IP, places
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.requests import BODY
from tests.cluster.scenarios import Json, Story, document
from tests.object_stores import Bucket
from tests.onnx_models import write_model

FIRST_VALUE = 5.1  # of BODY
ANSWERS = {"Identity": FIRST_VALUE, "Neg": -FIRST_VALUE, "Floor": 5.0}  # by the operator of the model
TENSOR = ("FP32", ("n", 4))
TRUSTED = "/etc/store/ca.crt"
CHANGED = "model.onnx changed since this revision was deployed"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Models that answer differently, by their operator."""
    folder = tmp_path_factory.mktemp("models")
    for operator in ANSWERS:
        write_model(folder, operator, [(operator, ["x"], ["y"])], {"x": TENSOR}, {"y": TENSOR})
    return {operator: (folder / operator / "1" / "model.onnx").read_bytes() for operator in ANSWERS}


@pytest.fixture(scope="module")
def authority(cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the stores, in a ConfigMap that their clients mount."""
    if cluster.kubeconfig != places(os.environ).kubeconfig:
        pytest.skip("only the pods of the test bed reach a server of this machine")
    made = Authority(tmp_path_factory.mktemp("authority"))
    data = {Path(TRUSTED).name: made.path.read_text()}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "authority"}, "data": data}
    cluster.apply(config, namespace=namespace)
    return made


@pytest.fixture(scope="module")
def endpoint(authority: Authority) -> Iterator[str]:
    """S3 on this machine, where pods reach it."""
    with object_stores.moto(NODE_IP) as address:
        yield address


class _Files(BaseHTTPRequestHandler):
    """Files with an ETag each, and no versions."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]

    def log_message(self, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        body = self.files.get(self.path, b"")
        self.send_response(200 if body else 404)
        self.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def https_server(authority: Authority) -> Iterator[Bucket]:
    """A web server with the authority's certificate."""
    files: dict[str, bytes] = {}
    server = ThreadingHTTPServer((NODE_IP, 0), type("Handler", (_Files,), {"files": files}))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(address=NODE_IP))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        root = f"https://{NODE_IP}:{server.server_port}"
        yield Bucket(root, lambda path, body: files.update({f"/{path}": body}), lambda path: None, {})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Pinned(Story):
    """A service whose model lies in a store. Pods have the credentials from a Secret, platformctl from the shell."""

    host = ""

    def __init__(self, cluster: Cluster, namespace: str, mode: str, bucket: Bucket, least: int = 1) -> None:
        super().__init__(cluster, namespace, f"{bucket.root.partition(':')[0]}-{mode.lower()}")
        self.mode, self.bucket, self.uri, self.least = mode, bucket, bucket.uri("iris/model.onnx"), least
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": self.name}, "stringData": bucket.env}
        cluster.apply(secret, namespace=namespace)

    def put(self, content: bytes) -> None:
        self.bucket.put("iris/model.onnx", content)

    def text(self) -> str:
        window = ("autoscaling.knative.dev/window: 6s",) if self.mode == "Serverless" else ()
        made = yaml.safe_load(document(self.name, mode=self.mode, least=self.least, uri=self.uri, annotations=window))
        predictor = made["spec"]["predictor"]
        predictor["model"]["envFrom"] = [{"secretRef": {"name": self.name}}]
        if self.uri.startswith("https://"):
            predictor["volumes"] = [{"name": "authority", "configMap": {"name": "authority"}}]
            predictor["model"] |= {
                "env": [{"name": "SSL_CERT_FILE", "value": TRUSTED}],
                "volumeMounts": [{"name": "authority", "mountPath": str(Path(TRUSTED).parent)}],
            }
        return json.dumps(made)

    def release(self) -> None:
        self.host = self.deploy(self.text()).removeprefix("http://")

    def answer(self) -> float:
        """The first value of the answer to BODY, through the ingress; 0 without an answer."""
        through = self.cluster.ingress if self.mode == "Serverless" else self.cluster.gateway
        reply = self.cluster.ask(self.host, f"/v2/models/{self.name}/infer", BODY, through=through, timeout=120)
        return round(json.loads(reply.body)["outputs"][0]["data"][0], 3) if reply.status == 200 else 0.0

    def serving(self) -> Json:
        """The row of the one revision that gets requests."""
        (row,) = [each for each in self.status()["revisions"] if each["percent"]]
        return row

    def names(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods()}

    def restart(self) -> None:
        """Replaces its pods by new ones."""
        old = self.names()
        self.cluster.kubectl("delete", "pod", "-n", self.namespace, "--wait=false", "--grace-period=1", *old)
        seconds_until(lambda: bool(self.names() - old) and not self.names() & old, "another pod")


@pytest.mark.parametrize("mode", ["Serverless", "Standard"])
def test_a_revision_keeps_the_version_that_it_was_deployed_with(
    cluster: Cluster, namespace: str, endpoint: str, models: dict[str, bytes], mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    bucket = object_stores.s3_bucket(endpoint, f"versioned-{mode.lower()}")
    object_stores.set_versions(endpoint, bucket, "Enabled")
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    story = Pinned(cluster, namespace, mode, bucket, least=0 if mode == "Serverless" else 1)
    story.put(models["Identity"])
    story.release()
    assert story.answer() == ANSWERS["Identity"]
    first = story.serving()
    assert first["model_digest"].startswith("versions:")
    assert first["model_bytes"] == len(models["Identity"])
    columns = next(
        line.split() for line in story.do("status", story.name, "-o", "wide").splitlines() if " 82 B" in line
    )
    assert columns[0] == first["name"]
    assert columns[-3:] == [first["model_digest"][: len("versions:") + 12], "82", "B"]
    assert "no difference" in story.run("diff", "-f", "-", text=story.text()).stderr
    assert "(unchanged)" in story.run("deploy", "-f", "-", text=story.text()).stderr

    story.put(models["Neg"])
    changed = story.run("diff", "-f", "-", text=story.text())
    assert changed.returncode == 1
    assert f"model {story.uri}: ~ model.onnx" in changed.stdout
    story.release()
    assert story.answer() == ANSWERS["Neg"]
    assert story.serving()["name"] != first["name"]

    story.do("rollback", story.name)
    assert story.answer() == ANSWERS["Identity"]
    assert story.serving()["name"] == first["name"]

    story.put(models["Floor"])
    if mode == "Serverless":
        seconds_until(lambda: not story.pods(), "at zero")
    else:
        story.restart()
    seconds_until(lambda: story.answer() == ANSWERS["Identity"], "a new pod has the version of its revision")
    story.do("scale", story.name, "--min", "2")
    seconds_until(lambda: story.serving()["ready"] == 2, "two pods")
    assert {story.answer() for _ in range(8)} == {ANSWERS["Identity"]}
    assert story.serving()["model_digest"] == first["model_digest"]
    story.do("delete", story.name, "--no-wait")


@pytest.mark.parametrize("mode", ["Serverless", "Standard"])
def test_what_a_store_without_versions_has_replaced_is_refused_until_it_is_deployed(
    cluster: Cluster, namespace: str, authority: Authority, models: dict[str, bytes], mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with https_server(authority) as server:
        story = Pinned(cluster, namespace, mode, server)
        story.put(models["Identity"])
        story.release()
        assert story.answer() == ANSWERS["Identity"]
        first = story.serving()
        assert first["model_digest"].startswith("etags:")

        story.put(models["Neg"])
        story.restart()
        seconds_until(lambda: story.run("status", story.name).returncode == 1, "it has failed")
        message = json.loads(story.run("status", story.name, "-o", "json").stdout)["message"]
        assert f"{story.uri}: {CHANGED}" in message
        assert "deploy again with -f FILE" in message
        seconds_until(lambda: CHANGED in story.do("events", story.name), "its events say why it does not answer")

        story.release()
        assert story.answer() == ANSWERS["Neg"]
        assert story.serving()["name"] != first["name"]
        assert "earlier releases failed" in story.run("rollback", story.name).stderr
        refused = story.run("rollback", story.name, "--to", "1")
        assert refused.returncode == 1
        assert f"ModelChanged: {story.uri} has changed" in refused.stderr
        assert "platformctl deploy -f FILE" in refused.stderr
        assert story.answer() == ANSWERS["Neg"], "nothing was taken away"
        story.do("delete", story.name, "--no-wait")


def test_a_claim_is_said_to_be_unpinned(cluster: Cluster, namespace: str) -> None:
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                 "resources": {"requests": {"storage": "1Mi"}}},
    }  # fmt: skip
    cluster.apply(claim, namespace=namespace)
    story = Story(cluster, namespace, "claim")
    text = document("claim", mode="Standard", least=1, uri="pvc://models/iris")
    deployed = story.run("deploy", "-f", "-", "--no-wait", text=text)
    assert deployed.returncode == 0, deployed.stderr
    assert "pvc://models/iris is not pinned, a replica serves what is there at its start: pvc://" in deployed.stderr
    assert "unpinned" in story.run("status", "claim", "-o", "wide").stdout
    story.do("delete", "claim", "--no-wait")

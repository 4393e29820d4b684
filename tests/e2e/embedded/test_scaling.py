"""Autoscaling by real load: as many replicas as the rules ask for, the reason in the status, and back again."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pytest
from tests.e2e.embedded.models import STANDARD, deploy_changed, python_service, slow, write_model
from tests.embedded import Platform
from tests.ports import free_port

from pilotlight.errors import PlatformError
from pilotlight.targets.target import RevisionStatus

WINDOW = "    autoscaling.knative.dev/window: 6s"
KEDA = f"{STANDARD}\n    serving.kserve.io/autoscalerClass: keda"
CPU = "      resources: {requests: {cpu: 200m, memory: 64Mi}}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


def row(platform: Platform) -> RevisionStatus:
    return platform.status("slow").revisions[0]


def says(platform: Platform, *parts: str) -> bool:
    """Whether all of them are in one and the same decision."""
    decision = row(platform).decision
    return all(part in decision for part in parts)


@contextmanager
def asked(platform: Platform, clients: int, body: Any) -> Iterator[list[int]]:
    """So many clients that ask without pause; the statuses of all answers."""
    seen: list[int] = []
    ending = threading.Event()

    def ask() -> None:
        connection = HTTPConnection("127.0.0.1", platform.address.gateway_port, timeout=60)
        while not ending.is_set():
            connection.request("POST", "/slow/v2/models/slow/infer", json.dumps(body))
            answer = connection.getresponse()
            answer.read()
            seen.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def test_load_beyond_the_target_brings_replicas_up_to_the_maximum_and_they_go_again(
    platform: Platform, model: str
) -> None:
    limits = "    minReplicas: 0\n    maxReplicas: 3\n    containerConcurrency: 2"
    platform.deploy(python_service(model, annotations=WINDOW, predictor=limits))
    platform.wait_phase("Ready", name="slow")
    with asked(platform, 6, slow(0.08)) as seen:
        platform.wait(lambda: row(platform).ready == 3, "three replicas")
        parts = ("maximum 3", "concurrent requests over", "target 1.4 per replica")  # 70 % of 2
        platform.wait(lambda: says(platform, *parts), "the maximum to be the reason")
    assert set(seen) == {200}
    assert platform.wait_phase("Standby", name="slow").revisions[0].decision == "0: no requests for 6 s"
    reasons = [event for event in platform.events() if event.startswith("Scaled")]
    assert any(event.startswith("Scaled: 3:") for event in reasons)
    assert reasons[-1] == "Scaled: 0: no requests for 6 s"


@pytest.mark.long  # the same decisions, without processes: tests of the scaler and of the life of a KPA
def test_a_service_begins_with_its_initial_scale_wakes_with_its_activation_scale_and_keeps_its_minimum(
    platform: Platform, model: str
) -> None:
    scales = (
        f"{WINDOW}\n    autoscaling.knative.dev/initial-scale: '3'\n    autoscaling.knative.dev/activation-scale: '2'"
    )
    platform.deploy(python_service(model, annotations=scales, predictor="    minReplicas: 0\n    maxReplicas: 3"))
    platform.wait(lambda: row(platform).ready == 3, "the initial three")
    platform.wait_phase("Standby", name="slow")
    assert platform.ask("/slow/v2/models/slow/infer", slow()).status == 200
    platform.wait(lambda: row(platform).ready == 2, "two by activation")
    assert "Scaled: 2: a request is waiting" in platform.events()
    platform.target.scale(("default", "slow"), {"minReplicas": 1})
    platform.wait(lambda: (row(platform).ready, row(platform).desired) == (1, 1), "one to stay")
    held = row(platform).decision
    platform.wait(lambda: row(platform).decision.startswith("1:") and row(platform).desired == 1, "the minimum to hold")
    assert platform.status("slow").phase == "Ready", held


def test_a_deployment_is_scaled_by_what_its_replicas_use_of_the_cpu(platform: Platform, model: str) -> None:
    limits = "    minReplicas: 1\n    maxReplicas: 2\n    scaleMetric: cpu\n    scaleTarget: 50"
    platform.deploy(python_service(model, annotations=STANDARD, predictor=limits, model=CPU))
    platform.wait_phase("Ready", name="slow")
    platform.wait(lambda: row(platform).decision.startswith("1: cpu"), "the use of the CPU to be known")
    with asked(platform, 1, slow(work=0.1)) as seen:
        platform.wait(lambda: row(platform).ready == 2, "a second replica")
        assert "cpu" in row(platform).decision
    assert set(seen) == {200}


@pytest.mark.long  # the same decision, without processes: tests of the scaler; with them, by the CPU: above
def test_latency_above_its_target_brings_replicas_by_our_own_metrics(platform: Platform, model: str) -> None:
    triggers = f"{KEDA}\n    pilotlight.dev/triggers: latency=0.05"
    document = python_service(model, annotations=triggers, predictor="    minReplicas: 1\n    maxReplicas: 2")
    deploy_changed(platform, document, hasty)
    platform.wait_phase("Ready", name="slow")
    with asked(platform, 2, slow(0.2)):
        platform.wait(lambda: row(platform).ready == 2, "a second replica")
        assert "latency" in row(platform).decision
    assert any(event.startswith("Scaled: 2: latency") for event in platform.events())


def hasty(manifest: dict[str, Any]) -> None:
    """Seconds where a document's minutes would be."""
    if manifest["kind"] == "ScaledObject":
        manifest["spec"] |= {"pollingInterval": 1, "cooldownPeriod": 4, "initialCooldownPeriod": 4}


def test_a_deployment_at_zero_is_woken_by_a_request_held_while_asked_and_falls_asleep_after_its_cooldown(
    platform: Platform, model: str
) -> None:
    triggers = f"{KEDA}\n    pilotlight.dev/triggers: latency=0.5"
    document = python_service(model, annotations=triggers, predictor="    minReplicas: 0\n    maxReplicas: 2")
    deploy_changed(platform, document, hasty)
    platform.wait_phase("Standby", name="slow")
    woken = platform.ask("/slow/v2/models/slow/infer", slow(6.0))
    assert woken.status == 200  # longer than the cooldown: a request in flight is asking
    assert "x-pilotlight-cold-start" in woken.headers
    # What is told meanwhile depends on whether the slow answer was scraped before: latency may ask for a second one.
    assert platform.wait_phase("Standby", name="slow").revisions[0].decision == "0: no trigger active for 4 s"


# Beyond the small evaluator: only a Prometheus can answer it.
BEYOND = "max_over_time(sum(pilotlight_requests_in_flight{inference_service='%s'})[10s:1s])"


def custom(model: str) -> str:
    return f"""
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata:
  name: slow
spec:
  model: {{name: slow}}
  engine:
    minReplicas: 1
    maxReplicas: 2
    kedaConfig:
      enableKeda: true
      customPromQuery: "{BEYOND}"
      scalingThreshold: "1"
---
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata:
  name: slow
spec:
  modelFormat: {{name: python}}
  storage:
    storageUri: {model}
"""


def test_a_query_beyond_the_evaluator_is_refused_and_names_what_would_answer_it(platform: Platform, model: str) -> None:
    with pytest.raises(PlatformError, match=r"slow-engine: the query .* needs --prometheus ADDRESS"):
        platform.deploy(custom(model))
    assert platform.target.list(None) == ()


class StandIn(BaseHTTPRequestHandler):
    """Speaks as much of Prometheus' query API as KEDA asks: one number, whatever the question."""

    queries: ClassVar[list[str]] = []
    answer = "0"

    def do_POST(self) -> None:
        assert self.path == "/api/v1/query"
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.queries.append(parse_qs(form)["query"][0])
        result = [{"metric": {}, "value": [0, self.answer]}]
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def test_a_prometheus_that_is_given_is_asked_the_documents_own_query(tmp_path: Path, model: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with Platform(tmp_path / "home", flags=("--prometheus", address)) as platform:
            deploy_changed(platform, custom(model), hasty)
            platform.wait_phase("Ready", name="slow")
            platform.wait(lambda: "keda 0, target 1" in row(platform).decision, "the first answer")
            StandIn.answer = "2"
            platform.wait(lambda: row(platform).ready == 2, "a second replica")
            assert any(event.startswith("Scaled: 2: keda 2, target 1, 1 ready") for event in platform.events())
        server.shutdown()
    assert BEYOND.replace("%s", "slow") in StandIn.queries[0]


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus in the PATH (Debian has one)")
def test_a_real_prometheus_decides_from_what_it_scraped_of_our_replicas(tmp_path: Path, model: str) -> None:
    with prometheus(tmp_path) as (address, targets), Platform(tmp_path / "home", flags=("--prometheus", address)) as p:
        deploy_changed(p, custom(model), hasty)
        p.wait_phase("Ready", name="slow")
        labels = {"inference_service": "slow", "namespace": "default"}
        (port,) = {port_of(pid) for pid in p.replicas()}
        targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"], "labels": labels}]))
        p.wait(lambda: "keda 0, target 1" in row(p).decision, "an idle service to be a real 0")
        with asked(p, 4, slow(0.2)):
            p.wait(lambda: row(p).ready == 2, "a second replica")
            assert any(event.startswith("Scaled: 2: keda") for event in p.events())


@contextmanager
def prometheus(folder: Path) -> Iterator[tuple[str, Path]]:
    """Its address, and the file in which its targets are named."""
    targets = folder / "targets.json"
    targets.write_text("[]")
    job = {"job_name": "replicas", "honor_labels": True, "file_sd_configs": [{"files": [str(targets)]}]}
    (folder / "prometheus.yml").write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    port = free_port()
    flags = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    with (folder / "prometheus.log").open("wb") as log:
        command = ["prometheus", *flags, f"--web.listen-address=127.0.0.1:{port}"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}", targets
    finally:
        process.terminate()
        process.wait(30)


def port_of(pid: int) -> int:
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return int(next(line for line in environ if line.startswith(b"INFERENCE_HTTP_PORT=")).partition(b"=")[2])

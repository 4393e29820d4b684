"""Our gateway in front of a Deployment at zero, with a real KEDA: nothing is lost, whatever comes and goes."""

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import gt
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.real_helm import SYSTEM
from tests.cluster.scenarios import Story, document

BODY: Final = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}
DOCUMENT: Final = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  annotations:
    serving.kserve.io/deploymentMode: Standard
    serving.kserve.io/autoscalerClass: keda
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 3
    scaleMetric: concurrency
    scaleTarget: 50
    model:
      modelFormat: {name: onnx}
      protocolVersion: v2
      storageUri: file:///models/iris/model.onnx
"""
PROBE: Final = "/spec/template/spec/containers/0/startupProbe"
SLOW_START_S: Final = 30
# As planned a service stays for as long as its start may take; nobody waits so long here.
HURRY: Final = {"cooldownPeriod": 6, "initialCooldownPeriod": 0, "pollingInterval": 5}


class Service:
    """One service behind the gateway."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.host = f"iris-{namespace}.example.com"

    def replicas(self) -> int:
        found = self.cluster.get("deployment", "iris-predictor", "-n", self.namespace)
        return int(found["spec"].get("replicas", 0)) if found else 0

    def pods(self) -> int:
        found = self.cluster.get("pods", "-n", self.namespace, "-l", "pilotlight.dev/service=iris")
        return len(found["items"]) if found else 0

    def rest(self) -> None:
        """Waits until nothing of it runs."""
        seconds_until(lambda: not self.replicas() and not self.pods(), "back to zero")

    def patch(self, changes: list[dict[str, Any]]) -> None:
        words = ("patch", "deployment", "iris-predictor", "-n", self.namespace, "--type=json")
        self.cluster.kubectl(*words, f"--patch={json.dumps(changes)}")

    @contextmanager
    def starting_slowly(self) -> Iterator[None]:
        """So slowly that all who ask at once have come before anybody is answered."""
        self.patch([{"op": "add", "path": f"{PROBE}/initialDelaySeconds", "value": SLOW_START_S}])
        try:
            yield
        finally:
            self.patch([{"op": "remove", "path": f"{PROBE}/initialDelaySeconds"}])

    def told(self) -> str:
        """What KEDA says to whoever asks how many requests there are."""
        where = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{self.namespace}/s0-concurrency"
        query = "labelSelector=scaledobject.keda.sh%2Fname%3Diris-predictor"
        said = self.cluster.kubectl("get", "--raw", f"{where}?{query}", check=False)  # nothing: nobody answers yet
        return str(json.loads(said)["items"][0]["value"]) if said else ""

    async def ask(self, session: aiohttp.ClientSession, got: list[str]) -> bool:
        """Whether it had to wait for a start; `got` hears what came of it."""
        url, headers = f"{self.cluster.gateway}/v2/models/iris/infer", {"Host": self.host}
        try:
            async with session.post(url, json=BODY, headers=headers) as answer:
                text = await answer.text()
                got.append("fine" if answer.status == 200 and '"outputs"' in text else f"{answer.status} {text[:200]}")
                return "x-pilotlight-cold-start" in answer.headers
        except (aiohttp.ClientError, TimeoutError) as error:
            got.append(repr(error))
            return False

    async def many(self, number: int, got: list[str]) -> int:
        """All at once, each on a connection of its own; how many had to wait."""
        async with client() as session:
            return sum(await asyncio.gather(*(self.ask(session, got) for _ in range(number))))

    async def steadily(self, clients: int, until: asyncio.Event, got: list[str]) -> None:
        async def one(session: aiohttp.ClientSession) -> None:
            while not until.is_set():
                await self.ask(session, got)
                await asyncio.sleep(0.02)

        async with client() as session:
            await asyncio.gather(*(one(session) for _ in range(clients)))


def client() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=120)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout, trust_env=False)


def all_fine(got: list[str]) -> bool:
    assert got
    return Counter(got) == {"fine": len(got)}


@pytest.fixture(scope="module")
def service(cluster: Cluster, namespace: str, gateway: Any, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """As `render` writes it, but impatient."""
    document = tmp_path_factory.mktemp("documents") / "iris.yaml"
    document.write_text(DOCUMENT)
    command = [str(Path(sys.executable).parent / "platformctl"), "render", "-f", str(document), "-n", namespace]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    objects = [each for each in yaml.safe_load_all(said) if each]
    for each in objects:
        if each["kind"] == "ScaledObject":
            each["spec"].update(HURRY)
    cluster.apply(*objects)
    made = Service(cluster, namespace)
    made.rest()
    return made


@pytest.fixture(autouse=True)
def at_rest(service: Service) -> None:
    """Each test begins at zero."""
    service.rest()


def counts(cluster: Cluster, pod: str, namespace: str) -> tuple[int, int]:
    """Requests that a pod of the gateway has seen answered, and how many of all it had to hold."""
    page = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8092/proxy/metrics")

    def value(name: str) -> int:
        found = re.search(rf'^pilotlight_gateway_{name}{{namespace="{namespace}",.*}} (\d+)$', page, re.M)
        return int(found[1]) if found else 0

    return value("request_duration_seconds_count"), value("held_seconds_count")


def test_hundreds_of_requests_wake_a_service_through_both_replicas_and_none_is_lost(
    service: Service, gateway: Callable[[], list[str]], namespace: str
) -> None:
    pods = gateway()
    assert len(pods) == 2
    before = {pod: counts(service.cluster, pod, namespace) for pod in pods}
    got: list[str] = []
    with service.starting_slowly():
        waited = asyncio.run(service.many(300, got))
    assert all_fine(got), Counter(got)
    assert waited == 300
    for pod in pods:
        seconds_until(lambda: all(map(gt, counts(service.cluster, pod, namespace), before[pod])), f"{pod} tells")  # noqa: B023


def test_keda_hears_of_the_requests_of_all_replicas_together(service: Service) -> None:
    """Through its own metrics API, while a start takes long enough to ask."""

    async def play() -> list[str]:
        got: list[str] = []
        waiting = asyncio.create_task(service.many(120, got))
        await asyncio.to_thread(
            seconds_until, lambda: service.told() in ("120", "120000m"), "all are counted", SLOW_START_S
        )
        await waiting
        return got

    with service.starting_slowly():
        got = asyncio.run(play())
    assert all_fine(got), Counter(got)


def test_requests_that_arrive_while_it_falls_to_zero_are_answered(service: Service) -> None:
    """By the replica that leaves, which takes what still comes, or by the one that they wake."""

    async def play() -> list[str]:
        got: list[str] = []
        await service.many(5, got)
        await asyncio.to_thread(seconds_until, lambda: service.replicas() == 0, "told to end")
        for _ in range(8):
            await service.many(50, got)
            await asyncio.sleep(0.05)
        return got

    got = asyncio.run(play())
    assert len(got) == 405
    assert all_fine(got), Counter(got)


def test_a_replica_of_the_gateway_may_go_under_load(service: Service, gateway: Callable[[], list[str]]) -> None:
    async def play() -> list[str]:
        got: list[str] = []
        enough = asyncio.Event()
        load = asyncio.create_task(service.steadily(20, enough, got))
        await asyncio.to_thread(seconds_until, lambda: len(got) > 100, "answered")
        before = gateway()
        service.cluster.kubectl("delete", "pod", before[0], "-n", SYSTEM, "--wait=false")
        await asyncio.to_thread(
            seconds_until, lambda: len(gateway()) == 2 and before[0] not in gateway(), "another one is ready"
        )
        since = len(got)
        await asyncio.to_thread(seconds_until, lambda: len(got) > since + 500, "answered")
        enough.set()
        await load
        return got

    got = asyncio.run(play())
    assert all_fine(got), Counter(got)


def test_requests_that_a_leaving_replica_of_the_gateway_holds_are_answered(
    service: Service, gateway: Callable[[], list[str]]
) -> None:
    async def play() -> list[str]:
        got: list[str] = []
        waiting = asyncio.create_task(service.many(200, got))
        await asyncio.sleep(0.3)  # they are on their way; a start takes longer
        await asyncio.to_thread(service.cluster.kubectl, "delete", "pod", gateway()[0], "-n", SYSTEM, "--wait=false")
        await waiting
        return got

    got = asyncio.run(play())
    assert all_fine(got), Counter(got)
    seconds_until(lambda: len(gateway()) == 2, "two again")


def test_a_call_from_inside_the_cluster_wakes_it_by_its_own_name(
    service: Service, gateway: Callable[[], list[str]]
) -> None:
    url = f"http://iris.{service.namespace}.svc.cluster.local:8090/v2/models/iris"
    code = f"import urllib.request as r; a = r.urlopen({url!r}, timeout=100); print(a.status, a.headers)"
    said = service.cluster.kubectl("exec", gateway()[0], "-n", SYSTEM, "--", "python", "-c", code)
    assert said.startswith("200 ")
    assert "x-pilotlight-cold-start" in said


def test_the_one_v1_wakes_a_serverless_service_by_the_model_of_the_body(
    service: Service, gateway: Callable[[], list[str]]
) -> None:
    story = Story(service.cluster, service.namespace, "flowers")
    names = ("pilotlight.dev/model-names: flowers", 'autoscaling.knative.dev/window: "6s"')
    story.deploy(document("flowers", annotations=names))
    seconds_until(lambda: not story.pods(), "at zero")
    url, name = "http://pilotlight-gateway:8090/v1", f"{service.namespace}/flowers"
    code = f"""import urllib.request as r, urllib.error as e, json
print([each["id"] for each in json.load(r.urlopen("{url}/models", timeout=9))["data"]])
body = json.dumps({{"model": "{name}", "messages": [{{"role": "user", "content": "hello"}}]}}).encode()
try: r.urlopen(r.Request("{url}/chat/completions", body), timeout=100)
except e.HTTPError as error: print(error.code, error.read().decode())"""
    said = service.cluster.kubectl("exec", gateway()[0], "-n", SYSTEM, "--", "python", "-c", code)
    assert f"'{name}'" in said
    assert "flowers" in said.partition("]")[2], "the predictor of the model responds: it has no chat"
    assert story.pods()
    story.do("delete", "flowers")


def test_it_goes_back_to_zero_when_nobody_asks(service: Service) -> None:
    got: list[str] = []
    asyncio.run(service.many(1, got))
    assert all_fine(got)
    seconds_until(lambda: service.replicas() == 0, "zero")


def test_platformctl_tells_that_it_stands_by_and_its_request_wakes_it(service: Service) -> None:
    told = service.cluster.platformctl(service.namespace, "status", "iris", "-o", "json")
    assert json.loads(told.stdout)["phase"] == "Standby"
    asked = service.cluster.platformctl(service.namespace, "infer", "iris", "--data", "[5.1, 3.5, 1.4, 0.2]")
    assert asked.returncode == 0, asked.stderr
    assert "after a cold start of" in asked.stderr


def test_its_pods_are_admitted_where_pod_security_is_restricted(
    cluster: Cluster, gateway: Callable[[], list[str]], namespace: str
) -> None:
    template = cluster.get("deployment", "pilotlight-gateway", "-n", SYSTEM)["spec"]["template"]
    spec = {**template["spec"], "serviceAccountName": "default", "serviceAccount": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gateway"}, "spec": spec}
    said = cluster.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", text=json.dumps(pod))
    assert "pod/gateway created" in said

"""The gateway of a cluster, two replicas of it, against an API whose objects the test writes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc.aio
import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.cluster.apiserver import (
    DEPLOYMENTS,
    KNATIVE_ROUTES,
    KNATIVE_SERVICES,
    PEERS,
    ROUTES,
    SERVICES,
    SLICES,
    STATEFUL,
    ApiServer,
)
from tests.platform.gateway.cluster.things import address, deployment, endpoint, knative_route, route, slice_of
from tests.platform.gateway.linked import DEADLINE_S, SmallReplica, ask, in_loop, replica
from tests.ports import free_port

from pilotlight.contract import METRIC_TOKENS
from pilotlight.errors import UsageError
from pilotlight.gateway.cluster.cluster_gateway import ClusterGateway
from pilotlight.gateway.cluster.settings import read

HOSTS = ("127.0.0.1", "127.0.0.2")  # each pod has an address of its own and all have the same ports
PORTS = ("HTTP_PORT", "STATUS_PORT", "PEER_PORT", "SCALER_PORT")
LEAVE = {"PILOTLIGHT_GATEWAY_LEAVE_S": "0.3"}
MORE: dict[str, str] = {}  # of the first pod
TOKEN = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"  # of the word test


@dataclass
class Pod:
    host: str
    ports: dict[str, int]
    gateway: ClusterGateway
    running: asyncio.Task[None]

    async def status(self, page: str) -> tuple[int, str]:
        url = f"http://{self.host}:{self.ports['STATUS_PORT']}/{page}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def ready(self) -> bool:
        with suppress(aiohttp.ClientError):
            return (await self.status("readyz"))[0] == 200
        return False


class Bed:
    def __init__(self, api: ApiServer, pods: list[Pod], keda: SimpleNamespace, channels: list[Any]) -> None:
        self.api, self.pods, self.keda, self.channels = api, pods, keda, channels

    def serve(self, *replicas: SmallReplica, workload: str = "iris-predictor") -> None:
        """From here on these are the endpoints of the workload."""
        port = replicas[0].port if replicas else 8080
        found = [endpoint("127.0.0.1", each.name) for each in replicas]
        self.api.put(SLICES, slice_of("iris", workload, *found, port=port))

    async def ask(self, pod: int, path: str = "/models/iris/v2", **headers: str) -> Any:
        chosen = self.pods[pod]
        return await ask(chosen.ports["HTTP_PORT"], path, headers, host=chosen.host)

    def about(self) -> Any:
        metadata = {"workload": "iris-predictor", "targetConcurrency": "10"}
        return self.keda.messages.ScaledObjectRef(name="iris-predictor", namespace="models", scalerMetadata=metadata)

    def stub(self, pod: int) -> Any:
        return self.keda.stub(self.channels[pod])

    async def total(self, pod: int) -> int:
        asked = self.keda.messages.GetMetricsRequest(scaledObjectRef=self.about(), metricName="concurrency")
        return int((await self.stub(pod).GetMetrics(asked)).metricValues[0].metricValue)


def environment(api: ApiServer, host: str, ports: dict[str, int], folder: Path) -> dict[str, str]:
    return {
        **{f"PILOTLIGHT_GATEWAY_{name}": str(port) for name, port in ports.items()},
        "POD_NAMESPACE": "pilotlight-system", "POD_NAME": f"gateway-{host}", "POD_IP": host,
        "PILOTLIGHT_GATEWAY_HOST": host, "PILOTLIGHT_GATEWAY_API": api.url,
        "PILOTLIGHT_GATEWAY_CREDENTIALS": str(folder), **LEAVE, **(MORE if host == HOSTS[0] else {}),
    }  # fmt: skip


@asynccontextmanager
async def started(folder: Path, api: ApiServer, host: str, ports: dict[str, int]) -> AsyncIterator[Pod]:
    gateway = ClusterGateway(read(environment(api, host, ports, folder)))
    running = asyncio.create_task(gateway.run())
    try:
        yield Pod(host, ports, gateway, running)
    finally:
        gateway.stop()
        await running


@asynccontextmanager
async def gateways(folder: Path, keda: SimpleNamespace) -> AsyncIterator[Bed]:
    """Two that know each other, and a service at zero."""
    async with AsyncExitStack() as stack:
        api = await ApiServer(
            SERVICES, SLICES, ROUTES, DEPLOYMENTS, STATEFUL, KNATIVE_SERVICES, KNATIVE_ROUTES, PEERS
        ).start()  # fmt: skip
        stack.push_async_callback(api.close)
        pair = slice_of("", "pilotlight-gateway-peers", *map(endpoint, HOSTS), namespace="pilotlight-system")
        api.put(PEERS, pair)
        api.put(SERVICES, address("iris", "iris-predictor=100"))
        api.put(DEPLOYMENTS, deployment("iris", "iris-predictor"))
        ports = dict(zip(PORTS, [free_port() for _ in range(4)], strict=True))
        pods = [await stack.enter_async_context(started(folder, api, host, ports)) for host in HOSTS]
        for pod in pods:
            await eventually_async(pod.ready, "ready")
        places = [f"{pod.host}:{ports['SCALER_PORT']}" for pod in pods]
        channels = [await stack.enter_async_context(grpc.aio.insecure_channel(place)) for place in places]
        yield Bed(api, pods, keda, channels)


@in_loop
async def test_a_request_held_by_one_replica_is_heard_by_the_other_and_goes_on_when_an_endpoint_appears(
    tmp_path: Path, keda: SimpleNamespace
) -> None:
    async with gateways(tmp_path, keda) as bed, replica("pod-1") as origin:
        streams = [bed.stub(pod).StreamIsActive(bed.about()) for pod in (0, 1)]
        assert [(await stream.read()).result for stream in streams] == [False, False]
        asked = [asyncio.create_task(bed.ask(pod)) for pod in (0, 0, 1)]
        for stream in streams:
            await until_said(stream, True)
        for pod in (0, 1):
            await eventually_async(lambda pod=pod: _equals(bed.total(pod), 3), "the sum of both")
        bed.serve(origin)
        replies = await asyncio.gather(*asked)
        assert [reply.status for reply in replies] == [200, 200, 200]
        assert all("x-pilotlight-cold-start" in reply.headers for reply in replies)
        for stream in streams:
            await until_said(stream, False)
        for pod in (0, 1):
            await eventually_async(lambda pod=pod: _equals(bed.total(pod), 0), "nothing left")


async def until_said(stream: Any, active: bool) -> None:
    """What was said before is said again from time to time."""
    async with asyncio.timeout(DEADLINE_S):
        while (await stream.read()).result is not active:
            pass


async def _equals(number: Any, wanted: int) -> bool:
    return bool(await number == wanted)


@in_loop
async def test_keda_hears_of_a_start_until_the_first_replica_is_ready(tmp_path: Path, keda: SimpleNamespace) -> None:
    """Also where nobody waits for it any more: with a short cooldown the load would never end."""
    started = deployment("iris", "iris-predictor")
    async with gateways(tmp_path, keda) as bed:
        stream = bed.stub(0).StreamIsActive(bed.about())
        assert not (await stream.read()).result
        bed.api.put(DEPLOYMENTS, {**started, "spec": {**started["spec"], "replicas": 1}})
        await until_said(stream, True)
        ready = {"replicas": 1, "readyReplicas": 1}
        bed.api.put(DEPLOYMENTS, {**started, "spec": {**started["spec"], "replicas": 1}, "status": ready})
        await until_said(stream, False)


@in_loop
async def test_counts_are_taken_from_peers_only(tmp_path: Path, keda: SimpleNamespace) -> None:
    async with gateways(tmp_path, keda) as bed:
        url = f"http://127.0.0.1:{bed.pods[0].ports['PEER_PORT']}/counts"
        word = {"loads": [["models", "iris-predictor", 99]]}
        connector = aiohttp.TCPConnector(local_addr=("127.0.0.3", 0))
        async with aiohttp.ClientSession(connector=connector) as session, session.post(url, json=word) as answer:
            assert answer.status == 403
        assert await bed.total(0) == 0


@in_loop
async def test_one_quota_of_tokens_holds_over_both_replicas(tmp_path: Path, keda: SimpleNamespace) -> None:
    """Beyond it a caller uses what it starts within the second that a message takes."""
    body = b'{"model": "models/iris", "prompt": "%b"}' % (b"x" * 360)
    quota = 24_000
    bearer = {"Authorization": "Bearer test"}
    rules = {"model_names": "iris", "auth_tokens_sha256": f"search/ada={TOKEN}", "token_quota": f"{quota}/1d"}

    async with gateways(tmp_path, keda) as bed, replica("pod-1") as origin:
        bed.api.put(DEPLOYMENTS, deployment("iris", "iris-predictor", **rules))
        bed.serve(origin)

        async def status(pod: Pod) -> int:
            path = "/models/iris/v1/completions"
            return (await ask(pod.ports["HTTP_PORT"], path, bearer, host=pod.host, body=body)).status

        async def anonymous() -> bool:
            return (await bed.ask(0)).status == 401

        await eventually_async(anonymous, "the rules")
        while [await status(pod) for pod in bed.pods] != [429, 429]:
            await asyncio.sleep(0.08)
        pages = [(await pod.status("metrics"))[1] for pod in bed.pods * 2][2:]  # a series begins with 0
        lines = [line for page in pages for line in page.splitlines() if line.startswith(f"{METRIC_TOKENS}{{")]
        spent = sum(float(line.split()[-1]) for line in lines)
        assert quota <= spent < 1.6 * quota, "twice as much if each counted alone"


@in_loop
async def test_what_the_cluster_says_takes_effect_while_requests_pass(tmp_path: Path, keda: SimpleNamespace) -> None:
    async with gateways(tmp_path, keda) as bed, replica("old") as old, replica("new") as new:
        bed.serve(old)
        assert (await bed.ask(0)).status == 200
        bed.api.put(DEPLOYMENTS, deployment("iris", "iris-canary-predictor"))
        bed.serve(new, workload="iris-canary-predictor")
        bed.api.put(SERVICES, address("iris", "iris-predictor=50,iris-canary-predictor=50"))
        await eventually_async(lambda: _split(bed, new), "split")
        before = len(old.asked), len(new.asked)
        for _ in range(10):
            assert (await bed.ask(0)).status == 200
        assert (len(old.asked) - before[0], len(new.asked) - before[1]) == (5, 5)
        bed.api.put(ROUTES, route("iris", "iris.example.com"))
        bed.api.put(DEPLOYMENTS, deployment("iris", "iris-predictor", auth_tokens_sha256=TOKEN))
        await eventually_async(lambda: _status(bed, 401), "closed")
        passed = {"Host": "iris.example.com", "Authorization": "Bearer test"}
        await eventually_async(lambda: _answers(bed, **passed), "its host known")
        bed.api.delete(SERVICES, "models", "iris")
        await eventually_async(lambda: _status(bed, 404), "gone")


async def _split(bed: Bed, new: SmallReplica) -> bool:
    await bed.ask(0)
    return bool(new.asked)


async def _answers(bed: Bed, **headers: str) -> bool:
    return bool((await bed.ask(1, "/v2", **headers)).status == 200)


async def _status(bed: Bed, wanted: int) -> bool:
    """On both."""
    return {(await bed.ask(pod)).status for pod in (0, 1)} == {wanted}


@in_loop
async def test_one_that_is_told_to_end_is_unready_finishes_what_it_holds_and_goes(
    tmp_path: Path, keda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MORE, "PILOTLIGHT_GATEWAY_LEAVE_S", "6.0")  # a busy machine takes a while to connect
    async with gateways(tmp_path, keda) as bed, replica("pod-1") as origin:
        leaving = bed.pods[0]
        stream = bed.stub(0).StreamIsActive(bed.about())
        await stream.read()
        held = asyncio.create_task(bed.ask(0))
        await until_said(stream, True)
        leaving.gateway.stop()
        await eventually_async(lambda: _unready(leaving), "unready")
        late = asyncio.create_task(bed.ask(0))  # a client that has not heard of it yet
        while await stream.read() is not grpc.aio.EOF:
            pass
        assert await stream.code() == grpc.StatusCode.OK
        await eventually_async(lambda: _equals(bed.total(1), 2), "what it holds still counts")
        bed.serve(origin)
        assert [(await reply).status for reply in (held, late)] == [200, 200]
        await asyncio.wait_for(leaving.running, DEADLINE_S)


async def _unready(pod: Pod) -> bool:
    return await pod.status("readyz") == (503, "it is shutting down\n")


@in_loop
async def test_one_that_leaves_stays_while_somebody_still_comes(
    tmp_path: Path, keda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that has not heard yet that it leaves must find it, however long the cluster takes to tell."""
    monkeypatch.setitem(MORE, "PILOTLIGHT_GATEWAY_LEAVE_S", "2.0")
    async with gateways(tmp_path, keda) as bed, replica("pod-1") as origin:
        bed.serve(origin)
        leaving = bed.pods[0]
        now = [leaving.gateway._plane.clock()]  # by hand: to a machine that stops for two seconds nobody comes
        leaving.gateway._plane.clock = lambda: now[0]
        leaving.gateway.stop()
        for _ in range(80):
            assert (await bed.ask(0)).headers["connection"] == "close"
            await asyncio.sleep(0.01)
            now[0] += 0.05
        now[0] += 10
        await asyncio.wait_for(leaving.running, DEADLINE_S)
        with pytest.raises(ConnectionRefusedError):
            await bed.ask(0)


@in_loop
async def test_an_endpoint_that_refuses_connections_is_left_for_the_next(
    tmp_path: Path, keda: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateways(tmp_path, keda) as bed, replica("pod-2") as origin:
        gone = free_port()
        bed.serve(origin)
        bed.api.put(SLICES, slice_of("iris", "iris-predictor", endpoint("127.0.0.1", "pod-1"), port=gone, name="more"))
        statuses, said = set(), ""
        while "gateway.unreachable" not in said:
            statuses.add((await bed.ask(0)).status)
            said += capsys.readouterr().err
        assert statuses == {200}


@in_loop
async def test_the_one_v1_leads_to_serverless_services_by_the_host_that_knative_knows(
    tmp_path: Path, keda: SimpleNamespace
) -> None:
    async with gateways(tmp_path, keda) as bed, replica("ingress") as ingress, aiohttp.ClientSession() as session:
        bed.api.put(KNATIVE_SERVICES, deployment("chat", "chat-predictor", model_names="chat"))
        bed.api.put(KNATIVE_ROUTES, knative_route("chat", f"http://localhost:{ingress.port}", ("", "chat-1")))
        url = f"http://{bed.pods[0].host}:{bed.pods[0].ports['HTTP_PORT']}/v1"

        async def listed() -> bool:
            async with session.get(f"{url}/models") as response:
                return [each["id"] for each in (await response.json())["data"]] == ["models/chat"]

        await eventually_async(listed, "the model is listed")
        for model in ("models/chat", "models/chat@chat-1"):
            async with session.post(f"{url}/chat/completions", json={"model": model, "messages": []}) as response:
                request = json.loads(await response.text())
            assert (response.status, request["headers"]["host"]) == (200, f"localhost:{ingress.port}")
            assert json.loads(request["body"])["model"] == "chat"


@in_loop
async def test_metrics_tell_what_passed(tmp_path: Path, keda: SimpleNamespace) -> None:
    async with gateways(tmp_path, keda) as bed, replica("pod-1") as origin:
        bed.serve(origin)
        await bed.ask(0)
        labels = 'namespace="models",inference_service="iris",revision="iris-predictor"'
        line = f"pilotlight_gateway_request_duration_seconds_count{{{labels}}} 1"
        await eventually_async(lambda: _says(bed.pods[0], line), "told")


async def _says(pod: Pod, line: str) -> bool:
    return line in (await pod.status("metrics"))[1].splitlines()


@in_loop
async def test_the_process_ends_in_order_by_a_signal(tmp_path: Path) -> None:
    api = await ApiServer(
            SERVICES, SLICES, ROUTES, DEPLOYMENTS, STATEFUL, KNATIVE_SERVICES, KNATIVE_ROUTES, PEERS
        ).start()  # fmt: skip
    ports = dict(zip(PORTS, [free_port() for _ in range(4)], strict=True))
    command = (sys.executable, "-m", "pilotlight.gateway", "cluster")
    own = environment(api, "127.0.0.1", ports, tmp_path)
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **own}, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert b"gateway.listening" in await asyncio.wait_for(process.stderr.readline(), 3 * DEADLINE_S)
    process.send_signal(signal.SIGTERM)
    _, said = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == 0
    assert b"gateway.ended" in said
    await api.close()


@in_loop
async def test_bodies_may_take_a_quarter_of_the_pods_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MORE, "PILOTLIGHT_GATEWAY_MEMORY_MIB", "256")
    api = await ApiServer(
            SERVICES, SLICES, ROUTES, DEPLOYMENTS, STATEFUL, KNATIVE_SERVICES, KNATIVE_ROUTES, PEERS
        ).start()  # fmt: skip
    ports = dict(zip(PORTS, [free_port() for _ in range(4)], strict=True))
    async with started(tmp_path, api, "127.0.0.1", ports) as pod:
        assert pod.gateway._plane.buffer_budget.limit == 64 << 20
    await api.close()


@pytest.mark.parametrize(("name", "value"), [("POD_IP", ""), ("PILOTLIGHT_GATEWAY_HTTP_PORT", "many")])
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str) -> None:
    given = {"POD_NAMESPACE": "a", "POD_NAME": "b", "POD_IP": "10.0.0.1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    assert read(given).api == "https://10.96.0.1:443"
    with pytest.raises(UsageError, match=name):
        read({**given, name: value})

"""The real endpoint picker of the Gateway API Inference Extension takes our pool from a real API server.

It runs with the rights and the arguments that we render, as a process of this machine. Stand-ins of vLLM are its pods.
"""

import asyncio
import io
import json
import os
import re
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import grpc
import pytest
import yaml
from aiohttp import ClientSession
from tests.cluster.bed.certificates import make_certificates
from tests.cluster.bed.places import Places, places
from tests.cluster.bed.programs import program
from tests.engines.sglang_engine import SGLangEngine
from tests.engines.vllm_engine import VllmEngine
from tests.eventually import eventually, eventually_async
from tests.judges.gomodules import Unavailable, files_of
from tests.judges.sources import INFERENCE_EXTENSION
from tests.judges.verdict import absent

from pilotlight.plan.types import Capabilities
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.wire.machine import free_ports

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
Json = dict[str, Any]
DOCUMENT: Final = """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: %s}
spec:
  model: {uri: "hf://org/llama", name: llama}
  replicas: 2
  template: {containers: [{name: main, image: "%s"}]}
  router: {route: {}, scheduler: {pool: {}}}
"""
HOSTS: Final = ("127.41.0.1", "127.41.0.2")  # of the pods, whose port is that of the runtime
PATHS: Final = {
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts", "Pod": "/api/v1/namespaces/default/pods",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "InferencePool": "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}  # fmt: skip
PICKED: Final = re.compile(rb"x-gateway-destination-endpoint[\x12\x1a].([\d.]+):\d+", re.DOTALL)
PROCESS: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


def built(name: str) -> Path:
    path = program(name).product(places())
    if not path.exists():
        absent(Unavailable(f"{name} is not built: make cluster-build"))
    return path


@contextmanager
def running(folder: Path, name: str, *command: str | Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program on one processor, which ends with the block."""
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "GOMAXPROCS": "1", **environ}
    with (folder / f"{name}.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=own) as one:
        try:
            yield one
        finally:
            one.kill()


class Api:
    """The API server as its administrator asks it."""

    def __init__(self, pki: Path, port: int) -> None:
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self.authority, self.url = pki / "ca.crt", f"https://127.0.0.1:{port}"
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))

    def ask(self, path: str, body: Json | None = None, method: str = "") -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = json.dumps(body).encode() if body is not None else None
        request = Request(self.url + path, data, {"Content-Type": kind}, method=method or None)
        with self._opener.open(request, timeout=30) as answer:
            return json.load(answer) if path != "/readyz" else answer.read()

    def answers(self, path: str) -> bool:
        try:
            self.ask(path)
        except (URLError, HTTPError, OSError):
            return False
        return True

    def create(self, document: Json) -> None:
        self.ask(PATHS[document["kind"]], document)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    etcd, server = built("etcd"), folder / "kube-apiserver"
    server.symlink_to(built("hyperkube"))  # its name says which of its programs it is
    where = Places(folder, folder)
    where.etc.mkdir()
    make_certificates(where)
    pki, (store, peer, port) = where.pki, free_ports(3)
    with ExitStack() as stack:
        urls = f"--listen-client-urls=http://127.0.0.1:{store}", f"--advertise-client-urls=http://127.0.0.1:{store}"
        peers = f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}"
        cluster = f"--initial-cluster=default=http://127.0.0.1:{peer}"
        stack.enter_context(
            running(folder, "etcd", etcd, f"--data-dir={folder}/etcd", "--unsafe-no-fsync", *urls, *peers, cluster)
        )
        flags = (
            f"--etcd-servers=http://127.0.0.1:{store}", "--bind-address=127.0.0.1", f"--secure-port={port}",
            "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount", f"--cert-dir={folder}",
            f"--client-ca-file={pki}/ca.crt", f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key",
            "--service-cluster-ip-range=10.96.0.0/16",
        )  # fmt: skip
        process = stack.enter_context(running(folder, "kube-apiserver", server, *flags))
        made = Api(pki, port)

        def message() -> str:
            return f"the API server to be ready: {(folder / 'kube-apiserver.log').read_text()[-2000:]}"

        eventually(lambda: process.poll() is not None or made.answers("/readyz"), message, 180.0, pause_s=0.5)
        assert process.poll() is None, message()
        install(made)
        yield made


def objects(name: str, image: str) -> dict[tuple[str, str], Json]:
    planned = plan_all(Sources(["-"], stdin=io.StringIO(DOCUMENT % (name, image))), Capabilities())
    return {(each.kind, each.name): dict(each.document) for each in planned.manifests()}


def install(api: Api) -> None:
    """The extension's kinds, until the server serves them."""
    try:
        texts = files_of(replace(INFERENCE_EXTENSION, files=("config/crd/bases/",))).values()
    except Unavailable as reason:
        absent(reason)
    for document in (each for text in texts for each in yaml.safe_load_all(text) if each):
        api.create(document)
    kinds = ("inferenceobjectives", "inferencemodelrewrites")
    served = [PATHS["InferencePool"], *(f"/apis/inference.networking.x-k8s.io/v1alpha2/{each}" for each in kinds)]
    eventually(lambda: all(map(api.answers, served)), "the kinds to be served", pause_s=0.2)


def put_pod(api: Api, name: str, template: Mapping[str, Any], host: str) -> None:
    """A pod of the Deployment as it is once it is ready; there is no node that would run it."""
    metadata = {"name": name, "labels": template["metadata"]["labels"]}
    container = {"name": "engine", "image": "vllm"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    api.create(pod)
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}], "conditions": [ready]}
    api.ask(f"{PATHS['Pod']}/{name}/status", {"status": status}, "PATCH")


def kubeconfig(api: Api, account: str) -> str:
    """With the rights of the picker's account alone."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.ask(f"{PATHS['ServiceAccount']}/{account}/token", request)["status"]["token"]
    cluster = {"server": api.url, "certificate-authority": str(api.authority)}
    context = {"cluster": "c", "user": "u", "namespace": "default"}
    named = {"clusters": ("cluster", cluster, "c"), "users": ("user", {"token": token}, "u")}
    lists = {name: [{"name": each, kind: value}] for name, (kind, value, each) in named.items()}
    document = {"apiVersion": "v1", "kind": "Config", "current-context": "x", **lists}
    return json.dumps({**document, "contexts": [{"name": "x", "context": context}]})


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field of protobuf."""
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def pick(port: int, prompt: str) -> str:
    """Ask for the endpoint of a chat as Envoy does, by its ExternalProcessor; empty: none is picked."""
    headers = {":method": "POST", ":path": "/v1/completions", "content-type": "application/json", "x-request-id": "1"}
    values = b"".join(field(1, field(1, key.encode()) + field(3, each.encode())) for key, each in headers.items())
    body = json.dumps({"model": "llama", "prompt": prompt}).encode()
    messages = (field(2, field(1, values)), field(4, field(1, body) + b"\x10\x01"))  # the latter ends the stream
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(PROCESS)(iter(messages), timeout=10)
        try:
            found = next((match for answer in call if (match := PICKED.search(answer))), None)
        except grpc.RpcError:
            return ""
        return found[1].decode() if found else ""


async def all_picked(port: int, host: str, numbers: Iterator[int]) -> bool:
    """Whether twenty different prompts in a row go to that pod, which chance does not do."""
    for _ in range(20):
        if await asyncio.to_thread(pick, port, f"{next(numbers)} is the number of this prompt") != host:
            return False
    return True


@pytest.mark.parametrize(
    ("name", "image"), [("vllm", "vllm/vllm-openai:v0.20.1"), ("sglang", "lmsysorg/sglang:v0.5.0")]
)
def test_the_picker_takes_our_pool_and_prefers_the_idle_replica(
    api: Api, tmp_path: Path, name: str, image: str
) -> None:
    made, numbers, account, epp = objects(name, image), count(), f"{name}-engine-epp", built("epp")
    pool = made["InferencePool", f"{name}-engine"]
    for kind in ("ServiceAccount", "Role", "RoleBinding"):
        api.create(made[kind, account])
    api.create(pool)
    template = made["Deployment", f"{name}-engine"]["spec"]["template"]
    (container,) = made["Deployment", account]["spec"]["template"]["spec"]["containers"]
    (target,) = pool["spec"]["targetPorts"]
    (tmp_path / "kubeconfig").write_text(kubeconfig(api, account))
    port, health, metrics = free_ports(3)
    own = (f"--grpc-port={port}", f"--grpc-health-port={health}", f"--metrics-port={metrics}", "--secure-serving=false")
    environ = {"KUBECONFIG": str(tmp_path / "kubeconfig"), "NAMESPACE": "default", "POD_NAME": "epp"}

    async def case() -> None:
        async with AsyncExitStack() as stack:
            engines = []
            for number, host in enumerate(HOSTS):
                pod = f"{name}-{number}"
                engine = VllmEngine(pod, host) if name == "vllm" else SGLangEngine(pod, "null", host)
                engines.append(await stack.enter_async_context(engine.serving(target["number"])))
                put_pod(api, engine.name, template, host)
            stack.enter_context(running(tmp_path, "epp", epp, *container["args"], *own, **environ))
            client = await stack.enter_async_context(ClientSession())

            async def picked() -> bool:
                return await asyncio.to_thread(pick, port, "hello") in HOSTS

            await until(picked, "the picker to pick one of our pods")
            for busy, idle in ((0, 1), (1, 0)):
                engines[busy].open.clear()
                url = f"http://{HOSTS[busy]}:{target['number']}/v1/completions"
                body = {"model": "llama", "prompt": "a"}
                waiting = [asyncio.ensure_future(client.post(url, json=body)) for _ in range(20)]
                await until(lambda idle=idle: all_picked(port, HOSTS[idle], numbers), f"replica {idle} to be preferred")
                engines[busy].open.set()
                assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}

    async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
        def message() -> str:
            return f"{what}: {(tmp_path / 'epp.log').read_text()[-3000:]}"

        await eventually_async(holds, message, pause_s=0.2)

    asyncio.run(case())

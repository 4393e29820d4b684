"""A Kubernetes API on paper: real HTTP on loopback, objects as a test wrote them. Nothing moves by itself."""

import asyncio
import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from aiohttp import WSMsgType, web

from pilotlight.targets.kubernetes.client import Cluster, KubeConnection

Json = Any
PLAIN = ("v1/Pod", "v1/Service", "v1/ConfigMap", "v1/Secret", "v1/Event", "v1/ServiceAccount", "v1/Node/cluster",
         "v1/Namespace/cluster", "v1/PersistentVolumeClaim", "apps/v1/Deployment", "apps/v1/StatefulSet",
         "apps/v1/ReplicaSet", "apps/v1/ControllerRevision", "discovery.k8s.io/v1/EndpointSlice",
         "autoscaling/v2/HorizontalPodAutoscaler")  # fmt: skip
KNATIVE = tuple(f"serving.knative.dev/v1/{kind}" for kind in ("Service", "Route", "Configuration", "Revision"))
GATEWAY = tuple(f"gateway.networking.k8s.io/v1/{kind}" for kind in ("Gateway", "HTTPRoute"))
PROMETHEUS = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"))
KEDA = ("keda.sh/v1alpha1/ScaledObject", "keda.sh/v1alpha1/TriggerAuthentication")


def plural(kind: str) -> str:
    return kind.lower()[:-1] + "ies" if kind.endswith("cy") else kind.lower() + "s"


def named(api_version: str, kind: str, namespace: str, name: str, **more: Json) -> dict[str, Json]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


class PaperCluster:
    """`kinds` are written as apiVersion/Kind, with `/cluster` behind those without a namespace."""

    def __init__(
        self, *objects: Mapping[str, Json], kinds: Iterable[str] = PLAIN, forbidden: Iterable[str] = (),
        denied: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.objects = list(objects)
        self.kinds = tuple(kinds)
        self.forbidden = frozenset(forbidden)  # plurals that nobody may read, or `plural:list`
        self.denied = frozenset(denied)  # plurals that nobody may write
        self.logs: dict[str, list[str]] = {}  # by pod, or pod/previous
        self.watched: list[list[Mapping[str, Json]]] = []  # the answers to watches, one after the other
        self.versions: list[str] = []  # the resource versions that watches began from
        self.ports: dict[int, int] = {}  # of pods, and where they lie on this machine
        self.queries: dict[str, Json] = {}  # what Prometheus answers to
        self.asked: list[Mapping[str, str]] = []  # the queries for logs
        self.port = 0

    def __enter__(self) -> Self:
        up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(up)), daemon=True)
        self._thread.start()
        assert up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)
        for late in list(self._loop._transports.values()):  # type: ignore[attr-defined]
            # Who follows in a thread may have connected in the last moment, when the server had closed all it knew of.
            if late._sock is not None:
                late._sock.close()
                late._sock = None
        self.api.rest_client.pool_manager.clear()

    def cluster(self) -> Cluster:
        return Cluster(KubeConnection(self.api, sleep=lambda _: None))

    @property
    def api(self) -> Any:
        if not hasattr(self, "_api"):
            from kubernetes import client

            self._api = client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{self.port}"))
        return self._api

    async def _serve(self, up: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        up.set()
        await self._end.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if parts == ["version"]:
            return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.4"})
        if parts[-1] == "selfsubjectaccessreviews":
            wanted = (await request.json())["spec"]["resourceAttributes"]
            return web.json_response({"status": {"allowed": wanted["resource"] not in self.denied}})
        if parts[0] == "apis" and len(parts) == 1:
            return web.json_response({"groups": self._groups()})
        root = 2 if parts[0] == "api" else 3
        if len(parts) == root:
            return self._resources("/".join(parts[1:]))
        return await self._object(request, "/".join(parts[1:root]), parts[root:])

    def _groups(self) -> list[Json]:
        versions = sorted({kind.split("/")[0] + "/" + kind.split("/")[1] for kind in self.kinds if kind[:3] != "v1/"})
        return [{"name": each.split("/")[0], "preferredVersion": {"groupVersion": each}} for each in versions]

    def _resources(self, api_version: str) -> web.Response:
        found = []
        for written in self.kinds:
            name = written.removesuffix("/cluster")
            if name.rpartition("/")[0] == api_version:
                kind = name.rpartition("/")[2]
                found.append({"kind": kind, "name": plural(kind), "namespaced": name == written})
        return web.json_response({"resources": found}) if found else _refusal(404, "no such version")

    async def _object(self, request: web.Request, api_version: str, rest: list[str]) -> web.StreamResponse:
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        if rest[0] in self.forbidden or (len(rest) == 1 and f"{rest[0]}:list" in self.forbidden):
            return _refusal(403, f"you may not read {rest[0]}")
        if rest[2:] == ["log"]:
            return self._log(request, rest[1])
        if rest[2:] == ["portforward"]:
            return await self._forward(request)
        if rest[2:3] == ["proxy"]:
            empty = {"status": "success", "data": {"resultType": "vector", "result": []}}
            return web.json_response(self.queries.get(request.query.get("query", ""), empty))
        if request.query.get("watch"):
            return await self._watch(request)
        found = [each for each in self.objects if _is(each, api_version, namespace, rest)]
        if request.method == "DELETE":
            self.objects = [each for each in self.objects if each not in found]
        if len(rest) > 1:
            return web.json_response(found[0]) if found else _refusal(404, f"{rest[0]} {rest[1]} not found")
        chosen = [each for each in found if _selected(each, request.query.get("labelSelector", ""))]
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": chosen})

    def _log(self, request: web.Request, pod: str) -> web.Response:
        self.asked.append(request.query)
        lines = self.logs.get(f"{pod}/previous" if request.query.get("previous") == "true" else pod)
        if lines is None:
            return _refusal(400, f"previous terminated container in pod {pod} not found")
        tail = int(request.query.get("tailLines", "1000"))
        return web.Response(text="".join(f"{line}\n" for line in lines[-tail:] if tail))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.versions.append(request.query.get("resourceVersion", ""))
        answer = web.StreamResponse()
        await answer.prepare(request)
        if not self.watched:
            await self._end.wait()
        for each in self.watched.pop(0) if self.watched else ():
            await answer.write(json.dumps(each).encode() + b"\n")
        return answer

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        port = int(request.query["ports"])
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for channel in (b"\x00", b"\x01"):
            await socket.send_bytes(channel + port.to_bytes(2, "little"))
        if port not in self.ports:
            await socket.send_bytes(b"\x01no one listens there")
            return socket
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[port])
        back = asyncio.create_task(_carry_back(reader, socket))
        try:
            async for message in socket:
                if message.type == WSMsgType.BINARY:
                    writer.write(message.data[1:])
        finally:  # also where the cluster ends first
            writer.close()
            back.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await back
            with suppress(OSError):
                await writer.wait_closed()
        return socket


async def _carry_back(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    while data := await reader.read(65536):
        await socket.send_bytes(b"\x00" + data)
    await socket.close()


def _is(each: Mapping[str, Json], api_version: str, namespace: str, rest: list[str]) -> bool:
    metadata = each["metadata"]
    own = each["apiVersion"] == api_version and plural(each["kind"]) == rest[0]
    at_home = not namespace or metadata.get("namespace") == namespace
    return own and at_home and (len(rest) == 1 or metadata["name"] == rest[1])


def _selected(each: Mapping[str, Json], selector: str) -> bool:
    labels = each["metadata"].get("labels") or {}
    pairs = [pair.partition("=") for pair in selector.split(",") if pair]
    return all(key in labels if not sign else labels.get(key) == value for key, sign, value in pairs)


def _refusal(code: int, message: str) -> web.Response:
    reason = {403: "Forbidden", 404: "NotFound"}.get(code, "BadRequest")
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)

"""A cluster's API as far as a watcher sees it: lists with a version, watches from one, and how both fail."""

import asyncio
import json
from typing import Any

from aiohttp import web

Json = dict[str, Any]
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
SERVICES = "/api/v1/services"
ROUTES = "/apis/gateway.networking.k8s.io/v1/httproutes"
DEPLOYMENTS = "/apis/apps/v1/deployments"
STATEFUL = "/apis/apps/v1/statefulsets"
KNATIVE_SERVICES = "/apis/serving.knative.dev/v1/services"
KNATIVE_ROUTES = "/apis/serving.knative.dev/v1/routes"
PEERS = "/apis/discovery.k8s.io/v1/namespaces/pilotlight-system/endpointslices"


class ApiServer:
    """`put` and `delete` are seen by every watch; `forget` makes old versions too old, `drop` breaks watches off."""

    def __init__(self, *kinds: str) -> None:
        self.kinds: dict[str, dict[tuple[str, str], Json]] = {kind: {} for kind in kinds}
        self.version = 1
        self.oldest = 1
        self.failing = 0  # this many requests get 500
        self.unwatchable = 0  # what a watch gets instead, such as 403; 200: it ends at once
        self.asked: list[tuple[str, dict[str, str], str]] = []  # path, query, credentials
        self.log: list[tuple[int, str, str, Json]] = []  # version, path, type, object
        self._watches: set[asyncio.Queue[tuple[int, str, str, Json] | None]] = set()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> "ApiServer":
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def close(self) -> None:
        self.drop()
        assert self._runner is not None
        await self._runner.cleanup()

    def put(self, path: str, found: Json) -> None:
        key = (found["metadata"].get("namespace", ""), found["metadata"]["name"])
        self._happen(path, "MODIFIED" if key in self.kinds[path] else "ADDED", found)
        self.kinds[path][key] = found

    def delete(self, path: str, namespace: str, name: str) -> None:
        self._happen(path, "DELETED", self.kinds[path].pop((namespace, name)))

    def forget(self) -> None:
        """Everything so far is too old to watch from, and watches that last are told so."""
        self.version += 1
        self.oldest = self.version
        status = {"kind": "Status", "code": 410, "reason": "Expired", "metadata": {}}
        for watch in self._watches:
            watch.put_nowait((self.version, "", "ERROR", status))

    def say(self, event: Any) -> None:
        """Anything, on every watch."""
        for watch in self._watches:
            watch.put_nowait((self.version, "", "RAW", event))

    def drop(self) -> None:
        for watch in self._watches:
            watch.put_nowait(None)

    @property
    def watches(self) -> int:
        return len(self._watches)

    def lists(self, path: str) -> int:
        return len([query for where, query, _ in self.asked if where == path and "watch" not in query])

    def _happen(self, path: str, what: str, found: Json) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        event = (self.version, path, what, json.loads(json.dumps(found)))
        self.log.append(event)
        for watch in self._watches:
            watch.put_nowait(event)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, dict(request.query)
        self.asked.append((path, query, request.headers.get("Authorization", "")))
        if self.failing:
            self.failing -= 1
            return web.json_response({"message": "etcd is away"}, status=500)
        if path not in self.kinds:
            return web.json_response({"message": "not found"}, status=404)
        if "watch" in query and self.unwatchable:
            return web.Response(status=self.unwatchable)
        if "watch" in query:
            return await self._watch(request, path, int(query["resourceVersion"]))
        return web.json_response(self._page(path, query))

    def _page(self, path: str, query: dict[str, str]) -> Json:
        """Two at a time, so that pages are turned."""
        first, everything = int(query.get("continue", 0)), list(self.kinds[path].values())
        more = str(first + 2) if first + 2 < len(everything) else ""
        metadata = {"resourceVersion": str(self.version), "continue": more}
        return {"metadata": metadata, "items": everything[first : first + 2]}

    async def _watch(self, request: web.Request, path: str, since: int) -> web.StreamResponse:
        if since < self.oldest:
            return web.json_response({"code": 410}, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[tuple[int, str, str, Json] | None] = asyncio.Queue()
        for event in self.log:
            if event[0] > since:
                queue.put_nowait(event)
        self._watches.add(queue)
        try:
            while (told := await queue.get()) is not None:
                _, where, what, found = told
                if where in (path, ""):
                    event = found if what == "RAW" else {"type": what, "object": found}
                    await response.write(json.dumps(event).encode() + b"\n")
        finally:
            self._watches.discard(queue)
        return response

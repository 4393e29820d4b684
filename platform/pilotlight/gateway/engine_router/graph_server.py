"""The executor of an InferenceGraph behind the router's data plane: an HTTP server on a private socket, and its client.

The data plane admits, counts and drains requests as for any endpoint; this one calls the services of the steps.
"""

import asyncio
import json
import secrets
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
from aiohttp import web

from pilotlight import contract
from pilotlight.gateway.engine_router.graph import (
    JSON,
    LOOP_DETECTED,
    Execution,
    GraphError,
    Message,
    Step,
    identify,
    inference_path,
    pass_graph,
)
from pilotlight.gateway.engine_router.settings import RouterSettings
from pilotlight.gateway.metrics_and_reports import log
from pilotlight.gateway.proxy.responses import NO_ROUTE
from pilotlight.gateway.routing_table import Replica
from pilotlight.k8s import names
from pilotlight.wire.http1_strict_parser import MAX_HEAD
from pilotlight.wire.unix_socket import SCHEME, socket_path

MAX_BODY: Final = 64 << 20  # of a request, and of an answer of a step
MAX_HELD: Final = 1 << 30  # of all requests and the answers of their steps together
HELD: Final = web.RequestKey("held", int)
GRAPHS: Final = web.RequestKey("graphs", str)
PORT: Final = 1  # names the socket
PROPAGATED: Final = (contract.HEADER_REQUEST_ID, contract.HEADER_TRACEPARENT, contract.HEADER_TRACESTATE)
AUTHORIZATION: Final = "authorization"  # for services of the namespace alone, whose access rules check it
RESOLVED_S: Final = 10.0  # as long as aiohttp caches addresses
FAILED: Final = "the graph failed"


class GraphServer:
    """An EndpointSource with one endpoint, which starts with the first discovery."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._identity = identify(settings.namespace, settings.engine, settings.graph)
        self._held = 0
        self._folder = TemporaryDirectory(prefix="graph-")  # of mode 0700
        self._replica = Replica("graph", PORT, f"{SCHEME}{self._folder.name}")
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._resolved: dict[str, tuple[int, float]] = {}  # by service: which of its URLs has a host, and until when

    async def discover(self) -> tuple[Replica, ...]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),  # a cookie would reach steps of other clients
                timeout=aiohttp.ClientTimeout(total=self._settings.step_timeout_s or None),
            )
            app = web.Application()
            app.router.add_get("/v2/health/ready", _ready)
            app.router.add_post("/{path:.*}", self._answer)
            # The data plane bounds heads; a client that disconnects cancels the calls of its steps.
            self._runner = web.AppRunner(
                app, handler_cancellation=True, access_log=None, max_line_size=MAX_HEAD, max_field_size=MAX_HEAD
            )
            await self._runner.setup()
            await web.UnixSite(self._runner, str(socket_path(self._replica.host, PORT))).start()
        return (self._replica,)

    async def close(self) -> None:
        if self._session is not None and self._runner is not None:
            await self._session.close()
            await self._runner.cleanup()
        self._folder.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        """Execute the graph for one request, within its deadline."""

        async def call(step: Step, message: Message) -> Message:
            return await self._call(step, message, request)

        request[HELD] = 0
        execution = Execution(self._settings.graph, call, lambda: secrets.randbelow(100))
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                request[GRAPHS] = pass_graph(request.headers.get(contract.HEADER_GRAPHS, ""), self._identity)
                too_long = GraphError(413, f"the body has more than {MAX_BODY >> 20} MiB")
                body = await self._read(request.content, request, too_long)
                answer = await execution.run(Message(body, request.headers.get("Content-Type", JSON)))
        except TimeoutError:
            answer = _failure(GraphError(504, f"the steps took more than {self._settings.timeout_s:g} s"))
        except GraphError as error:
            answer = _failure(error)
        finally:
            self._held -= request[HELD]
        headers = {"Content-Type": answer.content_type, "Server": "pilotlight"}
        return web.Response(status=answer.status, body=answer.body, headers=headers)

    async def _call(self, step: Step, message: Message, request: web.Request) -> Message:
        headers = {name: request.headers[name] for name in PROPAGATED if name in request.headers}
        headers |= {"Content-Type": message.content_type, contract.HEADER_GRAPHS: request[GRAPHS]}
        if step.service_name and AUTHORIZATION in request.headers:
            headers[AUTHORIZATION] = request.headers[AUTHORIZATION]
        urls, now = self._urls(step, message), asyncio.get_running_loop().time()
        first, until = self._resolved.get(step.service_name, (0, 0.0))
        try:
            for index in range(first if now < until else 0, len(urls)):
                with suppress(aiohttp.ClientConnectorDNSError):
                    answer = await self._post(urls[index], message, headers, step, request)
                    self._resolved[step.service_name] = (index, until if now < until else now + RESOLVED_S)
                    return answer
        except TimeoutError:
            raise GraphError(504, f"step {step.target} took more than {self._settings.step_timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log("graph.step_failed", f"{step.target}: {type(error).__name__}: {error}", level="WARNING")
            raise GraphError(502, f"step {step.target} cannot be reached: {type(error).__name__}") from None
        self._resolved.pop(step.service_name, None)
        raise GraphError(502, f"step {step.target}: its host is unknown; is the service deployed?")

    def _urls(self, step: Step, message: Message) -> list[str]:
        """Return the URLs to try. A serverless service has the name of its entry workload in a cluster's DNS."""
        if not step.service_name:
            return [step.service_url]
        service, namespace = step.service_name, self._settings.namespace
        path = inference_path(service, message.document)
        if self._settings.gateway_url:
            return [f"{self._settings.gateway_url}/{namespace}/{service}{path}"]
        hosts = [names.entry_service(service), *(names.workload(service, role) for role in names.ENTRY_ROLES)]
        return [f"http://{host}.{namespace}.svc.cluster.local{path}" for host in hosts]

    async def _post(
        self, url: str, message: Message, headers: dict[str, str], step: Step, request: web.Request
    ) -> Message:
        """Send a message. Redirects are no answers of a model."""
        assert self._session is not None
        too_long = GraphError(502, f"step {step.target} returned more than {MAX_BODY >> 20} MiB")
        async with self._session.post(url, data=message.body, headers=headers, allow_redirects=False) as response:
            body = await self._read(response.content, request, too_long)
            if response.status == LOOP_DETECTED:  # of a graph behind it; else an Ensemble would hide it
                raise GraphError(LOOP_DETECTED, f"step {step.target}: its graphs form a cycle, or lead to too many")
            if step.service_name and response.status == NO_ROUTE.status and NO_ROUTE.message.encode() in body:
                cause = f"no service {self._settings.namespace}/{step.service_name} is deployed; deploy it"
                log("graph.step_failed", f"{step.target}: {cause}", level="WARNING")
                raise GraphError(502, f"step {step.target}: {cause}")
            content_type = response.headers.get("Content-Type", JSON)
            if not (200 <= response.status < 600 and content_type.isprintable()):
                raise GraphError(502, f"step {step.target} returned a malformed status or Content-Type")
            return Message(body, content_type, response.status)

    async def _read(self, stream: aiohttp.StreamReader, request: web.Request, too_long: GraphError) -> bytes:
        """Return a body, which the request holds until its end."""
        body = bytearray()
        async for piece in stream.iter_any():
            body += piece
            request[HELD] += len(piece)
            self._held += len(piece)
            if len(body) > MAX_BODY:
                raise too_long
            if self._held > MAX_HELD:
                raise GraphError(503, f"requests and step responses hold more than {MAX_HELD >> 20} MiB")
        return bytes(body)


async def _ready(_: web.Request) -> web.Response:
    return web.Response()


def _failure(error: GraphError) -> Message:
    """Return the answer of a graph that failed, in the form of KServe's."""
    return Message(json.dumps({"error": FAILED, "cause": str(error)}).encode(), JSON, error.status)

"""An InferenceGraph as its router executes it: which steps a request takes, and what becomes of their answers.

Semantics are those of KServe's router. Calls of services are injected, as is the random number of a Splitter.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from msgspec import MsgspecError, Struct
from msgspec import json as msgspec_json

from pilotlight.spec.inference_graph.condition import Condition, holds, parse
from pilotlight.wire.http_client import check_json, decode_json

Json = Any
T = TypeVar("T")
ROOT: Final = "root"
JSON: Final = "application/json"
MAX_GRAPHS: Final = 5  # that a request comes through
LOOP_DETECTED: Final = 508
LARGE: Final = 1 << 20  # a document whose elements may take seconds to compare
_GRAPHS: Final = re.compile(r"[0-9a-f]{16}(?:,[0-9a-f]{16})*")


class Step(Struct, frozen=True, rename="camel", dict=True):
    """One target of a node: another node, a service of the namespace, or a URL."""

    name: str = ""
    node_name: str = ""
    service_name: str = ""
    service_url: str = ""
    data: str = ""
    map_predictions_to_instances: bool = False
    weight: int = 0
    condition: str = ""
    dependency: str = ""

    @cached_property
    def parsed(self) -> Condition:
        return parse(self.condition)

    @property
    def target(self) -> str:
        """Return what clients read of the step: no path of a URL, which may be a secret."""
        return self.name or self.service_name or self.node_name or urlsplit(self.service_url).hostname or ""


class Node(Struct, frozen=True, rename="camel"):
    router_type: Literal["Sequence", "Splitter", "Switch", "Ensemble"]
    steps: tuple[Step, ...]


Graph = Mapping[str, Node]


class GraphError(Exception):
    """A request that the graph cannot answer, with the status for its client."""

    def __init__(self, status: int, cause: str) -> None:
        super().__init__(cause)
        self.status = status


@dataclass(frozen=True)
class Message:
    """A request or an answer."""

    body: bytes
    content_type: str = JSON
    status: int = 200

    @property
    def failed(self) -> bool:
        return not 200 <= self.status < 300

    @cached_property
    def document(self) -> Json:
        """The body as JSON; None if it is none. Raise GraphError for one that would hold the process for long."""
        if self.body[:64].lstrip()[:1] not in (b"{", b"["):
            return None
        try:
            check_json(self.body)
        except ValueError as error:
            raise GraphError(413, str(error)) from None
        try:
            return decode_json(self.body)
        except ValueError:
            return None


Call = Callable[[Step, Message], Awaitable[Message]]


class Execution(NamedTuple):
    """`call` sends a message to the service of a step; `point` returns a random number from 0 to 99."""

    graph: Graph
    call: Call
    point: Callable[[], int]

    async def run(self, request: Message, name: str = ROOT) -> Message:
        """Return the answer of a node. Raise GraphError."""
        node = self.graph[name]
        match node.router_type:
            case "Splitter":
                return await self._take(split(node.steps, self.point()), request)
            case "Switch":
                step = await _judge(request, partial(switch, node.steps))
                if step is None:
                    raise GraphError(404, f"node {name}: the request matches no step's condition")
                return await self._take(step, request)
            case "Ensemble":
                return await self._ensemble(node.steps, request)
            case "Sequence":
                return await self._sequence(node.steps, request)

    async def _take(self, step: Step, request: Message) -> Message:
        return await (self.run(request, step.node_name) if step.node_name else self.call(step, request))

    async def _sequence(self, steps: tuple[Step, ...], request: Message) -> Message:
        answer = request
        for step in steps:
            if step.condition and not await _judge(answer, partial(holds, step.parsed)):
                break
            answer = await self._take(step, step_input(step, request, answer))
            if answer.failed and step.dependency == "Hard":
                break
        return answer

    async def _ensemble(self, steps: tuple[Step, ...], request: Message) -> Message:
        """Call all steps at once. The first Hard one that fails, in their order, is the answer."""
        tasks = [asyncio.ensure_future(self._take(step, request)) for step in steps]
        merged = {}
        try:
            for index, (step, task) in enumerate(zip(steps, tasks, strict=True)):
                answer = await task
                if answer.failed and step.dependency == "Hard":
                    return answer
                merged[step.name or str(index)] = part = answer.document
                if not isinstance(part, dict):
                    raise GraphError(502, f"step {step.target} returned {answer.status} without a JSON object to merge")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Message(json.dumps(merged).encode())


async def _judge(message: Message, decide: Callable[[Json], T]) -> T:
    """Return what is decided about a document; of a large one in a thread, so that other requests go on."""
    if len(message.body) < LARGE:
        return decide(message.document)
    return await asyncio.to_thread(lambda: decide(message.document))


def identify(namespace: str, name: str, graph: Graph) -> str:
    """Return the digest that names a graph in HEADER_GRAPHS."""
    return sha256(msgspec_json.encode((namespace, name, graph))).hexdigest()[:16]


def pass_graph(before: str, identity: str) -> str:
    """Return the graphs that a request has come through, with this one. Raise GraphError if they form a cycle."""
    if before and _GRAPHS.fullmatch(before) is None:
        raise GraphError(400, "the header that names the graphs before this one is malformed; do not send it")
    graphs = before.split(",") if before else []
    if identity in graphs:
        raise GraphError(LOOP_DETECTED, "the graphs form a cycle: the request has already passed this graph")
    if len(graphs) >= MAX_GRAPHS:
        raise GraphError(LOOP_DETECTED, f"the request passed {MAX_GRAPHS} graphs, the limit")
    return ",".join((*graphs, identity))


def split(steps: tuple[Step, ...], point: int) -> Step:
    """Return the step whose share of 0 to 99 has the point; weights add up to 100."""
    for step in steps:
        point -= step.weight
        if point < 0:
            return step
    raise GraphError(500, "the weights of a Splitter do not add up to 100")


def switch(steps: tuple[Step, ...], document: Json) -> Step | None:
    """Return the first step whose condition the document meets."""
    return next((step for step in steps if holds(step.parsed, document)), None)


def step_input(step: Step, request: Message, answer: Message) -> Message:
    """Return what a step of a Sequence gets, after the answer of the step before."""
    message = answer if step.data == "$response" else request
    if step.map_predictions_to_instances:
        document = message.document
        predictions = document.get("predictions") if isinstance(document, dict) else None
        if isinstance(predictions, list) and predictions:
            return Message(json.dumps({"instances": predictions}).encode())
    return message


def inference_path(model: str, document: Json) -> str:
    """Return the path that a model is called at, by the protocol of the body: V2, OpenAI's, else V1."""
    fields = document if isinstance(document, dict) else {}
    tensors = fields.get("inputs", fields.get("outputs"))  # outputs: the answer of a V2 step before
    if isinstance(tensors, list) and tensors and isinstance(tensors[0], dict) and "datatype" in tensors[0]:
        return f"/v2/models/{model}/infer"
    if "instances" in fields or "predictions" in fields:
        return f"/v1/models/{model}:predict"
    if "messages" in fields:
        return "/v1/chat/completions"
    return "/v1/completions" if "prompt" in fields else f"/v1/models/{model}:predict"


def read_graph(text: str) -> Graph:
    """Return the graph of a router's settings. Raise ValueError."""
    try:
        graph = msgspec_json.decode(text, type=dict[str, Node])
    except MsgspecError as error:
        raise ValueError(str(error)) from None
    steps = [step for node in graph.values() for step in node.steps]
    if missing := {ROOT, *(step.node_name for step in steps if step.node_name)} - graph.keys():
        raise ValueError(f"unknown node {min(missing)}")
    for step in steps:
        if step.condition:
            step.parsed  # noqa: B018 - raises ValueError
    return graph

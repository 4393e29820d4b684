"""InferenceGraphs: which steps a request takes, and what becomes of their answers."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.platform.gateway.linked import in_loop

from pilotlight.errors import UsageError
from pilotlight.gateway.engine_router.graph import (
    Execution,
    GraphError,
    Message,
    Step,
    identify,
    inference_path,
    pass_graph,
    read_graph,
    split,
)
from pilotlight.gateway.engine_router.settings import read

Nodes = Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]]


def nodes_text(nodes: Nodes) -> str:
    return json.dumps({name: {"routerType": kind, "steps": list(steps)} for name, (kind, steps) in nodes.items()})


def named(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"serviceName": name, "name": name, **fields} for name in names]


class Calls:
    """Services that answer with their name and what they got; `statuses` other than 200 are given."""

    def __init__(self, **statuses: int) -> None:
        self.statuses, self.calls = statuses, list[tuple[str, Any]]()

    async def __call__(self, step: Step, message: Message) -> Message:
        self.calls.append((step.service_name, message.document))
        answer = {"predictions": [step.service_name]}
        return Message(json.dumps(answer).encode(), status=self.statuses.get(step.service_name, 200))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


async def execute(nodes: Nodes, body: Any, calls: Calls, point: int = 0) -> Message:
    return await Execution(read_graph(nodes_text(nodes)), calls, lambda: point).run(Message(json.dumps(body).encode()))


def test_the_share_of_a_split_is_its_weight() -> None:
    steps = (Step("a", weight=20), Step("b", weight=0), Step("c", weight=80))
    chosen = [split(steps, point).name for point in range(100)]
    assert (chosen.count("a"), chosen.count("b"), chosen.count("c")) == (20, 0, 80)


@in_loop
async def test_a_splitter_takes_the_step_of_its_point() -> None:
    steps = [*named("a", weight=30), *named("b", weight=70)]
    calls = Calls()
    for point in (29, 30):
        await execute({"root": ("Splitter", steps)}, {}, calls, point)
    assert calls.names == ["a", "b"]


@in_loop
async def test_a_switch_takes_the_first_step_whose_condition_holds() -> None:
    steps = [*named("a", condition="x.#(n>1)"), *named("b", condition="x"), *named("c", condition="x")]
    calls = Calls()
    for body in ({"x": [{"n": 2}]}, {"x": [{"n": 1}]}):
        await execute({"root": ("Switch", steps)}, body, calls)
    assert calls.names == ["a", "b"]
    with pytest.raises(GraphError, match="node root") as refused:
        await execute({"root": ("Switch", steps)}, {"y": 1}, calls)
    assert refused.value.status == 404


@in_loop
async def test_a_sequence_hands_on_the_request_or_the_answer_before() -> None:
    steps = [*named("a"), *named("b"), *named("c", data="$response"),
             *named("d", data="$response", mapPredictionsToInstances=True)]  # fmt: skip
    calls = Calls()
    answer = await execute({"root": ("Sequence", steps)}, {"instances": [1]}, calls)
    assert calls.calls == [
        ("a", {"instances": [1]}),
        ("b", {"instances": [1]}),
        ("c", {"predictions": ["b"]}),
        ("d", {"instances": ["c"]}),
    ]
    assert answer.document == {"predictions": ["d"]}


@in_loop
async def test_a_sequence_ends_at_a_condition_that_does_not_hold() -> None:
    steps = [*named("a"), *named("b", condition='predictions.#(=="cat")')]
    calls = Calls()
    assert (await execute({"root": ("Sequence", steps)}, {}, calls)).document == {"predictions": ["a"]}
    assert calls.names == ["a"]


@in_loop
async def test_a_hard_step_that_fails_ends_a_sequence_and_a_soft_one_does_not() -> None:
    hard = [*named("a", dependency="Hard"), *named("b")]
    calls = Calls(a=404)
    answer = await execute({"root": ("Sequence", hard)}, {}, calls)
    assert (answer.status, answer.document, calls.names) == (404, {"predictions": ["a"]}, ["a"])
    answer = await execute({"root": ("Sequence", named("a", "b"))}, {}, calls)
    assert (answer.status, answer.document) == (200, {"predictions": ["b"]})


@in_loop
async def test_an_ensemble_merges_by_name_or_number_and_the_first_hard_failure_is_its_answer() -> None:
    merged = await execute({"root": ("Ensemble", [*named("a"), {"serviceName": "b"}])}, {}, Calls(b=500))
    assert merged.document == {"a": {"predictions": ["a"]}, "1": {"predictions": ["b"]}}
    assert merged.status == 200
    hard = named("a", "b", dependency="Hard")
    failed = await execute({"root": ("Ensemble", hard)}, {}, Calls(a=503, b=404))
    assert (failed.status, failed.document) == (503, {"predictions": ["a"]})


@in_loop
async def test_nodes_are_steps_of_others() -> None:
    nodes: Nodes = {
        "root": ("Sequence", [{"nodeName": "both"}, *named("last", data="$response")]),
        "both": ("Ensemble", named("a", "b")),
    }
    calls = Calls()
    await execute(nodes, {}, calls)
    assert calls.calls[-1] == ("last", {"a": {"predictions": ["a"]}, "b": {"predictions": ["b"]}})


@in_loop
async def test_text_that_is_no_unicode_is_merged_as_it_is() -> None:
    async def call(step: Step, message: Message) -> Message:
        return Message(b'{"text": "\\ud800"}')

    graph = read_graph(nodes_text({"root": ("Ensemble", named("a"))}))
    merged = await Execution(graph, call, lambda: 0).run(Message(b"{}"))
    assert merged.document == {"a": {"text": "\ud800"}}


@in_loop
async def test_a_condition_on_a_large_document_does_not_delay_other_requests() -> None:
    calls, ended = Calls(), False

    async def count_turns() -> int:
        turns = 0
        while not ended:
            turns += 1
            await asyncio.sleep(0)
        return turns

    turns = asyncio.ensure_future(count_turns())
    nodes: Nodes = {"root": ("Switch", [*named("a", condition="x.#(>1)"), *named("b", condition="x")])}
    await execute(nodes, {"x": [0] * 500_000}, calls)
    ended = True
    assert (calls.names, await turns > 2) == (["b"], True)


def test_a_request_comes_through_a_graph_once_and_through_five_at_most() -> None:
    graphs = [identify("demo", f"graph-{number}", {}) for number in range(6)]
    passed = ""
    for graph in graphs[:5]:
        passed = pass_graph(passed, graph)
    for before, graph, status in ((passed, graphs[5], 508), (graphs[0], graphs[0], 508), ("-1", graphs[0], 400)):
        with pytest.raises(GraphError) as refused:
            pass_graph(before, graph)
        assert refused.value.status == status


def test_a_body_is_decoded_where_it_is_json_of_a_size_that_is_quick() -> None:
    assert Message(b' {"a": 1}').document == {"a": 1}
    assert [Message(body).document for body in (b"", b"\x89PNG[[", b"{", b'"text"')] == [None] * 4
    with pytest.raises(GraphError, match="100000 lists") as refused:
        _ = Message(b"[" * 100_001).document
    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"inputs": [{"name": "x", "datatype": "FP32"}]}, "/v2/models/iris/infer"),
        ({"outputs": [{"name": "y", "datatype": "FP32"}]}, "/v2/models/iris/infer"),
        ({"instances": [[1]]}, "/v1/models/iris:predict"),
        ({"inputs": {"x": [1]}}, "/v1/models/iris:predict"),
        ({"messages": []}, "/v1/chat/completions"),
        ({"prompt": "a"}, "/v1/completions"),
        ({"instances": [1], "prompt": "a"}, "/v1/models/iris:predict"),
        (None, "/v1/models/iris:predict"),
    ],
)
def test_a_service_is_called_by_the_protocol_of_the_body(body: Any, path: str) -> None:
    assert inference_path("iris", body) == path


@pytest.mark.parametrize(
    "graph", ["{", "[]", "{}", '{"root": {"routerType": "Loop", "steps": []}}',
              nodes_text({"root": ("Sequence", [{"nodeName": "x"}])}),
              nodes_text({"root": ("Switch", [{"serviceName": "x", "condition": "a|b"}])})],
)  # fmt: skip
def test_a_graph_that_is_none_is_a_setting_that_is_wrong(graph: str) -> None:
    with pytest.raises(UsageError, match="PILOTLIGHT_ROUTER_GRAPH"):
        read({"PILOTLIGHT_ROUTER_GRAPH": graph})

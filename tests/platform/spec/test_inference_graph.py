"""KServe's InferenceGraph: its documents, every rule with its place, conditions, and what is planned from it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilotlight.contract import LOCAL_CAPABILITIES
from pilotlight.k8s.names import ANNOTATION_TARGET
from pilotlight.plan.types import Capabilities, Plan
from pilotlight.release.plan_and_render import Sources, plan_all, plan_documents
from pilotlight.release.plan_and_render import read as read_sources
from pilotlight.spec.inference_graph.condition import holds, parse
from pilotlight.spec.load_documents import load
from pilotlight.spec.problems import InvalidDocument, Problems
from pilotlight.spec.service import Service

DOCUMENTS = sorted((Path(__file__).parent / "documents/kserve-graphs").glob("*.yaml"))
IRIS = {"serviceName": "iris"}


def node(router_type: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"routerType": router_type, "steps": list(steps)}


def text(root: Any = None, **spec: Any) -> str:
    nodes = {"root": root or node("Sequence", IRIS), **spec.pop("nodes", {})}
    document = {
        "apiVersion": "serving.kserve.io/v1alpha1", "kind": "InferenceGraph", "metadata": {"name": "flowers"},
        "spec": {"nodes": {name: each for name, each in nodes.items() if each}, **spec},
    }  # fmt: skip
    return yaml.safe_dump(document, sort_keys=False)


def read(root: Any = None, **spec: Any) -> tuple[Service, Problems]:
    loaded = load(["-"], stdin=io.StringIO(text(root, **spec)))
    return loaded.services[0], loaded.problems


def planned(root: Any = None, target: str = "", **spec: Any) -> Plan:
    documents = read_sources(Sources(["-"], stdin=io.StringIO(text(root, **spec))))
    capabilities = Capabilities(**{**LOCAL_CAPABILITIES, "target": target}) if target else Capabilities()
    (made,) = plan_documents(documents, capabilities).plans
    return made


def container(plan: Plan) -> dict[str, Any]:
    (work,) = plan.workloads
    return dict(work.template["spec"]["containers"][0])


def env(plan: Plan) -> dict[str, str]:
    return {each["name"].removeprefix("PILOTLIGHT_ROUTER_"): each["value"] for each in container(plan)["env"]}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_the_documents_of_kserve_are_taken(path: Path) -> None:
    (plan,) = plan_all(Sources([str(path)])).plans
    assert [work.role for work in plan.workloads] == ["router"]
    warned = [problem.path for problem in plan.warnings]
    assert not warned
    read_warnings = [problem.path for problem in load([str(path)]).problems.items]
    expected = ["spec.nodes.node1.steps[0].condition"] if path.stem == "nested-dependencies" else []
    assert read_warnings == expected


@pytest.mark.parametrize(
    ("root", "more", "code", "path"),
    [
        (None, {"nodes": {"root": None, "other": node("Sequence", IRIS)}}, "PL103", "spec.nodes.root"),
        ({"routerType": "Sequence", "steps": []}, {}, "PL103", "spec.nodes.root.steps"),
        (node("Ensemble", {**IRIS, "name": "a"}, {**IRIS, "name": "a"}), {}, "PL104", "spec.nodes.root.steps[1].name"),
        (node("Sequence", {"name": "a"}), {}, "PL103", "spec.nodes.root.steps[0]"),
        (node("Sequence", {**IRIS, "serviceUrl": "http://a/b"}), {}, "PL111", "spec.nodes.root.steps[0].serviceUrl"),
        (node("Sequence", {**IRIS, "nodeName": "root"}), {}, "PL111", "spec.nodes.root.steps[0].serviceName"),
        (node("Splitter", {**IRIS, "weight": 50}, IRIS), {}, "PL103", "spec.nodes.root.steps[1].weight"),
        (node("Splitter", {**IRIS, "weight": 50}, {**IRIS, "weight": 40}), {}, "PL104", "spec.nodes.root.steps"),
        (node("Sequence", {"nodeName": "rot"}), {}, "PL104", "spec.nodes.root.steps[0].nodeName"),
        (node("Sequence", {"nodeName": "root"}), {}, "PL104", "spec.nodes.root.steps[0].nodeName"),
        (node("Sequence", {"nodeName": "a"}), {"nodes": {"a": node("Switch", {"nodeName": "root", "condition": "x"})}},
         "PL104", "spec.nodes.a.steps[0].nodeName"),
        (node("Switch", IRIS), {}, "PL103", "spec.nodes.root.steps[0].condition"),
        (node("Switch", {**IRIS, "condition": "{ .input == 1 }"}), {}, "PL104", "spec.nodes.root.steps[0].condition"),
        (node("Sequence", {**IRIS, "condition": "x"}), {}, "PL104", "spec.nodes.root.steps[0].condition"),
        (node("Sequence", {**IRIS, "data": "$response.predictions"}), {}, "PL104", "spec.nodes.root.steps[0].data"),
        (node("Sequence", {**IRIS, "dependency": "Weak"}), {}, "PL104", "spec.nodes.root.steps[0].dependency"),
        (node("Sequence", {"serviceUrl": "ftp://x"}), {}, "PL104", "spec.nodes.root.steps[0].serviceUrl"),
        (node("Sequence", {"serviceUrl": "http://me:key@x/"}), {}, "PL104", "spec.nodes.root.steps[0].serviceUrl"),
        (node("Sequence", {"serviceUrl": "http://x\\@y/"}), {}, "PL104", "spec.nodes.root.steps[0].serviceUrl"),
        (node("Sequence", {"serviceUrl": "http://x/" + "y" * 100_000}), {}, "PL104", "spec.nodes"),
        (None, {"routerTimeouts": {"serviceClient": 3601}}, "PL104", "spec.routerTimeouts.serviceClient"),
        (node("Round", IRIS), {}, "PL104", "spec.nodes.root.routerType"),
        (None, {"minReplicas": 3, "maxReplicas": 2}, "PL104", "spec.maxReplicas"),
        (None, {"timeout": 0}, "PL104", "spec.timeout"),
        (None, {"nodes": {f"n{number}": node("Sequence", IRIS) for number in range(100)}}, "PL104", "spec.nodes"),
        (node("Ensemble", *[{"nodeName": "a", "name": str(n)} for n in range(40)]),
         {"nodes": {"a": node("Ensemble", *[{**IRIS, "name": str(n)} for n in range(40)])}}, "PL104", "spec.nodes"),
    ],
)  # fmt: skip
def test_a_graph_that_cannot_be_executed_is_refused_at_its_place(
    root: Any, more: dict[str, Any], code: str, path: str
) -> None:
    errors = [problem for problem in read(root, **more)[1].errors if problem.code == code]
    assert path in [problem.path for problem in errors]
    assert all(problem.location.line > 1 for problem in errors)


@pytest.mark.parametrize("target", [{"serviceName": "Iris_B"}, {"serviceUrl": "iris:8080"}])
def test_a_target_that_is_refused_is_not_missing_as_well(target: dict[str, str]) -> None:
    assert [each.code for each in read(node("Sequence", target))[1].errors] == ["PL104"]


def test_a_node_that_does_not_exist_is_to_be_added_unless_one_is_called_alike() -> None:
    nodes = {"classify": node("Sequence", IRIS)}
    steps = [{"nodeName": "clasify"}, {"nodeName": "rank"}, {"nodeName": "classify"}]
    alike, unlike = read(node("Sequence", *steps), nodes=nodes)[1].errors
    assert alike.message.endswith("did you mean classify?")
    assert unlike.message.endswith("add a node of this name to spec.nodes")


@pytest.mark.parametrize(
    ("root", "more", "path"),
    [
        (node("Sequence", {**IRIS, "weight": 1}), {}, "spec.nodes.root.steps[0].weight"),
        (node("Ensemble", {**IRIS, "condition": "x"}), {}, "spec.nodes.root.steps[0].condition"),
        (node("Switch", {**IRIS, "condition": "x", "data": "$request"}), {}, "spec.nodes.root.steps[0].data"),
        (None, {"nodes": {"other": node("Sequence", IRIS)}}, "spec.nodes.other"),
        (None, {"routerTimeouts": {"serverRead": 60}}, "spec.routerTimeouts.serverRead"),
    ],
)
def test_fields_without_effect_are_named(root: Any, more: dict[str, Any], path: str) -> None:
    problems = read(root, **more)[1]
    assert [(each.code, each.path, each.severity) for each in problems.items] == [("PL114", path, "warning")]


def test_nodes_that_share_a_node_are_no_cycle() -> None:
    nodes = {"a": node("Sequence", {"nodeName": "c"}), "b": node("Sequence", {"nodeName": "c"}),
             "c": node("Sequence", IRIS)}  # fmt: skip
    assert not read(node("Ensemble", {"nodeName": "a"}, {"nodeName": "b"}), nodes=nodes)[1].items


def test_the_fields_of_a_graph_become_those_of_its_router() -> None:
    plan = planned(
        minReplicas=0, maxReplicas=4, timeout=7, routerTimeouts={"serviceClient": 3}, nodeSelector={"disk": "ssd"},
        resources={"limits": {"cpu": "2", "memory": "1Gi"}},
    )  # fmt: skip
    (work,) = plan.workloads
    assert (work.scaling.min_replicas, work.scaling.max_replicas, work.timeout_seconds) == (0, 4, 7)
    assert container(plan)["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}
    assert container(plan)["command"][-1] == "route"
    assert work.template["spec"]["nodeSelector"] == {"disk": "ssd"}
    settings = env(plan)
    assert (settings["TIMEOUT_S"], settings["STEP_TIMEOUT_S"], settings["NAMESPACE"]) == ("7", "3", "default")
    assert json.loads(settings["GRAPH"]) == {"root": node("Sequence", IRIS)}


def test_a_dollar_sign_reaches_the_router_unexpanded() -> None:
    root = node("Switch", {**IRIS, "condition": 'a.#(b=="$$x")'}, {**IRIS, "condition": 'a.#(b=="$y")'})
    graph = env(planned(root))["GRAPH"]
    assert "$$" not in graph
    assert json.loads(graph)["root"] == root


def test_the_mode_is_that_of_the_annotation_or_the_cluster() -> None:
    assert planned().mode == "serverless"
    document = text().replace(
        "name: flowers", "name: flowers\n  annotations: {serving.kserve.io/deploymentMode: Standard}"
    )
    (plan,) = plan_all(Sources(["-"], stdin=io.StringIO(document))).plans
    assert plan.mode == "raw"


@pytest.mark.parametrize("target", ["docker", "slurm"])
def test_beside_containers_and_jobs_a_graph_is_a_process_of_this_machine(target: str) -> None:
    (work,) = planned(target=target, minReplicas=0).workloads
    assert ANNOTATION_TARGET not in work.template["metadata"].get("annotations", {})


@pytest.mark.parametrize("target", ["lepton", "brev"])
def test_without_a_gateway_a_step_needs_a_url(target: str) -> None:
    planned(node("Sequence", {"serviceUrl": "https://iris.example.com/v1/models/iris:predict"}), target=target)
    with pytest.raises(InvalidDocument) as refused:
        planned(target=target)
    assert [(each.code, each.path) for each in refused.value.problems] == [
        ("PL375", "spec.nodes.root.steps[0].serviceName")
    ]


BODY = {
    "source": "client", "ok": True, "none": None, "text": "[x]", "labels": ["dog"], "numbers": [1, 3],
    "instances": [{"intval": 0, "strval": "kserve"}, {"intval": 11, "strval": "1red-server1", "words": "a b"}],
    "predictions": ["dog", {"class": "news"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("[@this].#(source==client)", True), ('[@this].#(source=="client")', True), ("[@this].#(source==me)", False),
        ("instances.#(intval>10)", True), ("instances.#(intval>11)", False), ("instances.#(intval>=11).strval", True),
        ("instances.#(intval<=0)", True), ("instances.#(intval!=0)", True), ("instances.#( intval < 0 )", False),
        ("instances.#(strval%*red-server*)", True), ("instances.#(strval!%*e*)", False),
        ('[@this].#(text%"[?]")', True),
        ('[@this].#(predictions.0=="dog")', True), ('[@this].#(predictions.1.class=="news")', True),
        ("predictions.1.class", True), ("predictions.2", False), ("predictions.x", False), ("source.x", False),
        ('labels.#(=="dog")', True), ("numbers.#(>2)", True), ("numbers.#(>3)", False),
        ("labels.#(%d?g)", True), ("labels.#(>3)", True),
        ("[@this].#(ok==true)", True), ("[@this].#(ok!=true)", False), ("[@this].#(ok>false)", True),
        ("[@this].#(ok%t*)", False), ("none", True), ("[@this].#(none==null)", False), ("[@this].#(none)", True),
        ("instances.#(words==a b)", True), ("instances.#(missing)", False), ("[@this]", True), ("source", True),
        ("[@this].#(instances==x)", False), ("instances.#(intval==zero)", True),
    ],
)  # fmt: skip
def test_a_condition_holds_as_in_gjson(condition: str, expected: bool) -> None:
    assert holds(parse(condition), BODY) is expected


def test_a_condition_has_a_length_that_is_quick_to_read() -> None:
    """16,000 blanks took half a minute, and a number of 5,000 digits failed requests."""
    assert parse("a" * 1000)
    for condition in ("#(" + " " * 500_000, "9" * 5000):
        with pytest.raises(ValueError, match="a path such as"):
            parse(condition)


def test_no_condition_holds_for_a_body_that_is_no_json() -> None:
    assert not holds(parse("[@this]"), None)


@pytest.mark.parametrize(
    "condition",
    ["", ".", "a.", ".a", "a..b", "@this", "a|b", "a.#", "a.#()", "a.#(b==1)#", "a.*", "{a,b}", "a.#(b.#(c==1))",
     "[@this]x", "[@this].", "a.#(b==)", "a.#(b==~true)", "a\\.b", 'a.#(b=="x)', "a.#[b==1]", 'a.#(b=="\\x")', "a b"],
)  # fmt: skip
def test_other_syntax_is_no_condition(condition: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(condition)

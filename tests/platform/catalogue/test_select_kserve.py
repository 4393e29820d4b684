"""KServe's choice of a runtime: format and version, protocol, priority, and what a named runtime must meet."""

import pytest
from tests.platform.catalogue.catalogue_cases import catalogue, kserve, line, runtime

from pilotlight.catalogue.runtime_selection import Selection, select_runtime
from pilotlight.spec.service import ModelSpec, NodeGroup, Runtime, Service


def server(name: str, *versions: str, priority: int = 0, auto: bool = True, **fields: object) -> Runtime:
    lines = [line("sklearn", version=version, priority=priority, auto_select=auto) for version in versions or ("1",)]
    return runtime(name, *lines, group="kserve", **fields)


def chosen(service: Service, *runtimes: Runtime) -> Selection:
    return select_runtime(service, service.components["predictor"], catalogue(*runtimes))


def name(selection: Selection) -> str:
    return selection.runtime.name if selection.runtime else ""


@pytest.mark.parametrize(
    ("asked", "offered", "fits"),
    [("", ("1",), True), ("1", ("0", "1"), True), ("2", ("1",), False), ("1", ("",), False)],
)
def test_a_version_is_compared_only_where_the_model_names_one(asked: str, offered: tuple[str, ...], fits: bool) -> None:
    selection = chosen(kserve(ModelSpec("sklearn", asked)), server("r", *offered))
    assert (name(selection) == "r") is fits


@pytest.mark.parametrize(
    ("protocol", "spoken", "fits"),
    [
        ("", ("v1", "v2"), True),
        ("", ("v2",), False),
        ("v2", ("v2",), True),
        ("grpc-v2", ("v2",), False),
        ("v2", (), True),
    ],
)
def test_the_protocol_is_v1_unless_the_service_says(protocol: str, spoken: tuple[str, ...], fits: bool) -> None:
    selection = chosen(kserve(ModelSpec("sklearn", protocol=protocol)), server("r", protocols=spoken))
    assert (name(selection) == "r") is fits
    if not fits:
        assert selection.candidates[0].reason == f"protocol {protocol or 'v1'} is required, the runtime supports v2"


def test_the_highest_priority_wins_and_none_is_the_lowest() -> None:
    ranked = [server("none"), server("low", priority=1), server("high", priority=2)]
    assert [c.runtime.name for c in chosen(kserve(), *ranked).candidates] == ["high", "low", "none"]


def test_of_equals_the_one_that_speaks_v1_then_the_first_name_wins() -> None:
    asked = kserve(ModelSpec("sklearn", protocol="v2"))
    ranked = [server("a", protocols=("v2",)), server("z", protocols=("v1", "v2")), server("b", protocols=("v2",))]
    assert [c.runtime.name for c in chosen(asked, *ranked).candidates] == ["z", "a", "b"]


def test_the_namespaces_own_goes_before_any_priority() -> None:
    assert name(chosen(kserve(), server("best", priority=9), server("own", namespace="team"))) == "own"


def test_runtimes_for_modelmesh_and_for_several_nodes_are_not_chosen_unasked() -> None:
    mesh, nodes = server("mesh", multi_model=True), server("nodes", workers={"containers": []})
    assert chosen(kserve(), mesh, nodes).runtime is None
    assert name(chosen(kserve(worker=NodeGroup(size=1)), server("one"), server("n", workers={"size": 1}))) == "n"


def test_runtimes_of_the_other_group_are_not_looked_at() -> None:
    assert chosen(kserve(), runtime("ome", line("sklearn"))).candidates == ()


def test_a_named_runtime_needs_no_auto_select_and_no_protocol() -> None:
    asked = kserve(ModelSpec("sklearn", runtime="manual"))
    selection = chosen(asked, server("manual", auto=False, protocols=("v2",)), server("auto"))
    assert (name(selection), selection.problems) == ("manual", ())
    assert selection.reason == "set in spec.predictor.model.runtime"


def test_every_misfit_of_a_named_runtime_is_a_problem_with_its_place() -> None:
    asked = kserve(ModelSpec("xgboost", runtime="r", protocol="grpc-v2"))
    told = [str(problem) for problem in chosen(asked, server("r", protocols=("v1",), disabled=True)).problems]
    assert told == [
        "s.yaml:9:16: error PL221: spec.predictor.model.runtime: runtime r is disabled; choose another or enable it",
        "s.yaml:7:9: error PL222: spec.predictor.model.modelFormat: runtime r does not fit: "
        "the model has format xgboost, the runtime supports sklearn",
        "s.yaml:10:24: error PL223: spec.predictor.model.protocolVersion: runtime r does not fit: "
        "protocol grpc-v2 is required, the runtime supports v1",
    ]


def test_an_unknown_runtime_is_named_with_its_place_and_a_suggestion() -> None:
    (problem,) = chosen(kserve(ModelSpec("sklearn", runtime="kserve-sklearn")), server("kserve-sklearnserver")).problems
    assert problem.code == "PL220"
    assert problem.message.startswith("unknown runtime kserve-sklearn; did you mean kserve-sklearnserver? Else")


def test_a_named_runtime_of_the_namespace_hides_the_clusters() -> None:
    selection = chosen(kserve(ModelSpec("sklearn", runtime="r")), server("r"), server("r", namespace="team"))
    assert selection.runtime is not None
    assert selection.runtime.namespace == "team"

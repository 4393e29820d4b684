from typing import Any

import pytest
from tests.platform.plan.building import (
    RANKED,
    annotated,
    codes,
    in_mode,
    kserve,
    ome,
    planned,
    reason,
    refusals,
    with_component,
)

from pilotlight.plan.types import Capabilities
from pilotlight.spec.service import NodeGroup, Service

WORKERS: dict[str, Any] = {"worker": NodeGroup(size=1, runner=RANKED), "leader": NodeGroup()}
RAW_DEFAULT = Capabilities(default_mode="raw")

DECIDED = [
    (ome(), "raw", "engine.minReplicas = 1"),
    (ome(min_replicas=2), "raw", "engine.minReplicas = 2"),
    (ome(min_replicas=0), "serverless", "engine.minReplicas = 0"),
    (ome(min_replicas=0, **WORKERS), "multi-node", "engine.worker is set"),
    (in_mode(ome(min_replicas=0), "RawDeployment"), "raw", "ome.io/deploymentMode = RawDeployment"),
    (in_mode(ome(), "Serverless"), "serverless", "ome.io/deploymentMode = Serverless"),
    (in_mode(ome(**WORKERS), "RawDeployment"), "raw", "ome.io/deploymentMode = RawDeployment"),
    (in_mode(ome(), "Stateful"), "stateful", "ome.io/deploymentMode = Stateful"),
    (annotated(ome(), **{"ome.io/deploymentMode": "VirtualDeployment"}), "virtual", "VirtualDeployment"),
    (with_component(with_component(ome(), "decoder"), "router"), "raw", "engine.minReplicas = 1"),
    (
        with_component(with_component(ome(min_replicas=0), "decoder"), "router"),
        "raw",
        "an engine with a decoder is never serverless",
    ),
    (kserve(), "serverless", "default mode"),
    (in_mode(kserve(), "Standard"), "raw", "serving.kserve.io/deploymentMode = Standard"),
    (in_mode(kserve(), "RawDeployment"), "raw", "serving.kserve.io/deploymentMode = RawDeployment"),
    (in_mode(kserve(), "Knative"), "serverless", "serving.kserve.io/deploymentMode = Knative"),
    (in_mode(kserve(min_replicas=0), "Standard"), "raw", "serving.kserve.io/deploymentMode = Standard"),
]


@pytest.mark.parametrize(("service", "mode", "why"), DECIDED)
def test_the_mode_follows_the_rules_of_the_document_s_project_and_says_which(
    service: Service, mode: str, why: str
) -> None:
    main = "engine" if service.group == "ome" else "predictor"
    value, because = reason(planned(service), f"{main}: mode")
    assert (value, why in because) == (mode, True), because


def test_a_kserve_document_without_annotation_takes_the_default_of_the_cluster() -> None:
    assert planned(kserve(), RAW_DEFAULT).mode == "raw"


def test_engine_and_decoder_make_a_disaggregated_service_of_deployments_or_groups() -> None:
    made = planned(with_component(with_component(ome(), "decoder", **WORKERS), "router"))
    assert made.mode == "disaggregated"
    assert {work.role: work.mode for work in made.workloads} == {
        "engine": "raw",
        "decoder": "multi-node",
        "router": "raw",
    }
    assert made.entry == "iris-router"


def test_a_router_at_minimum_0_is_serverless_beside_a_raw_engine() -> None:
    made = planned(with_component(ome(), "router", min_replicas=0))
    assert {work.role: work.mode for work in made.workloads} == {"engine": "raw", "router": "serverless"}


def test_a_virtual_service_has_no_objects() -> None:
    made = planned(annotated(ome(), **{"ome.io/deploymentMode": "VirtualDeployment"}))
    assert (made.workloads, made.entry, made.mode) == ((), "", "virtual")


def test_a_stopped_service_has_no_objects() -> None:
    assert not planned(annotated(kserve(), **{"serving.kserve.io/stop": "true"})).workloads


def test_the_annotation_that_ome_writes_and_ignores_is_warned_about() -> None:
    made = planned(annotated(ome(min_replicas=0), **{"ome.io/deploymentMode": "RawDeployment"}))
    assert made.mode == "serverless"
    assert codes(made.warnings) == ["PL302"]


REFUSED: list[tuple[Service, str, Any]] = [
    (in_mode(ome(), "Knativ"), "PL301", "spec.engine.annotations.ome.io/deploymentMode"),
    (in_mode(kserve(), "ModelMesh"), "PL301", "metadata.annotations.serving.kserve.io/deploymentMode"),
    (in_mode(ome(**WORKERS), "Serverless"), "PL303", "spec.engine.annotations.ome.io/deploymentMode"),
]


@pytest.mark.parametrize(("service", "code", "path"), REFUSED)
def test_a_mode_that_cannot_be_is_refused_with_its_place(service: Service, code: str, path: str) -> None:
    assert (code, path) in [(problem.code, problem.path) for problem in refusals(service)]


def test_a_mode_that_the_target_cannot_run_is_refused() -> None:
    assert codes(refusals(ome(min_replicas=0), capabilities=Capabilities(knative=False))) == ["PL304"]
    assert codes(refusals(ome(**WORKERS), capabilities=Capabilities(leader_worker_set=False))) == ["PL304"]


def test_a_problem_carries_the_nearest_place_in_the_document() -> None:
    problem = refusals(in_mode(ome(), "Knativ"))[0]
    assert str(problem).startswith("service.yaml:7:3: error PL301: spec.engine.annotations")

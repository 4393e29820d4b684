"""Whole documents with the built-in catalogue, and any service at all: a plan, or problems that can be found."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.platform.plan.building import CATALOGUE, FOREIGN, OURS, annotated, in_mode, kserve, ome, planned

from pilotlight.catalogue.catalogue import builtin
from pilotlight.plan import plan
from pilotlight.plan.types import Capabilities, Plan
from pilotlight.spec.load_documents import load
from pilotlight.spec.problems import InvalidDocument
from pilotlight.spec.service import Component, KedaConfig, NodeGroup, Service

# The guide's examples of OME, one per mode and best practice.
GUIDE = {
    "raw": """
      model: {name: llama-3-70b-instruct}
      engine: {minReplicas: 2, maxReplicas: 10}
    """,
    "serverless": """
      model: {name: llama-3-70b-instruct}
      engine: {minReplicas: 0, maxReplicas: 10, scaleTarget: 10}
    """,
    "multi-node": """
      model: {name: deepseek-r1}
      engine: {minReplicas: 1, maxReplicas: 2, worker: {size: 1}}
    """,
    "disaggregated": """
      model: {name: deepseek-r1}
      router: {minReplicas: 1, maxReplicas: 3}
      engine: {minReplicas: 1, maxReplicas: 3}
      decoder: {minReplicas: 2, maxReplicas: 8}
    """,
}


def read(tmp_path: Path, spec: str) -> Service:
    file = tmp_path / "service.yaml"
    file.write_text(
        f"apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata: {{name: llama-chat}}\nspec:{spec.rstrip()}\n"
    )
    loaded = load([str(file)])
    assert not loaded.problems.errors
    return loaded.services[0]


@pytest.mark.parametrize("mode", GUIDE)
def test_the_guide_s_documents_run_in_the_modes_that_it_names(tmp_path: Path, mode: str) -> None:
    made = plan(read(tmp_path, GUIDE[mode]), builtin())
    assert made.mode == mode
    known = ("PL350", "PL351", *(["PL380"] if mode == "disaggregated" else ()))  # which GPUs it gets is not said
    assert not [warning for warning in made.warnings if warning.code not in known]


def test_the_guide_s_latency_example_is_scaled_by_it(tmp_path: Path) -> None:
    service = read(
        tmp_path,
        """
      model: {name: llama-3-70b-instruct}
      engine:
        minReplicas: 1
      kedaConfig:
        enableKeda: true
        customPromQuery: "avg_over_time(vllm:request_latency_seconds{service='%s'}[5m])"
        scalingThreshold: "0.5"
    """,
    )
    (trigger,) = plan(service, builtin()).workloads[0].scaling.triggers
    assert (trigger.type, trigger.metric_type) == ("prometheus", "Value")
    assert "service='llama-chat'" in trigger.metadata["query"]


def test_a_plan_depends_on_nothing_but_its_input() -> None:
    assert planned(ome("big", keda=KedaConfig(enabled=True))) == planned(ome("big", keda=KedaConfig(enabled=True)))


nasty = st.sampled_from(['"', "'", "\n", "{{ x }}", "$(PATH)", "%s", "é", "a: b", "", "# c", "\x00"])
texts = st.one_of(nasty, st.text(max_size=8))
strings = st.dictionaries(st.sampled_from(["a", "b/c", "team"]), texts, max_size=2)
counts = st.one_of(st.none(), st.integers(0, 9))
containers = st.fixed_dictionaries(
    {},
    optional={
        "image": texts,
        "args": st.lists(texts, max_size=2),
        "env": st.lists(st.fixed_dictionaries({"name": st.sampled_from("AB"), "value": texts}), max_size=2),
        "resources": st.sampled_from([{}, {"requests": {"nvidia.com/gpu": "1"}}, {"limits": {"memory": "1Gi"}}]),
        "ports": st.sampled_from([[], [{"containerPort": 9000}]]),
    },
)
pods = st.fixed_dictionaries(
    {}, optional={"nodeSelector": strings, "tolerations": st.just([{"operator": "Exists"}]), "hostname": texts}
)
components: dict[str, Any] = {
    "pod": pods,
    "runner": st.one_of(st.none(), containers),
    "worker": st.one_of(st.none(), st.builds(NodeGroup, size=st.integers(0, 3))),
    "min_replicas": counts,
    "max_replicas": counts,
    "scale_target": counts,
    "scale_metric": st.sampled_from([None, "cpu", "memory", "concurrency", "rps"]),
    "container_concurrency": counts,
    "timeout_seconds": counts,
    "canary_traffic_percent": counts,
    "labels": strings,
    "annotations": strings,
    "min_available": counts,
    "keda": st.one_of(st.none(), st.builds(KedaConfig, enabled=st.booleans(), query=texts, threshold=texts)),
}
engines = st.builds(Component, role=st.just("engine"), **components)
predictors = st.builds(
    Component, role=st.just("predictor"), model=st.just(kserve().components["predictor"].model), **components
)
routers = st.builds(Component, role=st.just("router"), config=strings, **components)
modes = st.sampled_from(["", "RawDeployment", "Serverless", "MultiNode", "Stateful", "Nonsense"])


@st.composite
def services(draw: st.DrawFn) -> Service:
    if draw(st.booleans()):
        service = replace(kserve(), components={"predictor": draw(predictors)})
    else:
        parts: dict[Any, Component] = {"engine": draw(engines)}
        if draw(st.booleans()):
            parts["router"] = draw(routers)
        base = ome(draw(st.sampled_from(["small", "big", "onnode", "claim"])), draw(st.sampled_from([OURS, FOREIGN])))
        service = replace(base, components=parts)
    mode = draw(modes)
    return annotated(in_mode(service, mode) if mode else service, **draw(strings))


def check(made: Plan) -> None:
    assert made.entry in {work.name for work in made.workloads} or not made.workloads
    for work in made.workloads:
        assert json.loads(json.dumps(work.template)) == work.template, "a template is plain JSON"
        assert work.template["spec"]["containers"][0]["name"]
        assert (work.replicas is None) == (work.scaling.scaler != "none")
        assert work.scaling.min_replicas <= max(work.scaling.max_replicas, work.scaling.min_replicas)
        assert work.progress_deadline_seconds >= 60
        volumes = {volume["name"] for volume in work.template["spec"].get("volumes", ())}
        mounts = {mount["name"] for mount in work.template["spec"]["containers"][0].get("volumeMounts", ())}
        assert mounts <= volumes
        shares = [share.percent for share in work.traffic]
        assert not shares or sum(shares) == 100


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(services(), st.booleans(), st.sampled_from([None, 0, 8]))
def test_any_service_is_planned_or_refused_with_problems_that_have_a_path(
    service: Service, gateway: bool, gpus: int | None
) -> None:
    try:
        made = plan(service, CATALOGUE, Capabilities(our_gateway=gateway, gpus=gpus))
    except InvalidDocument as refused:
        unplaced = [problem for problem in refused.problems if not problem.path or not problem.code.startswith("PL")]
        errors = [problem for problem in refused.problems if problem.severity == "error"]
        if unplaced or not errors:
            raise
        return
    check(made)

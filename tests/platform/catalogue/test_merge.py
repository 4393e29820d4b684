"""A runtime's pod under a component's: which word holds, for each project."""

from typing import Any

import pytest
from tests.platform.catalogue.catalogue_cases import runtime

from pilotlight.catalogue.runtime_merge import (
    group_size,
    merge_component,
    merge_group,
    strategic_merge,
    with_runtime_defaults,
)
from pilotlight.spec.service import Component, ModelSpec, NodeGroup

RUNNER: dict[str, Any] = {
    "name": "ome-container",
    "image": "engine:1",
    "command": ["serve"],
    "args": ["--a"],
    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "4"}},
}


def test_a_components_runner_is_merged_into_the_runtimes() -> None:
    rt = runtime("r", engine={"runner": RUNNER, "tolerations": [{"key": "gpu"}], "nodeSelector": {"a": "1"}})
    runner = {
        "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "resources": {"limits": {"memory": "8Gi"}},
    }
    pod, container = merge_component(rt, Component("engine", pod={"nodeSelector": {"b": "2"}}, runner=runner))
    assert container["image"] == "engine:1"
    assert container["env"] == [{"name": n, "value": v} for n, v in (("A", "1"), ("B", "3"), ("C", "4"))]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1", "memory": "8Gi"}, "requests": {"cpu": "4"}}
    assert pod == {"tolerations": [{"key": "gpu"}], "nodeSelector": {"a": "1", "b": "2"}}


def test_ome_replaces_arguments_and_kserve_adds_them() -> None:
    _, container = merge_component(
        runtime("r", engine={"runner": RUNNER}), Component("engine", runner={"args": ["--b"]})
    )
    assert container["args"] == ["--b"]
    pod = {"containers": [{"name": "kserve-container", "image": "i", "args": ["--a"]}]}
    kserve = Component("predictor", model=ModelSpec("sklearn", container={"args": ["--b"], "command": ["x"]}))
    _, container = merge_component(runtime("r", group="kserve", pod=pod), kserve)
    assert (container["args"], container["command"]) == (["--a", "--b"], ["x"])


def test_sidecars_stay_in_the_pod_and_the_main_container_is_apart() -> None:
    pod = {"containers": [{"name": "log", "image": "l"}, {"name": "kserve-container", "image": "i"}]}
    component = Component(
        "predictor",
        model=ModelSpec("sklearn"),
        pod={"containers": [{"name": "log", "args": ["-v"]}, {"name": "extra"}]},
    )
    merged = merge_component(runtime("r", group="kserve", pod=pod), component)
    assert merged.container == {"name": "kserve-container", "image": "i"}
    assert merged.pod["containers"] == [{"name": "log", "image": "l", "args": ["-v"]}, {"name": "extra"}]


def test_a_container_of_the_main_ones_name_means_the_main_one() -> None:
    component = Component("engine", pod={"containers": [{"name": "ome-container", "image": "mine"}]})
    pod, container = merge_component(runtime("r", engine={"runner": RUNNER}), component)
    assert (container["image"], pod) == ("mine", {"containers": []})


def test_another_source_takes_the_place_of_the_first_instead_of_joining_it() -> None:
    base = {"env": [{"name": "A", "value": "1"}], "readinessProbe": {"httpGet": {"port": 1}, "periodSeconds": 5}}
    over = {"env": [{"name": "A", "valueFrom": {"x": 1}}], "readinessProbe": {"exec": {"command": ["true"]}}}
    assert strategic_merge(base, over) == {
        "env": [{"name": "A", "valueFrom": {"x": 1}}],
        "readinessProbe": {"periodSeconds": 5, "exec": {"command": ["true"]}},
    }
    volumes = strategic_merge(
        {"volumes": [{"name": "d", "emptyDir": {}}]}, {"volumes": [{"name": "d", "hostPath": {}}]}
    )
    assert volumes == {"volumes": [{"name": "d", "hostPath": {}}]}


def test_lists_without_a_key_are_replaced_and_inputs_stay_as_they_were() -> None:
    base = {"tolerations": [{"key": "a"}], "nodeSelector": {"x": "1"}}
    assert strategic_merge(base, {"tolerations": [{"key": "b"}]})["tolerations"] == [{"key": "b"}]
    assert base == {"tolerations": [{"key": "a"}], "nodeSelector": {"x": "1"}}


def test_a_component_without_a_runtime_is_its_own_container() -> None:
    custom = Component("predictor", pod={"containers": [{"image": "mine"}], "serviceAccountName": "sa"})
    pod, container = merge_component(None, custom)
    assert (container, pod) == ({"name": "kserve-container", "image": "mine"}, {"serviceAccountName": "sa"})


def test_an_older_ome_runtime_brings_its_containers_itself() -> None:
    old = runtime("r", pod={"containers": [RUNNER], "volumes": [{"name": "v"}]})
    pod, container = merge_component(old, Component("engine", runner={"image": "engine:2"}))
    assert (container["image"], pod) == ("engine:2", {"volumes": [{"name": "v"}]})


def test_a_worker_without_a_container_runs_the_leaders() -> None:
    rt = runtime("r", engine={"leader": {"runner": RUNNER, "hostIPC": True}, "worker": {"size": 3}})
    component = Component("engine", leader=NodeGroup(runner={"image": "lead"}), worker=NodeGroup(size=1))
    assert merge_group(rt, component, "leader").container["image"] == "lead"
    assert merge_group(rt, component, "leader").pod == {"hostIPC": True}
    assert merge_group(rt, component, "worker").container["image"] == "lead"
    assert (group_size(rt, component), group_size(rt, Component("engine"))) == (1, 3)


def test_a_component_for_one_node_can_be_asked_to_run_on_several() -> None:
    rt = runtime("r", engine={"runner": RUNNER, "nodeSelector": {"a": "1"}})
    component = Component("engine", worker=NodeGroup(size=1, pod={"nodeSelector": {"b": "2"}}))
    assert merge_group(rt, component, "worker").container["image"] == "engine:1"
    assert merge_group(rt, component, "worker").pod["nodeSelector"] == {"a": "1", "b": "2"}


def test_kserves_workers_are_merged_by_their_own_name() -> None:
    worker = {"containers": [{"name": "worker-container", "image": "w", "args": ["-a"]}], "pipelineParallelSize": 3}
    rt = runtime("r", group="kserve", workers=worker)
    own = NodeGroup(pod={"containers": [{"name": "worker-container", "args": ["-b"]}]})
    component = Component("predictor", model=ModelSpec("huggingface"), worker=own)
    assert merge_group(rt, component, "worker").container == {
        "name": "worker-container",
        "image": "w",
        "args": ["-a", "-b"],
    }
    assert group_size(rt, component) == 2


def test_the_runtimes_word_on_scaling_holds_where_the_component_is_silent() -> None:
    rt = runtime(
        "r", engine={"minReplicas": 2, "maxReplicas": 5, "labels": {"a": "1", "b": "1"}, "leader": {}, "worker": {}}
    )
    component = with_runtime_defaults(rt, Component("engine", min_replicas=0, labels={"b": "2"}))
    assert (component.min_replicas, component.max_replicas) == (0, 5)
    assert component.labels == {"a": "1", "b": "2"}
    assert component.worker == NodeGroup(size=1)


@pytest.mark.parametrize(
    ("own", "requests", "limits"),
    [
        ({"requests": {"nvidia.com/gpu": "2"}}, ("4", "8Gi", "2"), ("4", "16Gi", "2")),
        ({"limits": {"nvidia.com/gpu": "4"}}, ("4", "8Gi", "4"), ("4", "16Gi", "4")),
        ({"limits": {"cpu": "500m", "memory": "4Gi"}}, ("500m", "4Gi", "1"), ("500m", "4Gi", "1")),
        ({"requests": {"memory": "32Gi"}}, ("4", "32Gi", "1"), ("4", "32Gi", "1")),
        ({"requests": {"cpu": "1"}}, ("1", "8Gi", "1"), ("4", "16Gi", "1")),
    ],
)
def test_a_request_never_ends_above_its_limit(
    own: dict[str, Any], requests: tuple[str, ...], limits: tuple[str, ...]
) -> None:
    names = ("cpu", "memory", "nvidia.com/gpu")
    base = {"requests": dict(zip(names, ("4", "8Gi", "1"), strict=True))}
    base["limits"] = dict(zip(names, ("4", "16Gi", "1"), strict=True))
    rt = runtime("r", engine={"runner": {"image": "i", "resources": base}})
    resources = merge_component(rt, Component("engine", runner={"resources": own})).container["resources"]
    assert tuple(resources["requests"][name] for name in names) == requests
    assert tuple(resources["limits"][name] for name in names) == limits

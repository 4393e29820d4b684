import re
from dataclasses import replace
from pathlib import Path

from tests.platform.plan.building import annotated, codes, in_mode, keda, kserve, ome, planned, raw

from pilotlight.plan.types import Capabilities
from pilotlight.spec.problems import code_texts
from pilotlight.spec.service import NodeGroup, Service

PLAN = Path(__file__).parents[3] / "platform" / "pilotlight" / "plan"


def needs(service: Service, kind: str) -> set[str]:
    return {need.name for need in planned(service).requirements if need.kind == kind}


def test_each_mode_names_the_crds_of_its_objects() -> None:
    assert "services.serving.knative.dev" in needs(ome(min_replicas=0), "crd")
    assert "scaledobjects.keda.sh" in needs(ome(keda=keda()), "crd")
    assert "leaderworkersets.leaderworkerset.x-k8s.io" in needs(ome(worker=NodeGroup(size=1)), "crd")
    ray = in_mode(ome(worker=NodeGroup(size=1)), "MultiNodeRayVLLM")
    assert "rayclusters.ray.io" in needs(ray, "crd")
    hidden = replace(ome(), labels={"networking.knative.dev/visibility": "cluster-local"})
    assert needs(ome(), "crd") - needs(hidden, "crd") == {"httproutes.gateway.networking.k8s.io"}


def test_credentials_that_a_trigger_refers_to_are_a_need_by_name() -> None:
    credentials = {"name": "prom", "kind": "ClusterTriggerAuthentication"}
    config = keda(query="sum(x)", threshold="2", authentication=credentials)
    (need,) = [need for need in planned(ome(keda=config)).requirements if need.name.startswith("cluster")]
    assert (need.kind, need.name) == ("crd", "clustertriggerauthentications.keda.sh")
    assert "ClusterTriggerAuthentication prom" in need.reason


def test_what_is_scraped_needs_the_kinds_of_the_prometheus_operator() -> None:
    monitoring = {f"{kind}.monitoring.coreos.com" for kind in ("servicemonitors", "podmonitors", "prometheusrules")}
    assert needs(ome(), "crd") & monitoring == monitoring - {"podmonitors.monitoring.coreos.com"}
    assert needs(ome(min_replicas=0), "crd") & monitoring == monitoring - {"servicemonitors.monitoring.coreos.com"}
    silent = annotated(ome(), **{"ome.io/enable-prometheus-scraping": "false"})
    assert not needs(silent, "crd") & monitoring


def test_a_route_into_another_namespace_needs_its_consent() -> None:
    grant = "referencegrants.gateway.networking.k8s.io"
    assert grant in needs(raw(ome(min_replicas=0)), "crd")
    assert grant not in needs(ome(), "crd")


def test_pod_fields_that_knative_locks_away_name_their_flag() -> None:
    pod = {
        "nodeSelector": {"a": "b"}, "tolerations": [{}], "affinity": {"nodeAffinity": {}}, "runtimeClassName": "nvidia",
        "volumes": [{"name": "c", "csi": {}}],
    }  # fmt: skip
    assert needs(ome(min_replicas=0, pod=pod), "feature") == {
        f"kubernetes.podspec-{flag}"
        for flag in ("nodeselector", "tolerations", "affinity", "runtimeclassname", "volumes-csi")
    }
    assert not needs(ome(pod=pod), "feature")


def test_a_probe_of_a_container_that_is_not_asked_names_its_flag() -> None:
    sidecar = {"name": "side", "image": "s:1", "readinessProbe": {"exec": {"command": ["true"]}}}
    assert needs(ome(min_replicas=0, pod={"containers": [sidecar]}), "feature") == {"multi-container-probing"}


def test_our_own_serverless_pods_need_no_flag_at_all() -> None:
    assert not needs(ome(min_replicas=0), "feature")
    assert not needs(kserve(), "feature")


def test_a_timeout_above_knative_s_limit_is_a_need() -> None:
    assert needs(ome(min_replicas=0, timeout_seconds=900), "feature") == {
        "config-defaults max-revision-timeout-seconds >= 900"
    }


def test_an_image_volume_needs_a_kubernetes_that_mounts_folders_of_it() -> None:
    assert "Kubernetes >= 1.33" in needs(kserve(uri="oci://registry/model:1"), "version")


def test_a_flag_that_the_target_has_not_switched_on_is_warned_about() -> None:
    service = ome(min_replicas=0, pod={"nodeSelector": {"a": "b"}})
    assert "PL355" in codes(planned(service, Capabilities(features=frozenset({"other"}))).warnings)
    on = Capabilities(features=frozenset({"kubernetes.podspec-nodeselector"}))
    assert not planned(service, on).warnings


def test_every_code_of_the_plan_is_listed_and_every_listed_one_is_used() -> None:
    files = [*PLAN.rglob("*.py"), *PLAN.rglob("*.yaml"), *PLAN.with_name("release").rglob("*.py")]
    used = {code for file in files for code in re.findall(r"PL3\d\d", file.read_text())}
    assert used == {code for code in code_texts() if code.startswith("PL3")}

"""The gateway of the platform chart: what it may read is what it watches, and where documents expect it it is."""

from typing import Any

from tests.helm.conftest import Release

from pilotlight.contract import GATEWAY_PORT
from pilotlight.gateway.cluster.cluster_routes import KNATIVE_ROUTES, ROUTES, SERVICES, SLICES, WORKLOADS
from pilotlight.gateway.cluster.settings import read
from pilotlight.plan.types import Capabilities

POD = {"POD_NAMESPACE": "pilotlight-system", "POD_NAME": "g", "POD_IP": "10.0.0.1", "KUBERNETES_SERVICE_HOST": "k"}


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    pod = named(objects, "Deployment", "pilotlight-gateway")["spec"]["template"]["spec"]
    return dict(pod["containers"][0])


def test_it_may_watch_what_it_watches_and_nothing_else(release: Release) -> None:
    role = named(release("inference-platform"), "ClusterRole", "default-pilotlight-gateway")
    allowed = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    watched = [path.split("/") for path in (SERVICES, SLICES, ROUTES, KNATIVE_ROUTES, *WORKLOADS)]
    places = {("" if path[1] == "api" else path[2], path[-1]) for path in watched}
    assert allowed == {(*place, verb) for place in places for verb in ("list", "watch")}


def test_documents_are_planned_for_the_service_that_it_makes(release: Release) -> None:
    found = named(release("inference-platform"), "Service", "pilotlight-gateway")
    ports = {port["name"]: port["port"] for port in found["spec"]["ports"]}
    assert ports["http"] == GATEWAY_PORT
    assert Capabilities().gateway_scaler == f"pilotlight-gateway.pilotlight-system.svc:{ports['scaler']}"


def test_its_ports_are_those_that_the_process_listens_on(release: Release) -> None:
    given = container(release("inference-platform", gateway={"terminationGracePeriodSeconds": 120}))
    settings = read(POD | {each["name"]: each["value"] for each in given["env"] if "value" in each})
    ports = {port["name"]: port["containerPort"] for port in given["ports"]}
    assert ports == {
        "http": settings.http_port, "status": settings.status_port, "peers": settings.peer_port,
        "scaler": settings.scaler_port,
    }  # fmt: skip
    assert (settings.service, settings.peers) == ("pilotlight-gateway", "pilotlight-gateway-peers")
    assert settings.drain_s < 120


def test_it_knows_its_own_memory_limit(release: Release) -> None:
    given = {each["name"]: each for each in container(release("inference-platform"))["env"]}
    known = given["PILOTLIGHT_GATEWAY_MEMORY_MIB"]["valueFrom"]["resourceFieldRef"]
    assert known == {"resource": "limits.memory", "divisor": "1Mi"}


def test_only_its_own_pods_tell_it_counts(release: Release) -> None:
    objects = release("inference-platform")
    policy = named(objects, "NetworkPolicy", "pilotlight-gateway")["spec"]
    (guarded,) = [rule for rule in policy["ingress"] if "peers" in str(rule["ports"])]
    assert [port["port"] for port in guarded["ports"]] == ["peers"]
    labels = named(objects, "Deployment", "pilotlight-gateway")["spec"]["template"]["metadata"]["labels"]
    assert guarded["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()


def test_only_pods_of_kedas_namespace_ask_its_scaler(release: Release) -> None:
    for gateway, namespace in (({}, "keda"), ({"kedaNamespace": "kube-system"}, "kube-system")):
        policy = named(release("inference-platform", gateway=gateway), "NetworkPolicy", "pilotlight-gateway")["spec"]
        (guarded,) = [rule for rule in policy["ingress"] if "scaler" in str(rule["ports"])]
        selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        assert guarded == {"ports": [{"protocol": "TCP", "port": "scaler"}], "from": [{"namespaceSelector": selector}]}
    objects = release("inference-platform", gateway={"kedaNamespace": ""})
    policy = named(objects, "NetworkPolicy", "pilotlight-gateway")["spec"]
    assert [rule for rule in policy["ingress"] if "scaler" in str(rule["ports"]) and "from" not in rule]


def test_gateways_with_long_names_have_a_role_each(release: Release) -> None:
    for name in (f"{'g' * 60}-{each}" for each in "ab"):
        objects = release("inference-platform", gateway={"name": name})
        binding = named(objects, "ClusterRoleBinding", f"default-{name}")
        assert binding["roleRef"]["name"] == named(objects, "ClusterRole", f"default-{name}")["metadata"]["name"]


def test_it_can_be_left_out(release: Release) -> None:
    objects = release("inference-platform", gateway={"enabled": False})
    assert not [each for each in objects if "gateway" in each["metadata"]["name"]]

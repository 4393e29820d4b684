"""The control API of the platform chart: off unless asked for, with the rights it needs and a restricted pod."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.helm.conftest import Release
from tests.judges.helm import HelmFailed
from tests.judges.verdict import assert_valid
from tests.platform.microservices.jobs.test_on_kubernetes import job
from tests.platform.microservices.jobs.test_on_kubernetes import objects as objects_of

from pilotlight.targets.kubernetes.releases import API as RELEASE
from platformctl.commands.platform.api import api

ON = {"enabled": True, "namespaces": ["acme"]}
# What a microservice consists of, its own Secret, and its releases.
KINDS = {*((each["apiVersion"], each["kind"]) for each in objects_of(job())), ("v1", "Secret"), RELEASE}


def of_api(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [
        each
        for each in objects
        if each["kind"] == kind and each["metadata"]["labels"].get("app.kubernetes.io/component") == "api"
    ]


def test_it_is_off_unless_asked_for(release: Release) -> None:
    assert not [each for each in release("inference-platform") if "api" in each["metadata"]["name"].split("-")]


def test_its_pod_is_restricted_and_its_flags_exist(release: Release) -> None:
    objects = release("inference-platform", api={**ON, "tlsSecret": "t", "tokenSecret": "s", "metricsSecret": "m"})
    (deployment,) = of_api(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert container["command"][:4] == ["python", "-m", "platformctl", "api"]
    known = {flag for option in api.params for flag in option.opts}
    used = [word.partition("=")[0] for word in [*container["command"], *container["args"]] if word.startswith("--")]
    assert set(used) <= known
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    files = [word.partition("=")[2] for word in container["args"]]
    assert all(any(file.startswith(f"{place}/") for place in mounted) for file in files)


def test_its_state_outlives_the_pod_and_the_release(release: Release) -> None:
    objects = release("inference-platform", api=ON)
    (claim,) = of_api(objects, "PersistentVolumeClaim")
    (deployment,) = of_api(objects, "Deployment")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    volumes = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (home,) = (Path(each["value"]) for each in container["env"] if each["name"] == "PILOTLIGHT_HOME")
    (state,) = (Path(each["mountPath"]) for each in container["volumeMounts"] if each["name"] == "state")
    assert state in home.parents, "a volume belongs to root; the home, which must not, is made in it"
    assert not of_api(release("inference-platform", api={**ON, "storage": {"enabled": False}}), claim["kind"])


def rights(objects: list[dict[str, Any]], role: str) -> set[tuple[str, str, str]]:
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", role)]
    return {
        (group, resource, verb)
        for rule in found["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_it_may_make_and_remove_what_a_microservice_consists_of(release: Release) -> None:
    objects = release("inference-platform", api=ON)
    bound = [each for each in of_api(objects, "RoleBinding") if each["metadata"]["namespace"] == "acme"]
    roles = {each["roleRef"]["name"] for each in bound}
    allowed = set().union(*(rights(objects, role) for role in roles))
    for version, kind in KINDS:
        group = version.partition("/")[0] if "/" in version else ""
        assert {(group, f"{kind.lower()}s", verb) for verb in ("create", "patch", "delete")} <= allowed
    assert ("", "secrets", "list") not in allowed
    assert not [each for each in of_api(objects, "ClusterRoleBinding") if "catalogue" not in each["roleRef"]["name"]]


def test_it_asks_where_it_may_work(release: Release) -> None:
    with pytest.raises(HelmFailed, match=r"api.namespaces is empty: name the namespaces .* or set api.everywhere=true"):
        release("inference-platform", api={"enabled": True})
    objects = release("inference-platform", api={**ON, "everywhere": True})
    assert {each["roleRef"]["name"] for each in of_api(objects, "ClusterRoleBinding")} == {
        "pilotlight-deployer", "default-pilotlight-api", "pilotlight-viewer-catalogue",
    }  # fmt: skip
    assert not of_api(objects, "RoleBinding")


def test_only_pods_of_its_namespace_and_of_named_ones_may_connect(release: Release) -> None:
    objects = release("inference-platform", api={**ON, "allowFrom": ["ingress"]})
    (policy,), (deployment,) = of_api(objects, "NetworkPolicy"), of_api(objects, "Deployment")
    assert_valid([policy])
    pods = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pods.items()
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": "api"}]
    assert rule["from"] == [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}},
    ]


def test_options_reach_microservices_by_the_names_of_the_platform(release: Release) -> None:
    objects = release("inference-platform", api={**ON, "options": {"volume_claim": "models", "cpu": 2}})
    (container,) = of_api(objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert given["PILOTLIGHT_API_OPTION_VOLUME_CLAIM"] == "models"
    assert given["PILOTLIGHT_API_OPTION_CPU"] == "2"


def test_the_command_tells_of_its_flags_without_loading_a_cluster() -> None:
    assert "--tls-cert" in CliRunner().invoke(api, ["--help"]).output

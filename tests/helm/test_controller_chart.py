"""The controller of the platform chart: off unless asked for, with the rights it needs and a restricted pod."""

from typing import Any

import pytest
from tests.helm.conftest import Release
from tests.judges.helm import HelmFailed
from tests.judges.verdict import assert_valid

from platformctl.commands.platform.controller import controller

CRDS = {"install": True}
ON = {"enabled": True, "namespaces": ["models"]}


def of_controller(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [
        each
        for each in objects
        if each["kind"] == kind and each["metadata"]["labels"].get("app.kubernetes.io/component") == "controller"
    ]


def test_it_is_off_unless_asked_for(release: Release) -> None:
    assert not [each for each in release("inference-platform") if "controller" in each["metadata"]["name"].split("-")]


def test_its_pod_is_restricted_and_its_flags_exist(release: Release) -> None:
    on = {
        **ON, "kinds": ["ome.io/InferenceService"], "foreignCRDs": True, "webhook": {"enabled": True},
        "hostTemplate": "{name}-{namespace}.{domain}",
    }  # fmt: skip
    objects = release("inference-platform", crds=CRDS, controller=on)
    (deployment,) = of_controller(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["command"] == ["python", "-m", "platformctl", "controller"]
    known = {flag for option in controller.params for flag in option.opts}
    assert {word.partition("=")[0] for word in container["args"]} <= known
    assert "--host-template={name}-{namespace}.{domain}" in container["args"]
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    files = [
        word.partition("=")[2] for word in container["args"] if word.startswith(("--webhook-cert", "--webhook-key"))
    ]
    assert all(any(file.startswith(f"{place}/") for place in mounted) for file in files)
    assert_valid(objects)


@pytest.mark.parametrize(
    ("crds", "on", "missing"),
    [({}, ON, "crds.install=true"), (CRDS, {"enabled": True}, "controller.namespaces is empty")],
)
def test_what_it_cannot_run_without_is_named(release: Release, crds: Any, on: Any, missing: str) -> None:
    with pytest.raises(HelmFailed, match=missing):
        release("inference-platform", crds=crds, controller=on)


def test_it_has_the_deployers_rights_in_its_namespaces_only(release: Release) -> None:
    objects = release("inference-platform", crds=CRDS, controller=ON)
    bound = [each for each in of_controller(objects, "RoleBinding") if each["roleRef"]["name"] == "pilotlight-deployer"]
    assert [each["metadata"]["namespace"] for each in bound] == ["models"]
    cluster_wide = {each["roleRef"]["name"] for each in of_controller(objects, "ClusterRoleBinding")}
    assert cluster_wide == {"pilotlight-viewer-catalogue", own_role(objects)}
    everywhere = release("inference-platform", crds=CRDS, controller={"enabled": True, "everywhere": True})
    roles = {each["roleRef"]["name"] for each in of_controller(everywhere, "ClusterRoleBinding")}
    assert "pilotlight-deployer" in roles


def own_role(objects: list[dict[str, Any]]) -> str:
    (role,) = of_controller(objects, "ClusterRole")
    assert role["rules"] == [
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
         "verbs": ["get", "list", "watch"]},
    ]  # fmt: skip
    return str(role["metadata"]["name"])


def test_the_webhook_reaches_its_service_with_the_authority_that_signed_it(release: Release) -> None:
    objects = release("inference-platform", crds=CRDS, controller={**ON, "webhook": {"enabled": True}})
    (configuration,) = of_controller(objects, "ValidatingWebhookConfiguration")
    (secret,) = of_controller(objects, "Secret")
    (service,) = of_controller(objects, "Service")
    (webhook,) = configuration["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]
    assert webhook["clientConfig"]["service"]["name"] == service["metadata"]["name"]
    assert webhook["clientConfig"]["service"]["path"] == "/validate"
    assert webhook["namespaceSelector"]["matchExpressions"][0]["values"] == ["models"]

"""The platform chart ships dashboards for Grafana's sidecar and rules for the Prometheus Operator."""

import json

import pytest
from tests.helm.conftest import Release
from tests.judges.helm import HelmFailed
from tests.judges.verdict import assert_valid
from tests.platform.observability.queries import BUDGET, CONTENTS, RULES

SLOW_START = "pilotlight:cold_start_bound:seconds"

OPERATOR = ("--api-versions", "monitoring.coreos.com/v1")


def test_each_dashboard_is_a_config_map_that_the_sidecar_finds(release: Release) -> None:
    found = [each for each in release("inference-platform", called="platform") if each["kind"] == "ConfigMap"]
    assert_valid(found)
    assert len(found) == len(CONTENTS)
    shipped = {name: json.loads(text) for each in found for name, text in each["data"].items()}
    assert shipped == {f"pilotlight-{name}.json": each for name, each in CONTENTS.items()}
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in found)
    assert all(each["metadata"]["annotations"] == {"grafana_folder": "Pilotlight"} for each in found)


def test_another_label_and_no_folder_for_another_sidecar(release: Release) -> None:
    objects = release("inference-platform", dashboards={"label": "dash", "labelValue": "yes", "folder": ""})
    found = [each["metadata"] for each in objects if each["kind"] == "ConfigMap"]
    assert all(each["labels"]["dash"] == "yes" and "annotations" not in each for each in found)


def test_rules_and_the_gateways_monitor_are_there_where_the_operator_is(release: Release) -> None:
    wanted = {"labels": {"release": "stack"}}
    objects = release("inference-platform", *OPERATOR, rules=wanted, monitors=wanted)
    (rule,) = [each for each in objects if each["kind"] == "PrometheusRule"]
    (monitor,) = [each for each in objects if each["kind"] == "PodMonitor"]
    assert_valid([rule, monitor])
    assert rule["spec"] == RULES
    assert rule["metadata"]["labels"]["release"] == monitor["metadata"]["labels"]["release"] == "stack"
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    pods = deployment["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pods.items()


def test_the_api_is_scraped_where_there_is_one(release: Release) -> None:
    for secret, scheme in (("", None), ("cert", "https")):
        api = {"enabled": True, "namespaces": ["acme"], "tlsSecret": secret, "metricsSecret": "scrapes"}
        objects = release("inference-platform", *OPERATOR, api=api)
        (monitor,) = [
            each for each in objects if each["metadata"]["name"] == "pilotlight-api" and "Pod" in each["kind"]
        ]
        assert_valid([monitor])
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["path"], endpoint.get("scheme")) == ("api", "/metrics", scheme)
        assert endpoint["authorization"] == {"credentials": {"name": "scrapes", "key": "token"}}
        (pods,) = [
            each["spec"]["template"]["metadata"]["labels"]
            for each in objects
            if each["kind"] == "Deployment" and each["metadata"]["name"] == "pilotlight-api"
        ]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pods.items()


def test_without_a_token_for_scrapes_the_api_has_no_monitor(release: Release) -> None:
    objects = release("inference-platform", *OPERATOR, api={"enabled": True, "namespaces": ["acme"]})
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "PodMonitor"] == ["pilotlight-gateway"]


def test_nothing_of_the_operator_is_asked_of_a_cluster_without_it(release: Release) -> None:
    kinds = {each["kind"] for each in release("inference-platform")}
    assert not kinds & {"PrometheusRule", "PodMonitor"}


def test_an_objective_of_ones_own_reaches_the_alerts(release: Release) -> None:
    objects = release("inference-platform", *OPERATOR, rules={"errorBudget": 0.005, "coldStartSeconds": 240})
    (rule,) = [each for each in objects if each["kind"] == "PrometheusRule"]
    recorded = {each.get("record"): each["expr"] for group in rule["spec"]["groups"] for each in group["rules"]}
    assert (recorded[BUDGET], recorded[SLOW_START]) == ("vector(0.005)", "vector(240)")
    assert rule["spec"]["groups"][1] == RULES["groups"][1]


def test_a_budget_of_everything_is_refused(release: Release) -> None:
    with pytest.raises(HelmFailed, match="errorBudget"):
        release("inference-platform", rules={"errorBudget": 1})

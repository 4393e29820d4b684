import re
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from tests.doc_pages import page_section
from tests.platform.plan.building import annotated, changed, codes, in_mode, keda, ome, planned, refusals

from pilotlight import __version__
from pilotlight.k8s.knative_features import KNATIVE_POD_FIELDS, POD_FLAGS
from pilotlight.plan.support import field_support
from pilotlight.plan.types import Capabilities, Current, Mode, Plan
from pilotlight.spec.field_tables import KSERVE, OME
from pilotlight.spec.service import KedaConfig, ModelSpec, NodeGroup, ScalingMetric, Service

NAMES: dict[Mode, str] = {
    "serverless": "Serverless", "raw": "RawDeployment", "multi-node": "MultiNode", "stateful": "Stateful",
}  # fmt: skip
MODES: tuple[Mode, ...] = ("serverless", "raw", "multi-node", "stateful")
PAGE = page_section("docs/reference/manifests.md", "Modes")


class Cell(NamedTuple):
    """What the page says about a field in a mode."""

    verdict: str
    how: str


class FieldRow(NamedTuple):
    """One row of the page's table: the field by its name in OME, and in KServe where that differs."""

    field: str
    kserve: str
    cells: dict[Mode, Cell]


def read_table() -> list[FieldRow]:
    """Return a row for each field of the page; a cell without a verdict says how the field is honoured."""
    table = PAGE.partition("| field | serverless | raw | multi-node | stateful |\n")[2].partition("\n\n")[0]
    rows = []
    for line in table.splitlines()[1:]:
        names, *texts = line.strip("| ").split(" | ")
        values: list[Cell] = []
        for text in texts:
            cell = re.fullmatch(r"(?:\*\*(.+?)\*\*: )?(.+)", text)
            assert cell, line
            values.append(values[-1] if text == "same" else Cell(cell[1] or "honoured", cell[2]))
        fields = re.findall(r"`([^`]+)`(?:, KServe `(\w+)`)?", names)
        assert fields, line
        rows += [FieldRow(field, kserve, dict(zip(MODES, values, strict=True))) for field, kserve in fields]
    return rows


TABLE = read_table()
# Pod fields that are passed on as they are, behind a Knative flag, or dropped for Knative.
PASSED_ON = [row.field for row in TABLE[[row.field for row in TABLE].index("activeDeadlineSeconds") :]]
SCALED = {"query": "sum(x)", "threshold": "2"}
LATENCY = ScalingMetric("external", "prometheus", "Value", "1", "sum(x)", "http://p:9090")

# Where any text would not do: we look into these.
POD_VALUES: dict[str, Any] = {
    "enableServiceLinks": True,
    "hostIPC": True,
    "hostNetwork": True,
    "hostPID": True,
    "initContainers": [{"name": "first", "image": "i:1"}],
    "securityContext": {"fsGroup": 7},
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
}

# One use of every field of the table: what the engine has without it, and what it has with it.
USES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "serviceAccountName": ({}, {"pod": {"serviceAccountName": "mine"}}),
    "nodeSelector": ({}, {"pod": {"nodeSelector": {"a": "b"}}}),
    "tolerations": ({}, {"pod": {"tolerations": [{"operator": "Exists"}]}}),
    "affinity": ({}, {"pod": {"affinity": {"nodeAffinity": {"a": 1}}}}),
    "volumes": ({}, {"pod": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
    "containers": ({}, {"pod": {"containers": [{"name": "side", "image": "s:1"}]}}),
    "minReplicas": ({}, {"min_replicas": 2}),
    "maxReplicas": ({}, {"max_replicas": 9}),
    "scaleTarget": ({"scale_metric": "concurrency"}, {"scale_metric": "concurrency", "scale_target": 7}),
    "scaleMetric": ({}, {"scale_metric": "rps"}),
    "scaleMetricType": (
        {"scale_metric": "memory", "annotations": {"ome.io/autoscalerClass": "hpa"}},
        {
            "scale_metric": "memory",
            "scale_metric_type": "AverageValue",
            "annotations": {"ome.io/autoscalerClass": "hpa"},
        },
    ),
    "autoScaling.metrics (Resource)": (
        {"annotations": {"ome.io/autoscalerClass": "hpa"}},
        {
            "annotations": {"ome.io/autoscalerClass": "hpa"},
            "metrics": (ScalingMetric("resource", "memory", "Utilization", "60"),),
        },
    ),
    "autoScaling.metrics (External, PodMetric)": ({}, {"metrics": (LATENCY,)}),
    "autoScaling.behavior": (
        {"keda": keda()},
        {"keda": keda(), "behavior": {"scaleDown": {"stabilizationWindowSeconds": 7}}},
    ),
    "containerConcurrency": ({}, {"container_concurrency": 3}),
    "timeoutSeconds": ({}, {"timeout_seconds": 77}),
    "canaryTrafficPercent": ({}, {"canary_traffic_percent": 10}),
    "deploymentStrategy": ({}, {"deployment_strategy": {"type": "Recreate"}}),
    "labels": ({}, {"labels": {"a": "b"}}),
    "annotations": ({}, {"annotations": {"a": "b"}}),
    "minAvailable": ({}, {"min_available": 2}),
    "maxUnavailable": ({}, {"max_unavailable": 2}),
    "kedaConfig.enableKeda": ({}, {"keda": keda()}),
    "kedaConfig.promServerAddress": ({"keda": keda(**SCALED)}, {"keda": keda(**SCALED, server_address="http://p:1")}),
    "kedaConfig.customPromQuery": ({"keda": keda(threshold="2")}, {"keda": keda(**SCALED)}),
    "kedaConfig.scalingThreshold": ({"keda": keda(query="sum(x)")}, {"keda": keda(**SCALED)}),
    "kedaConfig.scalingOperator": ({"keda": keda(**SCALED)}, {"keda": keda(**SCALED, operator="LessThanOrEqual")}),
    "kedaConfig.authenticationRef": ({"keda": keda(**SCALED)}, {"keda": keda(**SCALED, authentication={"name": "a"})}),
    "kedaConfig.authModes": ({"keda": keda(**SCALED)}, {"keda": keda(**SCALED, auth_modes="bearer")}),
    "runner": ({}, {"runner": {"args": ["--x"]}}),
    "leader": (
        {"worker": NodeGroup(size=1)},
        {"worker": NodeGroup(size=1), "leader": NodeGroup(pod={"priorityClassName": "p"})},
    ),
    "worker": ({"leader": NodeGroup()}, {"leader": NodeGroup(), "worker": NodeGroup(size=3)}),
    "batcher": ({}, {"batcher": {"maxBatchSize": 5}}),
    "logger": ({}, {"logger": {"url": "http://l"}}),
    "storageUris": ({}, {"storage_uris": ({"uri": "s3://b/x", "mountPath": "/mnt/x"},)}),
    "storageContainerName": ({}, {"storage_container": "mine"}),
    "model.confidential": ({}, {"model": ModelSpec("onnx", confidential={"enabled": True})}),
    "acceleratorOverride": ({}, {"accelerator": {"acceleratorClass": "h100"}}),
    "resources": ({}, {"runner": {"resources": {"requests": {"cpu": "3"}}}}),
    "automountServiceAccountToken": ({}, {"pod": {"automountServiceAccountToken": True}}),
    **{name: ({}, {"pod": {name: POD_VALUES.get(name, "some")}}) for name in PASSED_ON},
}
CURRENT = Current(
    revisions={"iris-engine": ("old",)}, templates={"old": {"metadata": {}, "spec": {"containers": [{"name": "o"}]}}}
)


def service(fields: dict[str, Any], mode: Mode) -> Service:
    """Groups of nodes have workers; the fields that only they have are never set elsewhere but on purpose."""
    own = dict(fields)
    if mode == "multi-node":
        own.setdefault("worker", NodeGroup(size=1))
    return in_mode(changed(ome(worker=own.pop("worker", None)), **own), NAMES[mode])


def without_words(made: Plan) -> Plan:
    """What is rendered: neither explanations nor warnings."""
    return replace(made, decisions=(), warnings=(), requirements=())


def test_the_table_and_the_uses_have_the_same_fields() -> None:
    assert sorted(row.field for row in TABLE) == sorted(USES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.field)
def test_every_field_does_in_every_mode_what_the_table_says(row: FieldRow, mode: Mode) -> None:
    before, after = USES[row.field]
    cell = row.cells[mode]
    if cell.verdict == "rejected":
        assert refusals(service(after, mode), current=CURRENT), cell.how
        return
    if row.field in ("leader", "worker") and cell.verdict == "no effect":
        before = {}
    # An autoscaler is asked for where the field is about one and the mode has none by itself.
    if mode == "stateful" and row.field in ("maxReplicas", "scaleMetricType"):
        before, after = ({**use, "annotations": {"ome.io/autoscalerClass": "hpa"}} for use in (before, after))
    plain, used = (planned(service(use, mode), current=CURRENT) for use in (before, after))
    code = "PL359" if row.field in PASSED_ON else "PL360"
    warned = [
        warning
        for warning in used.warnings
        if warning.code == code and warning.path == f"spec.engine.{row.field.partition(' (')[0]}"
    ]
    if cell.verdict == "no effect":
        assert len(warned) == 1
        assert code == "PL359" or warned[0].message == f"has no effect in {mode} mode: {cell.how}"
        assert without_words(used) == without_words(plain), "it has an effect after all"
    else:
        assert not warned
        assert without_words(used) != without_words(plain), "it has no effect"


def test_every_field_that_a_component_can_have_is_on_the_page() -> None:
    """In the table; what has no mode to depend on is explained below it."""
    records = [OME.record(name) for name in ("EngineSpec", "DecoderSpec", "RouterSpec")]
    records += [KSERVE.record(name) for name in ("PredictorSpec", "TransformerSpec", "ExplainerSpec")]
    fields = {name for record in records for name in record.fields}
    assert not sorted(name for name in fields if f"`{name}`" not in PAGE and f"`{name}." not in PAGE)


def test_keda_config_of_the_whole_service_is_warned_about_in_serverless_mode() -> None:
    made = planned(replace(ome(min_replicas=0), keda=KedaConfig(enabled=True)))
    assert [(warning.code, warning.path) for warning in made.warnings] == [("PL360", "spec.kedaConfig")]


def test_what_only_our_predictor_can_do_is_warned_about_with_a_foreign_one() -> None:
    made = planned(ome(runtime_name="foreign", batcher={"maxBatchSize": 2}, container_concurrency=2))
    assert codes(made.warnings).count("PL361") == 2


def test_the_page_and_the_warnings_have_the_same_fields_without_effect() -> None:
    shown = {
        (row.field.partition(" (")[0], row.kserve, mode, cell.how)
        for row in TABLE
        for mode, cell in row.cells.items()
        if cell.verdict == "no effect" and row.field not in PASSED_ON
    }
    warned = {
        (row.field, row.kserve, mode, why) for row in field_support.support().fields for mode, why in row.why.items()
    }
    assert shown == warned


@pytest.mark.parametrize("row", [row for row in TABLE if row.field in PASSED_ON], ids=lambda row: row.field)
def test_the_page_says_what_knative_does_with_a_pod_field(row: FieldRow) -> None:
    how = "pod template" if row.field in KNATIVE_POD_FIELDS else "Knative rejects it; omitted"
    flagged = "pod template; Knative needs a feature flag, see requirements"
    assert row.cells["serverless"].how == (flagged if row.field in POD_FLAGS else how)
    assert {row.cells[mode] for mode in MODES[1:]} == {Cell("honoured", "pod template")}


def test_scraping_that_is_switched_off_makes_no_monitors() -> None:
    assert planned(ome()).monitoring
    assert not planned(annotated(ome(), **{"ome.io/enable-prometheus-scraping": "false"})).monitoring


def test_a_hidden_service_has_no_host() -> None:
    hidden = replace(changed(ome()), labels={"networking.knative.dev/visibility": "cluster-local"})
    assert (planned(hidden).hosts, planned(hidden).gateway) == ((), {})
    assert planned(ome()).hosts == ("iris.demo.example.com", "iris-demo.example.com")
    dashed = Capabilities(host_template="{name}-{namespace}.{domain}", domain="example.net")
    assert planned(ome(), dashed).hosts == ("iris-demo.example.net",)


def test_a_host_is_mapped_to_knative_s_entry_where_it_claims_hosts() -> None:
    own = Capabilities(domain_mapping=True, gateway_api=False)
    assert not planned(ome(min_replicas=0), own).mapped_host, "a Route has it"
    mapped = replace(own, host_template="{name}-{namespace}.{domain}")
    made = planned(ome(min_replicas=0), mapped)
    assert made.mapped_host == "iris-demo.example.com"
    assert "domainmappings.serving.knative.dev" in {each.name for each in made.requirements}
    hidden = replace(ome(min_replicas=0), labels={"networking.knative.dev/visibility": "cluster-local"})
    assert not planned(hidden, mapped).mapped_host
    assert not planned(ome(), mapped).mapped_host, "raw: its HTTPRoute has it"
    assert not planned(ome(min_replicas=0)).mapped_host, "Knative may not claim it"


def test_earlier_hosts_answer_for_one_release() -> None:
    assert __version__.startswith("0.1."), "remove OLD_HOST of plan/planner.py, and say so in the change log"


def test_annotations_of_the_other_autoscaler_are_warned_about() -> None:
    asked = {"ome.io/autoscalerClass": "keda", "pilotlight.dev/triggers": "latency=1"}
    assert codes(planned(ome(min_replicas=0, annotations=asked)).warnings) == ["PL360", "PL360"]
    knative = {"autoscaling.knative.dev/window": "90s"}
    assert codes(planned(ome(annotations=knative)).warnings) == ["PL360"]
    assert not planned(ome(min_replicas=0, annotations=knative)).warnings

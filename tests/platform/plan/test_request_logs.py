"""`logger` and its annotation become settings of whoever logs; what would have no effect is reported."""

import json
from typing import Any

import pytest
from tests.platform.plan.building import FOREIGN, annotated, codes, ome, planned, refusals

from pilotlight.k8s import names
from pilotlight.plan.types import Capabilities, Plan
from pilotlight.wire.request_log.settings import decode

GATEWAY = Capabilities(access_at_gateway=True)
LOGGER = {"url": "http://sink/", "mode": "response", "metadataHeaders": ["X-Team"], "batchInterval": "2s"}
OPTIONS = "{sample: 0.5, content: metadata, redactFields: [$.a.b, c], maxBytes: 100}"


def variable(made: Plan) -> str:
    container = made.workloads[0].template["spec"]["containers"][0]
    return next((each["value"] for each in container["env"] if each["name"] == "INFERENCE_REQUEST_LOG"), "")


def test_our_predictor_gets_the_settings_where_no_gateway_logs() -> None:
    service = annotated(ome(logger=LOGGER), **{names.ANNOTATION_REQUEST_LOG: OPTIONS})
    settings = decode(variable(planned(service)))
    assert (settings.url, settings.mode, settings.payload, settings.sample) == ("http://sink/", "response", False, 0.5)
    assert (settings.service, settings.namespace, settings.component) == ("iris", "demo", "engine")
    assert (settings.headers, settings.redact_fields, settings.batch_s) == (("x-team",), ("$.a.b", "c"), 2.0)
    assert names.ANNOTATION_LOG_SETTINGS not in planned(service).workloads[0].annotations


def test_a_gateway_logs_for_any_server_by_an_annotation_of_its_object() -> None:
    service = annotated(ome(runtime_name=FOREIGN), **{
        names.ANNOTATION_REQUEST_LOG: "url: file:///var/log/iris.jsonl", names.ANNOTATION_AUDIT: "true"
    })  # fmt: skip
    made = planned(service, GATEWAY)
    written = made.workloads[0].annotations
    assert decode(written[names.ANNOTATION_LOG_SETTINGS]).url == "file:///var/log/iris.jsonl"
    assert (written[names.ANNOTATION_AUDIT], variable(made)) == ("true", "")
    assert not {"PL360", "PL361"} & set(codes(made.warnings))
    elsewhere = planned(service)
    assert {"PL360", "PL361"} <= set(codes(elsewhere.warnings)), "audit, and a server that cannot log"
    assert names.ANNOTATION_AUDIT not in elsewhere.workloads[0].annotations


@pytest.mark.parametrize(
    ("logger", "annotation", "message"),
    [
        ({"url": "gs://bucket/x"}, "", "gs is not supported; use s3, http, https or file"),
        (LOGGER, "{sample: 2}", "sample = 2, must be above 0 and at most 1"),
        (LOGGER, "{sampel: 1}", "unknown field `sampel`"),
        (LOGGER, "sample", "is not YAML of keys and values"),
        (None, "{url: 'ftp://x'}", "must start with http://"),
        (LOGGER, "{redactFields: [a, 'b[*].c']}", "redactFields: 'b[*].c' matches nothing; write a key such as"),
        (LOGGER, "{redactPatterns: ['(?!a)b']}", "redactPatterns: (?!a)b cannot be read: invalid perl operator: (?!"),
    ],
)
def test_invalid_settings_are_errors_at_planning(logger: Any, annotation: str, message: str) -> None:
    service = annotated(ome(logger=logger), **({names.ANNOTATION_REQUEST_LOG: annotation} if annotation else {}))
    (problem,) = refusals(service)
    assert problem.code == "PL385"
    assert message in problem.message


def test_parts_without_effect_are_warned_about() -> None:
    storage = {"path": "day", "key": "s3", "parameters": {"schema": "csv"}, "serviceAccountName": "a"}
    made = planned(ome(logger={"url": "s3://logs/x", "storage": storage, "marshallerUrl": "http://m"}))
    assert sorted(warning.path for warning in made.warnings) == [
        f"spec.engine.logger.{part}"
        for part in ("marshallerUrl", "storage.key", "storage.parameters", "storage.serviceAccountName")
    ]
    assert json.loads(variable(made))["folder"] == "day"
    assert codes(planned(ome(logger={"mode": "all"})).warnings) == ["PL360"]
    alone = annotated(ome(), **{names.ANNOTATION_REQUEST_LOG: "sample: 0.5"})
    assert codes(planned(alone).warnings) == ["PL360"]

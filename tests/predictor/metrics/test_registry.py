"""A whole scrape: every metric of the table, with the values that were counted."""

from collections.abc import Callable, Iterable, Mapping

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pilotlight.contract import (
    METRIC_BATCH_SIZE,
    METRIC_COLD_START,
    METRIC_IN_FLIGHT,
    METRIC_MODEL_LOAD,
    METRIC_MODEL_STATE,
    METRIC_QUEUE_DEPTH,
    METRIC_QUEUE_SECONDS,
    METRIC_REQUEST_DURATION,
)
from pilotlight.wire.request_log.sender import LogCounts
from pilotlight_predictor.config import ObservabilitySettings
from pilotlight_predictor.metrics import Metrics, ModelState, QueueDepth, identity_labels
from pilotlight_predictor.metrics.collector import collect
from pilotlight_predictor.metrics.definitions import IDENTITY_LABELS, PILOTLIGHT, TABLE
from pilotlight_predictor.metrics.exposition import OPENMETRICS, TEXT, expose
from pilotlight_predictor.metrics.gpu_readings import GpuSample
from pilotlight_predictor.metrics.registry import MAX_REQUEST_SERIES

SERVICE = ObservabilitySettings(service="iris", namespace="prod", revision="iris-1a2b3c4d")
IDENTITY = {"inference_service": "iris", "namespace": "prod", "revision": "iris-1a2b3c4d"}
GPU = GpuSample(0, "GPU-abc", "H200", 0.5, 100, 40, 350.5, 700.0, 12.5)
V1 = {"model": "iris", "version": "1"}


def busy_metrics() -> Metrics:
    metrics = Metrics(identity_labels(SERVICE))
    metrics.in_flight = 3
    metrics.request("iris", 1, "v2-http", 200).observe(0.02)
    stats = metrics.model("iris", 1, {"team-a": "blue"}, cache_enabled=True)
    stats.record_execution(4, 8, 4_000_000, 1_000, 2_000_000, 3_000, 17)
    stats.record_failure(1_000, "REJECTED")
    stats.record_cache_hit(5_000)
    stats.record_cache_miss(7_000)
    metrics.queue_depths = lambda: [QueueDepth("iris", 1, 5)]
    metrics.model_states = lambda: [ModelState("iris", 1, "READY")]
    metrics.gpus = lambda: [GPU]
    metrics.record_load("iris", 1, {"fetch": 0.5, "load": 1.5}, total=1.75)
    metrics.wake("iris", 1).observe(0.2)
    metrics.cold_start = {"boot": 0.125}
    metrics.log_counts = LogCounts(sent=2)
    return metrics


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read as OpenMetrics: the parser of the text format puts _total behind the name of every counter."""
    families = parse_openmetrics(expose(collect(metrics), OPENMETRICS).decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: Metrics, name: str, labels: Mapping[str, str]) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


@pytest.mark.parametrize(("content", "parse"), [(TEXT, parse_text), (OPENMETRICS, parse_openmetrics)])
def test_every_metric_of_the_table_is_exported_with_the_labels_it_declares(
    content: str, parse: Callable[[str], Iterable[Metric]]
) -> None:
    body = expose(collect(busy_metrics()), content)
    ours = {metric.name for metric in PILOTLIGHT}
    total = {name.removesuffix("_total"): name for name in TABLE}  # both parsers cut the suffix of counters
    families = {total[family.name]: family for family in parse(body.decode())}
    assert set(families) == set(TABLE)
    for name, family in families.items():
        expected = set(TABLE[name].labels) | (set(IDENTITY_LABELS) if name in ours else set())
        for sample in family.samples:
            assert set(sample.labels) - {"le", "_team_a"} == expected
        assert family.documentation == TABLE[name].help


def test_both_formats_hold_the_same_series() -> None:
    text, openmetrics = (expose(collect(busy_metrics()), content).splitlines() for content in (TEXT, OPENMETRICS))
    names = [[line.split()[0] for line in body if not line.startswith(b"#")] for body in (text, openmetrics)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        (METRIC_IN_FLIGHT, {}, 3),
        (METRIC_REQUEST_DURATION + "_count", {**V1, "protocol": "v2-http", "code": "200"}, 1),
        (METRIC_REQUEST_DURATION + "_bucket", {**V1, "protocol": "v2-http", "code": "200", "le": "0.01"}, 0),
        (METRIC_REQUEST_DURATION + "_bucket", {**V1, "protocol": "v2-http", "code": "200", "le": "0.025"}, 1),
        (METRIC_QUEUE_DEPTH, V1, 5),
        (METRIC_QUEUE_SECONDS + "_sum", V1, 0.004),
        (METRIC_BATCH_SIZE + "_bucket", {**V1, "le": "4.0"}, 0),
        (METRIC_BATCH_SIZE + "_bucket", {**V1, "le": "8.0"}, 1),
        (METRIC_MODEL_STATE, {**V1, "state": "READY"}, 1),
        (METRIC_MODEL_STATE, {**V1, "state": "LOADING"}, 0),
        (METRIC_MODEL_LOAD, {**V1, "phase": "fetch"}, 0.5),
        (METRIC_MODEL_LOAD, {**V1, "phase": "total"}, 1.75),
        (METRIC_COLD_START, {"phase": "boot"}, 0.125),
    ],
)
def test_our_metrics_carry_the_identity_of_the_service(name: str, labels: dict[str, str], expected: float) -> None:
    assert value(busy_metrics(), name, {**IDENTITY, **labels}) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nv_inference_request_success", 5),
        ("nv_inference_count", 8),
        ("nv_inference_exec_count", 1),
        ("nv_inference_request_duration_us", 4_000 + 4 * 2_004 + 5 + 7),
        ("nv_inference_queue_duration_us", 4_000),
        ("nv_inference_compute_duration_us", 4 * 2_004),
        ("nv_inference_compute_input_duration_us", 4),
        ("nv_inference_compute_infer_duration_us", 8_000),
        ("nv_inference_compute_output_duration_us", 12),
        ("nv_inference_load_ratio_count", 4),
        ("nv_inference_pending_request_count", 5),
        ("nv_cache_num_hits_per_model", 1),
        ("nv_cache_num_misses_per_model", 1),
        ("nv_cache_hit_duration_per_model", 5),
        ("nv_cache_miss_duration_per_model", 7),
    ],
)
def test_tritons_metrics_carry_model_version_and_tags_only(name: str, expected: float) -> None:
    assert value(busy_metrics(), name, {**V1, "_team_a": "blue"}) == expected


def test_failures_have_a_reason_and_start_at_zero() -> None:
    metrics = busy_metrics()
    labels = {**V1, "_team_a": "blue"}
    assert value(metrics, "nv_inference_request_failure", {**labels, "reason": "REJECTED"}) == 1
    assert value(metrics, "nv_inference_request_failure", {**labels, "reason": "BACKEND"}) == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nv_gpu_utilization", 0.5),
        ("nv_gpu_memory_total_bytes", 100),
        ("nv_gpu_memory_used_bytes", 40),
        ("nv_gpu_power_usage", 350.5),
        ("nv_gpu_power_limit", 700),
        ("nv_energy_consumption", 12.5),
    ],
)
def test_gpu_metrics_are_labelled_by_uuid(name: str, expected: float) -> None:
    assert value(busy_metrics(), name, {"gpu_uuid": "GPU-abc"}) == expected


def test_what_a_gpu_cannot_tell_is_left_out() -> None:
    metrics = Metrics()
    metrics.gpus = lambda: [GpuSample(0, "MIG-1", "H200", None, 100, 40, None, None, None)]
    names = {name for name, _ in samples(metrics)}
    assert "nv_gpu_memory_used_bytes" in names
    assert "nv_gpu_utilization" not in names


def test_cache_metrics_are_only_shown_for_models_with_a_cache() -> None:
    metrics = Metrics()
    metrics.model("m", 1)
    assert not any(name.startswith("nv_cache") for name, _ in samples(metrics))


def test_a_process_without_identity_has_no_empty_labels() -> None:
    metrics = Metrics(identity_labels(ObservabilitySettings()))
    assert value(metrics, METRIC_IN_FLIGHT, {}) == 0


def test_request_histograms_are_shared_by_reference() -> None:
    metrics = Metrics()
    assert metrics.request("m", 1, "v1", 200) is metrics.request("m", 1, "v1", 200)
    assert metrics.request("m", 1, "v1", 200) is not metrics.request("m", 1, "v1", 404)


def test_invented_model_names_cannot_grow_the_scrape_without_bound() -> None:
    metrics = Metrics()
    for number in range(MAX_REQUEST_SERIES + 100):
        metrics.request(f"model-{number}", 1, "v2-http", 404).observe(0.001)
    assert len(metrics.requests) == MAX_REQUEST_SERIES + 1
    assert metrics.request("", 0, "v2-http", 404).count == 100


def test_a_reload_goes_on_counting_and_an_unload_forgets() -> None:
    metrics = Metrics()
    metrics.model("m", 1).record_cache_hit(1)
    metrics.record_load("m", 1, {}, 1.0)
    metrics.request("m", 1, "v1", 200).observe(1)
    assert metrics.model("m", 1, {"team": "x"}).success_count == 1
    metrics.drop("m", 1)
    assert not any(("model", "m") in labels for _, labels in samples(metrics))
    assert metrics.model("m", 1).success_count == 0


def test_statistics_tell_every_version_in_order() -> None:
    metrics = Metrics()
    for key in (("b", 1), ("a", 10), ("a", 2)):
        metrics.model(*key)
    stats = metrics.statistics()["model_stats"]
    assert [(one["name"], one["version"]) for one in stats] == [("a", "2"), ("a", "10"), ("b", "1")]

"""The written formats, read back by an independent parser."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pilotlight_predictor.metrics.definitions import Metric
from pilotlight_predictor.metrics.exposition import OPENMETRICS, TEXT, Family, content_type, expose
from pilotlight_predictor.metrics.model_stats import Histogram

# What Prometheus 3 sends.
PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)  # fmt: skip


def gauge(value: float, **labels: str) -> Family:
    family = Family(Metric("some_gauge", "gauge", "Some help", tuple(labels)))
    family.add(value, labels)
    return family


# A carriage return is left out: the parser in use splits lines there, Prometheus itself does not.
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e")))
def test_any_label_value_survives_both_formats(value: str) -> None:
    family = gauge(1, label=value)
    for parse, content in ((parse_text, TEXT), (parse_openmetrics, OPENMETRICS)):
        (parsed,) = parse(expose([family], content).decode())
        assert parsed.samples[0].labels == {"label": value}


@pytest.mark.parametrize("value", [0, -1.5, 1e300, 2**63, math.inf, -math.inf, 0.1 + 0.2])
def test_numbers_survive(value: float) -> None:
    for parse, content in ((parse_text, TEXT), (parse_openmetrics, OPENMETRICS)):
        (parsed,) = parse(expose([gauge(value)], content).decode())
        assert parsed.samples[0].value == value


def test_not_a_number_is_written_as_prometheus_reads_it() -> None:
    (parsed,) = parse_text(expose([gauge(math.nan)]).decode())
    assert math.isnan(parsed.samples[0].value)


def test_help_and_type_come_before_the_samples() -> None:
    family = Family(Metric("odd", "gauge", 'a \\ b "c"\nd'))
    family.add(1, {})
    assert expose([family]) == b'# HELP odd a \\\\ b "c"\\nd\n# TYPE odd gauge\nodd 1\n'
    (parsed,) = parse_openmetrics(expose([family], OPENMETRICS).decode())
    assert (parsed.type, parsed.documentation) == ("gauge", 'a \\ b "c"\nd')


@pytest.mark.parametrize("content", [TEXT, OPENMETRICS])
def test_a_histogram_is_cumulative_and_ends_at_infinity(content: str) -> None:
    histogram = Histogram((0.1, 1))
    for value in (0.05, 0.5, 0.7, 5.0):
        histogram.observe(value)
    family = Family(Metric("h_seconds", "histogram", "Help", ("m",)))
    family.add(histogram, {"m": "x"})
    parse = parse_text if content == TEXT else parse_openmetrics
    (parsed,) = parse(expose([family], content).decode())
    values = {(s.name, s.labels.get("le")): s.value for s in parsed.samples}
    assert values == {
        ("h_seconds_bucket", "0.1"): 1,
        ("h_seconds_bucket", "1.0"): 3,
        ("h_seconds_bucket", "+Inf"): 4,
        ("h_seconds_count", None): 4,
        ("h_seconds_sum", None): 6.25,
    }


def test_openmetrics_keeps_the_names_of_counters_that_do_not_end_in_total() -> None:
    family = Family(Metric("nv_inference_count", "counter", "Help"))
    family.add(7, {})
    (parsed,) = parse_openmetrics(expose([family], OPENMETRICS).decode())
    assert [(s.name, s.value) for s in parsed.samples] == [("nv_inference_count", 7)]
    assert b"# TYPE nv_inference_count counter" in expose([family], TEXT)


def test_a_family_without_samples_is_left_out() -> None:
    assert expose([Family(Metric("empty", "gauge", "Help"))]) == b""


@pytest.mark.parametrize(
    ("accept", "content"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        ("application/json", TEXT),
        (PROMETHEUS_ACCEPT, OPENMETRICS),
        ("Application/OpenMetrics-Text", OPENMETRICS),
        ("application/openmetrics-text;q=0, text/plain", TEXT),
        (";;,,", TEXT),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, content: str) -> None:
    assert content_type(accept) == content

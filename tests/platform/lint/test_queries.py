"""What a query is about, from its text alone: the queries people write, and those that look like others."""

import pytest

from pilotlight.lint import promql_text

P95 = "histogram_quantile(0.95, sum by (le) (rate(http_request_duration_seconds_bucket[2m])))"


@pytest.mark.parametrize(
    ("query", "latency"),
    [
        (P95, True),
        ("avg_over_time(vllm:request_latency_seconds{service='%s'}[5m])", True),
        ("sum(rate(x_duration_seconds_sum[1m])) / sum(rate(x_duration_seconds_count[1m]))", True),
        ("max(vllm:time_to_first_token)", True),
        ("sum(rate(http_request_duration_seconds_count[1m]))", False),  # requests per second
        ("sum(rate(http_request_duration_seconds_sum[1m]))", False),  # concurrency, by Little's law
        ("sum(rate(http_requests_total{handler='latency'}[1m]))", False),
        ("sum(pilotlight_requests_in_flight)", False),
        ("sum(up) and time() > 0", False),
    ],
)
def test_latency_is_told_from_traffic_of_the_same_name(query: str, latency: bool) -> None:
    assert promql_text.is_latency(query) is latency


@pytest.mark.parametrize(
    ("query", "utilisation"),
    [
        ("avg(DCGM_FI_DEV_GPU_UTIL)", True),
        ("max(vllm:gpu_cache_usage_perc)", True),
        ("avg(nv_gpu_utilization)", True),
        ("sum(nv_gpu_utilization)", False),
        ("sum(utils_total_bytes)", False),
    ],
)
def test_a_utilisation_is_one_unless_summed(query: str, utilisation: bool) -> None:
    assert promql_text.is_utilisation(query) is utilisation


@pytest.mark.parametrize(
    ("query", "nan"),
    [
        (P95, True),
        (f"{P95} or vector(0)", True),
        (f"({P95} >= 0) or vector(0)", False),
        (f"{P95} and on() sum(rate(x_count[1m])) > 0", False),
        ("sum(a) / sum(b)", True),
        ("sum(a) / clamp_min(sum(b), 1)", False),
        ("sum(a) / 60", False),
        ('sum(a{path="/v1/x"})', False),
        ('sum(a) / sum(b{path!="/"})', True),  # the comparison is only a label's
    ],
)
def test_a_division_is_nan_unless_something_compares(query: str, nan: bool) -> None:
    assert promql_text.may_be_nan(query) is nan


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("x", ["x"]),
        ("sum(x)", []),
        ("sum(rate(x[1m])) by (pod)", ["x"]),
        ("sum by (pod) (x)", ["x"]),
        ("sum by () (x)", []),
        ("sum without (pod) (x)", ["x"]),
        ('sum by (service) (x{service="a"})', []),
        ('sum by (service) (x{service=~"a.*"})', ["x"]),
        ("topk(1, x)", ["x"]),
        ("max(topk(3, x))", []),
        (P95, []),
        ("histogram_quantile(0.95, rate(x_bucket[1m]))", ["x_bucket"]),
        ("histogram_quantile(0.95, sum by (le, pod) (rate(x_bucket[1m])))", ["x_bucket"]),
        ("sum(a) / on() group_left() sum(b)", []),
        ("sum(a) / b", ["b"]),
        ("sum(a) and on() b > 0", []),  # b only decides whether a stays
        ("sum(a) and on() (b > 0) or c", ["c"]),
        ("scalar(x) * 2", []),
        ("absent(x)", []),
        ("vector(0)", []),
        ('max({__name__="x"})', []),
        ("avg_over_time(x[5m:1m] offset 1h)", ["x"]),
        ("clamp_max(sum(a) and on() b, 5) + -c", ["c"]),
        ("sum by (pod) (x", []),  # Prometheus refuses it
    ],
)
def test_series_that_no_aggregation_joins_are_named(query: str, names: list[str]) -> None:
    assert promql_text.several_series(query) == names


@pytest.mark.parametrize(
    ("query", "zero"),
    [
        ("sum(x) or vector(0)", True),
        ("sum(x) or on() vector(0.0)", True),
        ("sum(x) or (vector(0))", True),
        ("sum(x) or vector(1)", False),
        ("sum(x) or 0 * sum(up)", False),
        ("sum(x{a=\"or vector(0)\"})", False),
    ],
)  # fmt: skip
def test_a_constant_zero_is_seen_outside_of_labels(query: str, zero: bool) -> None:
    assert promql_text.ends_in_zero(query) is zero

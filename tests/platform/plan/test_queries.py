import pytest

from pilotlight.contract import LABEL_NAMESPACE, LABEL_SERVICE
from pilotlight.prometheus import metric_queries

MEASURES = [
    ("histogram_quantile(0.95, sum by (le) (rate(x_seconds_bucket[2m])))", "level"),
    ("sum(rate(x_seconds_sum[1m])) / sum(rate(x_seconds_count[1m]))", "level"),
    ("avg_over_time(vllm:request_latency_seconds{service='a'}[5m])", "level"),
    ("avg(DCGM_FI_DEV_GPU_UTILIZATION)", "level"),
    ("vllm:num_requests_running", "level"),  # per pod, averaged: the same as a total divided by the replicas
    ("sum(vllm:num_requests_running)", "total"),
    ("sum(rate(http_requests_total[1m]))", "total"),
    ("sum(rate(x_duration_seconds_count[1m]))", "total"),
    ("count(up)", "total"),
]


@pytest.mark.parametrize(("query", "measure"), MEASURES)
def test_a_time_or_share_is_told_from_a_count(query: str, measure: str) -> None:
    assert metric_queries.measure(query) == measure


MISTAKES = [
    ("", "is empty"),
    ("  \n", "is empty"),
    ("sum(x", "( that is never closed"),
    ("x) or vector(0", ") without its ("),
    ("sum(x]", "] without its ["),
    ('x{a="b}', "does not end"),
    ("sum(x) # until (here", ""),
    ("sum(x) # until here\r(", "( that is never closed"),
    ('x{a="),(\\""}', ""),
    ("x{a=`)`}", ""),
    ("sum(rate(x{a='b'}[1m]))", ""),
]


@pytest.mark.parametrize(("query", "mistake"), MISTAKES)
def test_a_query_that_could_break_out_of_its_guard_is_found(query: str, mistake: str) -> None:
    found = metric_queries.syntax_problem(query)
    assert mistake in found
    assert bool(found) == bool(mistake)


@pytest.mark.parametrize("kind", list(metric_queries.MEASURES))
def test_our_own_queries_filter_service_and_namespace_in_every_selector(kind: metric_queries.Kind) -> None:
    query = metric_queries.guarded(
        metric_queries.metric_query(kind, "iris", "demo"),
        metric_queries.MEASURES[kind],
        "iris",
        "demo",
        from_zero=False,
        has_request_rate=True,
    )
    selectors = query.count("{")
    assert selectors >= 2
    assert query.count(f'{LABEL_SERVICE}="iris"') == query.count(f'{LABEL_NAMESPACE}="demo"') == selectors


def test_a_lost_scrape_is_an_error_above_zero_and_nothing_at_zero() -> None:
    above = metric_queries.guarded("x", "level", "iris", "demo", from_zero=False, has_request_rate=True)
    below = metric_queries.guarded("x", "level", "iris", "demo", from_zero=True, has_request_rate=True)
    assert above.endswith('or (0 * sum(pilotlight_requests_in_flight{inference_service="iris",namespace="demo"}))')
    assert below.endswith("or vector(0)")


def test_a_comment_in_a_query_cannot_swallow_the_guard() -> None:
    query = metric_queries.guarded("x # trailing", "level", "iris", "demo", from_zero=True, has_request_rate=False)
    lines = query.splitlines()
    assert lines[-1] == ") >= 0) or vector(0)"


def test_an_inverted_query_never_divides_by_zero() -> None:
    query = metric_queries.inverted("tps", "10", "iris", "demo", from_zero=False, has_request_rate=False)
    assert "10 / (avg(\ntps\n) > 0)" in query

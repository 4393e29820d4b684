"""Our own queries over replicas' metrics, with the numbers that Prometheus documents and computes."""

import math
import subprocess
import sys

import pytest

from pilotlight.contract import METRIC_GPU_UTILIZATION
from pilotlight.prometheus import metric_queries
from pilotlight.targets.local.scaling.promql import evaluator as promql_evaluator
from pilotlight.targets.local.scaling.promql.evaluator import Evaluator, UnsupportedQuery, increase

IRIS = {"inference_service": "iris", "namespace": "default"}
LATENCY = metric_queries.metric_query("latency", "iris", "default")


def counters(total: float, slow: float = 0.0) -> str:
    fast = total - slow
    return f"""# HELP pilotlight_request_duration_seconds how long
# TYPE pilotlight_request_duration_seconds histogram
pilotlight_request_duration_seconds_bucket{{model="m",le="0.1"}} {fast}
pilotlight_request_duration_seconds_bucket{{model="m",le="0.5"}} {total}
pilotlight_request_duration_seconds_bucket{{model="m",le="+Inf"}} {total}
pilotlight_request_duration_seconds_count{{model="m"}} {total}
pilotlight_requests_in_flight 3
pilotlight_queue_depth{{model="a \\"b\\""}} 2
{METRIC_GPU_UTILIZATION} 0.5
vllm:kv_cache_usage_perc 0.4
vllm:gpu_cache_usage_perc 0.9
something_else 7
"""


def evaluator(*asked: str) -> Evaluator:
    found = Evaluator()
    for query in asked:
        found.watch(query)
    return found


def guarded(*, from_zero: bool, kind: str = "latency") -> str:
    query = metric_queries.metric_query(kind, "iris", "default")  # type: ignore[arg-type]
    measure = metric_queries.MEASURES[kind]
    return metric_queries.guarded(query, measure, "iris", "default", from_zero=from_zero, has_request_rate=True)


@pytest.mark.parametrize(("from_zero", "answer"), [(True, 0.0), (False, None)])
def test_nothing_scraped_is_zero_only_where_the_service_may_sleep(from_zero: bool, answer: float | None) -> None:
    query = guarded(from_zero=from_zero)
    assert evaluator(query).evaluate(query, 100.0) == answer


@pytest.mark.parametrize("from_zero", [True, False])
def test_an_idle_replica_is_zero_and_never_nan(from_zero: bool) -> None:
    query = guarded(from_zero=from_zero)
    found = evaluator(query, LATENCY)
    for second in range(0, 130, 10):
        found.ingest(counters(5), {**IRIS, "pod": "a"}, float(second))
    assert found.evaluate(query, 120.0) == 0.0
    assert math.isnan(found.evaluate(LATENCY, 120.0) or 0.0)


def test_latency_is_interpolated_within_its_bucket() -> None:
    query = guarded(from_zero=True)
    found = evaluator(query)
    for second in range(0, 130, 10):
        found.ingest(counters(second, second / 2), {**IRIS, "pod": "a"}, float(second))
    assert found.evaluate(query, 120.0) == pytest.approx(0.1 + 0.4 * (0.95 - 0.5) / 0.5)


def test_replicas_are_summed_and_other_services_left_out() -> None:
    rate = guarded(from_zero=False, kind="rps")
    found = evaluator(rate)
    for second in range(0, 130, 10):
        for pod in ("a", "b"):
            found.ingest(counters(second * 2), {**IRIS, "pod": pod}, float(second))
        found.ingest(counters(second * 50), {**IRIS, "inference_service": "other", "pod": "c"}, float(second))
    assert found.evaluate(rate, 120.0) == pytest.approx(4.0)


@pytest.mark.parametrize(("kind", "answer"), [
    ("concurrency", 6.0), ("queue-depth", 4.0), ("gpu-utilization", 50.0), ("kv-cache", 40.0),
])  # fmt: skip
def test_gauges_are_summed_or_averaged(kind: str, answer: float) -> None:
    query = metric_queries.metric_query(kind, "iris", "default")  # type: ignore[arg-type]
    found = evaluator(query)
    for pod in ("a", "b"):
        found.ingest(counters(1), {**IRIS, "pod": pod}, 10.0)
    assert found.evaluate(query, 12.0) == answer


def test_below_its_threshold_an_inverted_query_is_above_one() -> None:
    query = metric_queries.inverted("sum(tokens)", "100", "iris", "default", from_zero=True, has_request_rate=False)
    found = evaluator(query)
    found.ingest("tokens 40\n", IRIS, 1.0)
    assert found.evaluate(query, 1.0) == 2.5
    found.ingest("tokens 0\n", IRIS, 2.0)
    assert found.evaluate(query, 2.0) == 0.0


def test_labels_too_long_to_be_matched_in_time_are_not_stored() -> None:
    query = 'sum(tokens{prompt=~".*a.*b"})'
    found = evaluator(query)
    found.ingest(f'tokens{{prompt="{"a" * 10_000}b"}} 40\ntokens{{prompt="ab"}} 2\n', IRIS, 1.0)
    assert found.evaluate(query, 1.0) == 2.0


def test_a_replica_that_ended_counts_in_the_past_and_not_in_the_present() -> None:
    rate, level = (
        metric_queries.request_rate("iris", "default"),
        metric_queries.metric_query("concurrency", "iris", "default"),
    )
    found = evaluator(rate, level)
    for second in range(0, 70, 10):
        found.ingest(counters(second), {**IRIS, "pod": "a"}, float(second))
    found.mark_ended({"pod": "a"})
    assert found.evaluate(level, 61.0) is None
    assert found.evaluate(rate, 61.0) == pytest.approx(0.5, rel=0.1)


def test_a_lost_replica_is_down() -> None:
    up = 'sum(up{inference_service="iris"})'
    found = evaluator(up)
    found.ingest("", IRIS, 1.0)
    assert found.evaluate(up, 1.0) == 1.0
    found.mark_down(IRIS, 2.0)
    assert found.evaluate(up, 2.0) == 0.0


def test_what_was_not_seen_for_five_minutes_is_gone() -> None:
    found = evaluator("sum(a)")
    found.ingest("a 1\n", {}, 0.0)
    assert found.evaluate("sum(a)", 299.0) == 1.0
    assert found.evaluate("sum(a)", 300.0) is None


def test_only_what_is_asked_for_is_kept_and_only_as_long() -> None:
    found = evaluator(metric_queries.request_rate("iris", "default"))
    for second in range(0, 10_000, 5):
        found.ingest(counters(second), IRIS, float(second))
    assert len(found) <= 31


def test_what_no_replica_tells_is_kept_no_longer() -> None:
    """Where nothing is scraped any more, nobody else drops what is old."""
    found = evaluator("sum(a)")
    for second in range(0, 10_000, 5):
        found.record("a", IRIS, 1.0, float(second))
    assert len(found) <= 67


def test_a_counter_that_falls_has_started_anew() -> None:
    points = [(0.0, 10.0), (10.0, 20.0), (20.0, 5.0), (30.0, 15.0)]
    assert increase(points, 30, 30) == pytest.approx(25.0)


def test_growth_is_extrapolated_to_the_ends_of_the_range() -> None:
    points = [(10.0, 100.0), (20.0, 110.0), (30.0, 120.0)]
    assert increase(points, 40, 35) == pytest.approx(20 * (20 + 5 + 5) / 20)
    assert increase(points, 1000, 35) == pytest.approx(20 * (20 + 5 + 5) / 20)
    assert increase([(10.0, 0.0), (20.0, 10.0)], 20, 20) == pytest.approx(10.0)


QUANTILES = [
    # quantile, buckets, answer
    (0.5, {"0.1": 10, "1": 20, "+Inf": 20}, 0.1),
    (0.75, {"0.1": 10, "1": 20, "+Inf": 20}, 0.55),
    (0.99, {"0.1": 10, "1": 10, "+Inf": 20}, 1.0),
    (0.25, {"0.1": 10, "1": 20, "+Inf": 20}, 0.05),
    (2, {"0.1": 10, "+Inf": 20}, math.inf),
    (-1, {"0.1": 10, "+Inf": 20}, -math.inf),
    (0.5, {"0.1": 10, "1": 20}, math.nan),
    (0.5, {"0.1": 0, "+Inf": 0}, math.nan),
]


@pytest.mark.parametrize(("quantile", "buckets", "answer"), QUANTILES)
def test_a_quantile_is_that_of_prometheus(quantile: float, buckets: dict[str, int], answer: float) -> None:
    query = f"histogram_quantile({quantile}, sum by (le) (h_bucket))"
    found = evaluator(query)
    found.ingest("".join(f'h_bucket{{le="{bound}"}} {count}\n' for bound, count in buckets.items()), {}, 1.0)
    assert found.evaluate(query, 1.0) == pytest.approx(answer, nan_ok=True)


EXPRESSIONS = [
    ("1 + 2 * 3", 7.0),
    ("-sum(a) + 10", 4.0),
    ("sum(a) > 5", 6.0),
    ("sum(a) > 6", None),
    ("sum(a) > bool 6", 0.0),
    ("sum(a) / 0", math.inf),
    ("0 * sum(a) / 0", math.nan),
    ("(sum(a) / 0 * 0) >= 0", None),
    ("sum(a) and on() (sum(b) > 0)", 6.0),
    ("sum(a) and on() (sum(b) > 100)", None),
    ("sum(a) unless on() sum(missing)", 6.0),
    ("sum(missing) or vector(0)", 0.0),
    ('sum(a{x="1"})', 1.0),
    ('sum(a{x!="1"})', 5.0),
    ('sum(a{x=~"1|2"})', 3.0),
    ('sum(a{x!~"1|2"}) # all others', 3.0),
    ("avg(a)", 2.0),
    ("max(a) - min(a)", 2.0),
    ("count(a)", 3.0),
    ("sum(a) by (y)", 6.0),
    ("clamp_max(sum(a), 4)", 4.0),
    ("clamp(sum(a), 7, 9)", 7.0),
    ("scalar(sum(a)) + 1", 7.0),
    ("sum(max by (x) (a))", 6.0),
    ("sum(a * ignoring(z) a)", 14.0),
    ("sum(a:b_total)", 9.0),
    ("max_over_time(b[1m])", 8.0),
    ("(max_over_time((b[1m])))", 8.0),
    (r"sum(a{x=~`\d`, x!~'\\D|2|3'}) # `", 1.0),
    ("2 > bool 1", 1.0),
]


@pytest.mark.parametrize(("query", "answer"), EXPRESSIONS)
def test_an_expression_is_worth_what_prometheus_says(query: str, answer: float | None) -> None:
    found = evaluator(query)
    found.ingest('a{x="1"} 1\na{x="2"} 2\na{x="3"} 3\nb 8\na:b_total 9\n', {}, 1.0)
    assert found.evaluate(query, 1.0) == (pytest.approx(answer, nan_ok=True) if answer is not None else None)


BEYOND = [
    "topk(3, a)", "sum(a) @ 3", "sum(a offset -5m)", "max_over_time(a[5m:1m])", '{job="x"}', "quantile(0.9, a)",
    "a * on(x) group_left b", "sum(rate(a))", "sum(a[5m])", "a[5m]", "sum(", "sum(a))", '"text"', "a{x=1}", "",
    "a ^ 2", "a + on(x) group_left(y) b", 'a{x="1" or y="2"}', r"a{x=~`\pL`}", 'a{x=~"("}', "1 > 2",
    "sum(a offset 19999999y)", "rate(a[19999999y])", "(" * 200 + "1" + ")" * 200, "(" * 50_000 + "1" + ")" * 50_000,
    "-" * 50_000 + "a", " or ".join(["a"] * 5_000),
]  # fmt: skip


@pytest.mark.parametrize("query", BEYOND, ids=lambda query: query[:20])
def test_a_query_beyond_the_evaluator_says_what_it_needs(query: str) -> None:
    assert (promql_evaluator.supported(query) or "").endswith("needs --prometheus ADDRESS")
    with pytest.raises(UnsupportedQuery, match="needs --prometheus ADDRESS"):
        Evaluator().evaluate(query, 0.0)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("sum(topk(3, a))", "uses topk(), which"),
        ("sum(deriv(a[5m]))", "uses deriv(), which"),
        ("a * on(x) group_right() b", "uses group_right, which"),
        ("sum(a @ 3)", "uses @, which"),
        ("a atan2 b", "uses atan2, which"),
        ("a - nosuch(b)", "unknown function with name 'nosuch'"),
        ("rate(a)", "expected type matrix in call to function 'rate'"),
        ("rate(a[1e30])", "cannot convert float seconds"),
    ],
)
def test_a_refusal_names_what_is_not_evaluated(query: str, why: str) -> None:
    assert why in (promql_evaluator.supported(query) or "")


def test_the_parser_is_imported_with_the_first_query() -> None:
    code = "import sys, pilotlight.targets.local.control.metrics_source; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "promql_parser" not in done.stdout.split()


def test_an_offset_looks_at_the_past_as_it_was_also_of_a_replica_that_has_ended_since() -> None:
    found = evaluator("sum(a offset 1m)", "sum(max_over_time(a[1m] offset 1m))", "sum(a)")
    for second in range(0, 121, 10):
        found.ingest(f"a {second}\n", {"pod": "first"}, float(second))
        if second >= 90:
            found.ingest("a 1000\n", {"pod": "second"}, float(second))
    found.mark_ended({"pod": "first"})
    assert found.evaluate("sum(a)", 120.0) == 1000.0
    assert found.evaluate("sum(a offset 1m)", 120.0) == 60.0
    assert found.evaluate("sum(max_over_time(a[1m] offset 1m))", 120.0) == 60.0
    assert found.evaluate("sum(a offset 1m)", 185.0) == 1000.0
    assert found.evaluate("sum(a offset 1m)", 55.0) is None


def test_several_series_are_no_number() -> None:
    found = evaluator("a")
    found.ingest('a{x="1"} 1\na{x="2"} 2\n', {}, 1.0)
    with pytest.raises(UnsupportedQuery, match="gives 2 series, must return one number"):
        found.evaluate("a", 1.0)

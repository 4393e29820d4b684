"""One look at the data: what fails, what passes, what cannot be told, and whose fault it is when nothing is there."""

import math

import pytest

from pilotlight.canaries.analysis import Judgement, compared_metrics, count_tests, judge
from pilotlight.canaries.canary_state import Measurement, Verdict
from pilotlight.canaries.queries import Missing, ObservedCounts
from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.spec.canary_policy import CanaryPolicy, Check

EMPTY = Missing("empty", "new had no requests within 90s")
P99 = CanaryPolicy(checks=(Check("p99_ms", maximum=300.0),))
ERRORS = CanaryPolicy(checks=(Check("error_rate", maximum=0.01),))
COMPARED = CanaryPolicy(compare="baseline")
OWN = CanaryPolicy(checks=(Check("gpu", "max(busy)", maximum=0.9),))


def seen(
    requests: float, errors: float = 0.0, slow: float = 0.0, fast_s: float = 0.1, slow_s: float = 0.5
) -> ObservedCounts:
    """`slow` of the requests took up to `slow_s`, the others up to `fast_s`."""
    edges = (*LATENCY_BUCKETS, math.inf)
    buckets = tuple((edge, (edge >= fast_s) * (requests - slow) + (edge >= slow_s) * slow) for edge in edges)
    return ObservedCounts(requests, errors, buckets, (requests - slow) * fast_s + slow * slow_s, 120.0)


def only(judgement: Judgement) -> Measurement:
    (found,) = judgement.measurements
    assert found.verdict == judgement.verdict
    return found


@pytest.mark.parametrize(
    ("requests", "slow", "verdict"),
    [
        (1000, 0, "Successful"),
        (1000, 9, "Successful"),
        (1000, 12, "Inconclusive"),  # 1.2 % above: by chance alone in every fourth canary
        (1000, 20, "Inconclusive"),
        (1000, 40, "Failed"),
        (60, 1, "Inconclusive"),
        (60, 12, "Failed"),
        (20, 0, "Inconclusive"),  # fewer than the 50 of min_requests
        (20, 20, "Failed"),  # which a certain failure does not wait for
    ],
)
def test_a_latency_fails_when_the_data_say_so_and_not_before(requests: int, slow: int, verdict: Verdict) -> None:
    assert judge(P99, seen(requests, slow=slow)).verdict == verdict


@pytest.mark.parametrize(
    ("requests", "errors", "verdict"),
    [
        (1000, 5, "Successful"),
        (1000, 11, "Inconclusive"),
        (1000, 40, "Failed"),
        (10, 10, "Failed"),
        (10, 0, "Inconclusive"),
    ],
)
def test_an_error_rate_fails_when_the_data_say_so_and_not_before(requests: int, errors: int, verdict: Verdict) -> None:
    assert judge(ERRORS, seen(requests, errors)).verdict == verdict


def test_a_measurement_tells_value_bound_confidence_requests_and_query() -> None:
    found = only(
        judge(P99, seen(2000, slow=100), at="2026-01-01T00:00:00Z", queries={"p99_ms": "histogram_quantile(…)"})
    )
    assert (found.check, found.at, found.requests, found.bound) == ("p99_ms", "2026-01-01T00:00:00Z", 2000, 300.0)
    assert found.query == "histogram_quantile(…)"
    assert found.low is not None
    assert found.high is not None
    assert found.value is not None
    assert 300 < found.low < found.value < found.high <= 500
    assert found.reason.startswith("p99_ms is 460 ms (4")
    assert found.reason.endswith(" in 2000 requests, not below 300 ms")


def test_an_unsure_measurement_says_that_it_is_unsure() -> None:
    reason = only(judge(ERRORS, seen(100, 3))).reason
    assert reason.startswith("error_rate is 3 % (")
    assert reason.endswith("in 100 requests, perhaps not below 1 %: too few requests to be sure")


def test_a_mean_and_a_rate_are_judged_too() -> None:
    mean = CanaryPolicy(checks=(Check("mean_ms", maximum=90.0),))
    assert judge(mean, seen(1000)).verdict == "Failed"
    assert judge(CanaryPolicy(checks=(Check("mean_ms", maximum=120.0),)), seen(1000)).verdict == "Successful"
    rate = CanaryPolicy(checks=(Check("rps", minimum=5.0),))
    assert judge(rate, seen(1200)).verdict == "Successful"
    assert judge(rate, seen(300)).verdict == "Failed"
    assert judge(rate, seen(590)).verdict == "Inconclusive"


@pytest.mark.parametrize(
    ("canary", "baseline", "verdict", "told"),
    [
        (seen(1000, 5), seen(4000, 20), "Successful", ""),
        (seen(1000, 40), seen(4000, 20), "Failed", "error_rate is 4 % (2.95 % to 5.4 %) in 1000 requests, worse than "
                                                   "1.2 times the baseline's 0.5 % of 4000"),
        (seen(1000, 12), seen(4000, 20), "Inconclusive", "perhaps worse than 1.2 times the baseline's 0.5 %"),
        (seen(1000, slow=60), seen(4000, slow=40), "Failed", "p99_ms is 466.7 ms"),
        (seen(1000, fast_s=0.25), seen(4000), "Failed", "p50_ms is 225 ms"),
        (seen(1000, slow=10), seen(4000, slow=40), "Successful", ""),
        (seen(1000), seen(4000, fast_s=0.5), "Successful", ""),  # better is no harm
        (seen(1000), seen(10), "Inconclusive", "the baseline had fewer than 50 requests"),
        (seen(1000), EMPTY, "Inconclusive", "the baseline: new had no requests within 90s"),
        (seen(1000), Missing("unreachable", "no"), "Error", "the baseline: no"),
    ],
)  # fmt: skip
def test_a_canary_is_compared_with_the_baseline(
    canary: ObservedCounts, baseline: ObservedCounts | Missing, verdict: Verdict, told: str
) -> None:
    found = judge(COMPARED, canary, baseline)
    assert (found.verdict, told in found.reason) == (verdict, True), found.reason
    assert {each.check for each in found.measurements} == {f"{name} vs baseline" for name in compared_metrics(COMPARED)}


def test_a_ratio_says_how_much_worse_is_worse() -> None:
    generous = CanaryPolicy(compare="baseline", ratio=4.0)
    assert judge(COMPARED, seen(5000, 150), seen(5000, 50)).verdict == "Failed"
    assert judge(generous, seen(5000, 150), seen(5000, 50)).verdict == "Successful"


@pytest.mark.parametrize(
    ("missing", "verdict"),
    [
        ("empty", "Inconclusive"),
        ("nan", "Inconclusive"),
        ("stale", "Error"),
        ("unreachable", "Error"),
        ("unusable", "Error"),
    ],
)
def test_no_data_is_neither_failure_nor_success(missing: str, verdict: Verdict) -> None:
    found = judge(P99, Missing(missing, "because"))  # type: ignore[arg-type]
    assert (found.verdict, found.reason, only(found).reason) == (verdict, "because", "because")
    assert found.missing_requests == (50 if verdict == "Inconclusive" else 0)


def test_what_is_lacking_is_told_for_probes() -> None:
    found = judge(COMPARED, seen(12), seen(40))
    assert (found.missing_requests, found.missing_baseline_requests) == (38, 10)
    assert judge(CanaryPolicy(min_requests=0), EMPTY).missing_requests == 1
    assert judge(P99, seen(1000), EMPTY).missing_baseline_requests == 0


def test_queries_of_the_users_own_are_judged_by_their_value() -> None:
    found = judge(OWN, seen(1000), query_values={"gpu": 0.95})
    assert (found.verdict, found.reason) == ("Failed", "gpu is 0.95, not below 0.9")
    assert judge(OWN, seen(1000), query_values={"gpu": 0.9}).verdict == "Successful"
    assert judge(OWN, seen(10), query_values={"gpu": 0.95}).verdict == "Inconclusive"
    assert judge(OWN, seen(1000), query_values={"gpu": math.nan}).verdict == "Inconclusive"
    assert judge(OWN, seen(1000), query_values={"gpu": Missing("nan", "gives NaN")}).missing_requests == 1
    assert judge(OWN, seen(1000), query_values={"gpu": Missing("unusable", "gives 3 series")}).verdict == "Error"
    assert judge(OWN, seen(1000)).verdict == "Inconclusive"
    foreign = CanaryPolicy(checks=OWN.checks, min_requests=0)  # of a server whose requests we cannot count
    assert judge(foreign, EMPTY, query_values={"gpu": 0.5}).verdict == "Successful"
    assert judge(foreign, EMPTY, query_values={"gpu": 0.95}).verdict == "Failed"
    least = CanaryPolicy(checks=(Check("gpu", "q", minimum=0.1),))
    assert judge(least, seen(1000), query_values={"gpu": 0.05}).reason == "gpu is 0.05, not above 0.1"


def test_one_failure_outweighs_everything_else() -> None:
    policy = CanaryPolicy(checks=(*P99.checks, *OWN.checks))
    found = judge(policy, seen(1000, slow=100), query_values={"gpu": Missing("unreachable", "no")})
    assert [each.verdict for each in found.measurements] == ["Failed", "Error"]
    assert (found.verdict, found.reason.startswith("p99_ms")) == ("Failed", True)


def test_a_policy_without_checks_only_wants_requests() -> None:
    assert only(judge(CanaryPolicy(), seen(50))).verdict == "Successful"
    assert only(judge(CanaryPolicy(), seen(49))).reason == "49 of the 50 required requests"


def test_the_more_is_looked_at_the_more_it_takes_to_fail() -> None:
    """The same data that fail a canary at the first look may be chance at the thousandth."""
    data = seen(1000, slow=24)
    assert judge(P99, data).verdict == "Failed"
    late = [Measurement("p99_ms", "", "Successful", look=1000)]
    found = judge(P99, data, history=late)
    assert (found.verdict, only(found).look) == ("Inconclusive", 1001)


def test_checks_that_are_only_tried_out_stop_nothing_and_are_shown() -> None:
    tried = CanaryPolicy(checks=P99.checks, dry_run_checks=True)
    found = judge(tried, seen(1000, slow=100))
    assert (found.verdict, found.measurements[0].verdict, found.missing_requests) == ("Successful", "Failed", 0)
    assert judge(tried, EMPTY).verdict == "Successful"


def test_every_test_of_a_look_shares_its_chance() -> None:
    assert count_tests(P99) == 1
    assert count_tests(COMPARED) == 3
    assert count_tests(CanaryPolicy(compare="baseline", checks=(*P99.checks, Check("p95_ms"), *OWN.checks))) == 5

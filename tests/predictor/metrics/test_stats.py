"""The counters behind /v2/models/{m}/stats, held against what Triton counts for the same traffic."""

import pytest

from pilotlight_predictor.metrics.model_stats import Histogram, ModelStats


def test_a_batch_charges_every_request_the_whole_compute_time() -> None:
    stats = ModelStats("iris", 3)
    stats.record_execution(
        requests=4, rows=8, queue_ns_total=4_000, input_ns=100, infer_ns=3_000, output_ns=200, now_ms=17
    )
    assert stats.as_v2() == {
        "name": "iris",
        "version": "3",
        "last_inference": 17,
        "inference_count": 8,
        "execution_count": 1,
        "inference_stats": {
            "success": {"count": 4, "ns": 4_000 + 4 * 3_300},
            "fail": {"count": 0, "ns": 0},
            "queue": {"count": 4, "ns": 4_000},
            "compute_input": {"count": 4, "ns": 400},
            "compute_infer": {"count": 4, "ns": 12_000},
            "compute_output": {"count": 4, "ns": 800},
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": 8,
                "compute_input": {"count": 1, "ns": 100},
                "compute_infer": {"count": 1, "ns": 3_000},
                "compute_output": {"count": 1, "ns": 200},
            }
        ],
        "memory_usage": [],
    }


def test_batch_sizes_are_listed_once_each_in_order() -> None:
    stats = ModelStats("m", 1)
    for rows in (4, 1, 4):
        stats.record_execution(1, rows, 0, 1, 2, 3, 1)
    sizes = [(batch["batch_size"], batch["compute_infer"]) for batch in stats.as_v2()["batch_stats"]]
    assert sizes == [(1, {"count": 1, "ns": 2}), (4, {"count": 2, "ns": 4})]


def test_one_execution_counts_as_its_requests_recorded_one_by_one() -> None:
    together, apart = ModelStats("m", 1), ModelStats("m", 1)
    together.record_execution(3, 3, 3_000, 10, 20, 30, 5)
    apart.record_batch(3, 10, 20, 30, 5)
    for _ in range(3):
        apart.record_success(1_000, 10, 20, 30, 1_060, 1)
    assert together.as_v2() == apart.as_v2()
    assert together.queue_seconds.counts == apart.queue_seconds.counts
    assert together.load_ratio.counts == apart.load_ratio.counts


def test_a_cache_hit_is_a_success_without_inference_execution_or_compute() -> None:
    stats = ModelStats("m", 1)
    stats.record_cache_hit(500)
    stats.record_cache_miss(70)
    body = stats.as_v2()
    assert (body["inference_count"], body["execution_count"]) == (0, 0)
    assert body["inference_stats"]["success"] == {"count": 1, "ns": 570}
    assert body["inference_stats"]["compute_infer"] == {"count": 0, "ns": 0}
    assert body["inference_stats"]["cache_hit"] == {"count": 1, "ns": 500}
    assert body["inference_stats"]["cache_miss"] == {"count": 1, "ns": 70}


def test_failures_are_kept_by_reason_and_summed() -> None:
    stats = ModelStats("m", 1)
    stats.record_failure(100, "REJECTED")
    stats.record_failure(50, "BACKEND")
    assert stats.failures == {"REJECTED": 1, "CANCELED": 0, "BACKEND": 1}
    assert stats.as_v2()["inference_stats"]["fail"] == {"count": 2, "ns": 150}


def test_the_load_ratio_says_how_much_longer_a_request_took_than_its_compute() -> None:
    stats = ModelStats("m", 1)
    stats.record_execution(2, 2, queue_ns_total=0, input_ns=0, infer_ns=1_000, output_ns=0, now_ms=1)
    stats.record_execution(2, 2, queue_ns_total=18_000, input_ns=0, infer_ns=1_000, output_ns=0, now_ms=1)
    assert stats.load_ratio.counts == [2, 0, 0, 0, 0, 2, 0, 0]  # 1.0 and 10.0, whose edge is inclusive
    assert stats.load_ratio.sum == 22.0


@pytest.mark.parametrize(("value", "bucket"), [(0.0, 0), (1.0, 0), (1.1, 1), (2.0, 1), (2.5, 2)])
def test_a_bucket_holds_values_up_to_and_with_its_bound(value: float, bucket: int) -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(value)
    assert histogram.counts.index(1) == bucket


def test_observing_many_equals_observing_each() -> None:
    many, each = Histogram(), Histogram()
    many.observe_many(0.25, 4)
    for _ in range(4):
        each.observe(0.25)
    assert (many.counts, many.sum, many.count) == (each.counts, each.sum, 4)

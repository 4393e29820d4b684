"""Many answers to one: what is summed, what is not, and what stays of workers that are gone."""

import json
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text_metrics

from pilotlight_predictor.config import Settings
from pilotlight_predictor.metrics import Metrics
from pilotlight_predictor.metrics.collector import collect
from pilotlight_predictor.metrics.exposition import OPENMETRICS, TEXT, expose
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.workers.aggregation import first_failure, merge, merge_metrics, retained_counters
from pilotlight_predictor.workers.parent_channel import WorkerResponse
from pilotlight_predictor.workers.supervisor import WorkerSupervisor
from pilotlight_predictor.workers.worker_handle import WorkerHandle


def scrape(requests: int, content: str = TEXT, *, in_flight: int = 0, boot: float = 0.1, code: int = 200) -> str:
    metrics = Metrics({"service": "s"})
    for _ in range(requests):
        metrics.request("m", 1, "v2", code).observe(0.003)
        metrics.model("m", 1).record_execution(1, 1, 1000, 0, 5000, 0, 1)
    metrics.in_flight = in_flight
    metrics.cold_start = {"boot": boot}
    return expose(collect(metrics), content).decode()


def samples(text: str, name: str) -> dict[str, float]:
    """By the last label's value, such as le or code. The parser calls a counter …_total, whatever its name."""
    found = (s for family in text_metrics(text) for s in family.samples if s.name in {name, f"{name}_total"})
    return {str(list(sample.labels.values())[-1]): sample.value for sample in found}


def answer(document: Any, status: int = 200) -> WorkerResponse:
    return WorkerResponse(status, json.dumps(document).encode())


def merged(how: str, *documents: Any, **more: Any) -> Any:
    return json.loads(merge(how, {n: answer(d) for n, d in enumerate(documents)}, **more).body)


def test_counters_and_histograms_are_summed() -> None:
    text = merge_metrics([scrape(3), scrape(4)])
    assert samples(text, "nv_inference_count") == {"1": 7}
    buckets = samples(text, "pilotlight_request_duration_seconds_bucket")
    assert (buckets["+Inf"], buckets["0.001"]) == (7, 0)
    assert samples(text, "pilotlight_request_duration_seconds_count") == {"200": 7}


def test_gauges_are_summed_where_they_count_requests_and_else_the_largest_is_told() -> None:
    text = merge_metrics([scrape(0, in_flight=2, boot=0.5), scrape(0, in_flight=3, boot=0.25)])
    assert samples(text, "pilotlight_requests_in_flight") == {"s": 5}
    assert samples(text, "pilotlight_cold_start_seconds") == {"boot": 0.5}


def test_the_machines_own_meters_are_not_added_up() -> None:
    line = '# TYPE nv_energy_consumption counter\nnv_energy_consumption{gpu_uuid="g"} 70.5\n'
    assert samples(merge_metrics([line, line]), "nv_energy_consumption") == {"g": 70.5}


def test_series_that_one_worker_alone_has_are_kept_within_their_family() -> None:
    text = merge_metrics([scrape(1), scrape(2, code=400)])
    assert samples(text, "pilotlight_request_duration_seconds_count") == {"200": 1, "400": 2}
    assert text.count("# TYPE pilotlight_request_duration_seconds ") == 1


def test_the_openmetrics_format_stays_valid() -> None:
    text = merge_metrics([scrape(1, OPENMETRICS), scrape(2, OPENMETRICS)], [retained_counters([scrape(4)])])
    found = {sample.name: sample.value for family in openmetrics(text) for sample in family.samples}
    assert found["nv_inference_count"] == 7


def test_what_the_dead_had_counted_stays_and_what_they_held_does_not() -> None:
    gone = retained_counters([retained_counters(["", scrape(5, in_flight=9, boot=9.0)]), scrape(1, OPENMETRICS)])
    text = merge_metrics([scrape(2, in_flight=1)], [gone])
    assert samples(text, "nv_inference_count") == {"1": 8}
    assert samples(text, "pilotlight_requests_in_flight") == {"s": 1}
    assert samples(text, "pilotlight_cold_start_seconds") == {"boot": 0.1}


@pytest.mark.parametrize("answered", [False, True])
def test_a_worker_that_dies_over_a_scrape_is_counted_once(answered: bool) -> None:
    parent = WorkerSupervisor(Settings(), (), [], None, None)
    members = [WorkerHandle(number, None, None) for number in range(2)]  # type: ignore[arg-type]
    for member in members:
        member.joined = True
    scraped = {number: WorkerResponse(200, scrape(3).encode(), TEXT) for number in range(2)}
    parent._merge("metrics", members, dict(scraped))
    members[0].joined = False
    parent._retain_counters(members[0])
    told = parent._merge("metrics", members, scraped if answered else {1: scraped[1]})
    assert samples(told.body.decode(), "nv_inference_count") == {"1": 6}


def stats_of(*batches: int, at: int) -> dict[str, Any]:
    stats = ModelStats("m", 1)
    for rows in batches:
        stats.record_execution(1, rows, 10, 1, 2, 3, at)
    return {"model_stats": [stats.as_v2()]}


def test_statistics_are_summed_at_any_depth_and_batches_matched_by_size() -> None:
    (row,) = merged("statistics", stats_of(1, 4, at=70), stats_of(4, 8, at=60))["model_stats"]
    assert (row["inference_count"], row["execution_count"], row["last_inference"]) == (17, 4, 70)
    assert row["inference_stats"]["compute_infer"] == {"count": 4, "ns": 8}
    assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in row["batch_stats"]] == [
        (1, 1), (4, 2), (8, 1),
    ]  # fmt: skip


def row(name: str, state: str, reason: str = "") -> dict[str, str]:
    return {"name": name, "version": "1", "state": state, "reason": reason}


def test_a_model_is_ready_when_it_is_so_in_all() -> None:
    one = [row("a", "READY"), row("b", "READY"), row("c", "READY")]
    other = [row("a", "READY"), row("b", "UNAVAILABLE", "no room")]
    assert merged("index", one, other) == [row("a", "READY"), row("b", "UNAVAILABLE", "worker 1: no room")]


def test_a_model_is_parked_where_all_have_parked_it() -> None:
    assert merged("index", [row("a", "PARKED")], [row("a", "PARKED")]) == [row("a", "PARKED")]
    assert merged("index", [row("a", "PARKED")], [row("a", "READY")]) == [row("a", "READY")]
    failed = row("a", "UNAVAILABLE", "gone")
    assert merged("index", [row("a", "PARKED")], [failed]) == [row("a", "UNAVAILABLE", "worker 1: gone")]
    assert merged("index", [row("a", "PARKED")], []) == []


def test_a_model_known_by_name_alone_gives_way_to_its_versions() -> None:
    assert merged("index", [{"name": "a", "state": "LOADING", "reason": ""}], [row("a", "LOADING")]) == [
        row("a", "LOADING")
    ]


def test_who_has_no_answer_does_not_spoil_that_of_the_others() -> None:
    good, bad = answer(stats_of(1, at=1)), answer({"error": "unknown"}, 404)
    assert merge("statistics", {0: bad, 1: good}).status == 200
    assert merge("statistics", {0: bad}) == bad
    assert merge("statistics", {}).status == 503


def test_of_what_must_hold_everywhere_the_first_refusal_is_told() -> None:
    bad = answer({"error": "x"}, 400)
    assert first_failure([answer(1), bad, answer(2)]) == bad
    assert first_failure([answer(1), answer(2)]) == answer(1)
    assert first_failure([]).status == 503


def test_texts_for_people_are_told_one_after_the_other() -> None:
    assert (
        first_failure([WorkerResponse(200, b"a", "text/plain"), WorkerResponse(200, b"b", "text/plain")]).body
        == b"a\nb"
    )


def test_the_status_has_every_worker_also_one_that_does_not_answer_yet() -> None:
    one = {"state": "ready", "ready": True, "reason": "", "in_flight": 2, "models": [row("a", "READY")], "phases": {}}
    other = {**one, "in_flight": 1, "ready": False, "state": "loading"}
    roster = [{"worker": n, "pid": 10 + n, "restarts": n} for n in range(3)]
    status = merged("status", other, one, roster=roster)
    assert (status["state"], status["in_flight"], status["models"]) == ("ready", 3, [row("a", "READY")])
    assert [(w["pid"], w["restarts"], w["state"]) for w in status["workers"]] == [
        (10, 0, "loading"), (11, 1, "ready"), (12, 2, "initializing"),
    ]  # fmt: skip


def test_a_model_is_verified_once_any_worker_has_answered_and_first_failures_are_summed() -> None:
    base = {"state": "ready", "ready": True, "reason": "", "in_flight": 0}

    def document(verified: bool, failures: int) -> dict[str, Any]:
        answers = {"verified": verified, "unverified_failures": failures}
        return {**base, "models": [{**row("a", "READY"), **answers}]}

    unverified = merged("status", document(False, 2), document(False, 1), roster=())
    assert (unverified["verified"], unverified["unverified_failures"]) == (False, 3)
    status = merged("status", document(False, 2), document(True, 0), roster=())
    assert (status["verified"], status["models"][0]["verified"]) == (True, True)


def test_a_label_that_a_model_wrote_breaks_no_line() -> None:
    metrics = Metrics()
    series = metrics.custom.series(
        "model", metrics.custom.family("seen", "counter", "Seen"), {"by": "p\rq\x85r\u2028s"}
    )
    series.add(2)
    text = expose(collect(metrics)).decode()
    assert 'seen{by="p\rq\x85r\u2028s"} 4.0' in merge_metrics([text, text]).split("\n")

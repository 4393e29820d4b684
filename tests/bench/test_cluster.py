"""The cluster's benchmark: its arithmetic, its documents and its report, without a cluster."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from bench.cluster.__main__ import write
from bench.cluster.object_store import object_store
from bench.cluster.phases import Instants, event_time, first_event, line_time, own_phases, phases
from bench.cluster.report import Report, cold_table, differences, markdown, verdicts
from bench.cluster.scalers import document
from bench.cluster.trace import TRACE, Piece, gap, in_flight, length, sendings
from bench.readme import newest_result
from bench.rounds import Result

from pilotlight_predictor.storage.fetcher import fetch
from pilotlight_predictor.storage.store_interface import FetchOptions

MACHINE = {
    "cpu": "A CPU", "cores": "2", "memory": "8 GiB", "kernel": "Linux 6", "arch": "x86_64", "python": "3.11.7",
    "load_before": "0.10",
}  # fmt: skip
LOG = """\
2030-01-02T03:04:05.100000001Z {"event":"listening"}
2030-01-02T03:04:05.350000999Z {"event":"ready","phases":{"boot":0.05,"import":0.2,"total":0.35}}
"""


def event(name: str, reason: str, container: str = "") -> dict[str, Any]:
    place = {"fieldPath": f"spec.containers{{{container}}}"} if container else {}
    return {"metadata": {"name": name}, "reason": reason, "involvedObject": place}


def result(**totals: list[float]) -> Result:
    made = Result("2030-01-02T03:04:05+00:00", MACHINE, False, 0.0, 3, benchmark="cluster")
    for name, values in totals.items():
        for value in values:
            made.add(name, {"total": value})
    return made


def played(wanted: list[int], ready: list[int]) -> dict[str, Any]:
    times = {"p50_s": 0.5, "p99_s": 0.6, "longest_s": 2.0}
    return {"wanted": wanted, "ready": ready, "requests": 10, "failed": 0, "failures": [], **times}


def test_the_phases_of_a_start_add_up_to_the_whole() -> None:
    found = phases(Instants(asked=10.0, created=10.1, scheduled=10.15, started=10.8, ready=11.2, answered=11.5))
    assert found.pop("total") == pytest.approx(1.5)
    assert sum(found.values()) == pytest.approx(1.5)
    assert found["server"] == pytest.approx(0.4)


def test_an_event_tells_its_nanosecond_by_its_name() -> None:
    nanoseconds = 1_893_553_445_123_456_789
    assert event_time(event(f"iris-xyz12.{nanoseconds:x}", "Started")) == pytest.approx(nanoseconds / 1e9, abs=1e-6)
    with pytest.raises(ValueError, match="does not end in its time"):
        event_time(event("iris-xyz12", "Started"))


def test_the_start_of_one_container_is_not_taken_for_that_of_another() -> None:
    first, second = 1_893_553_445_000_000_000, 1_893_553_446_000_000_000
    events = [event(f"p.{first:x}", "Started", "queue-proxy"), event(f"p.{second:x}", "Started", "server")]
    assert first_event(events, "Started", "server") == pytest.approx(second / 1e9)
    assert first_event(events, "Started") == pytest.approx(first / 1e9)
    assert first_event(events, "Scheduled") is None


def test_a_log_with_timestamps_tells_when_a_line_was_written_and_what_we_said_of_our_start() -> None:
    ready, listening = line_time(LOG, re.compile('"ready"')), line_time(LOG, re.compile('"listening"'))
    assert ready is not None
    assert listening is not None
    assert ready - listening == pytest.approx(0.25, abs=1e-5)
    assert line_time(LOG, re.compile("Uvicorn")) is None
    assert own_phases(LOG) == {"own.boot": 0.05, "own.import": 0.2}


def test_a_trace_sends_as_many_requests_as_it_wants_in_flight() -> None:
    trace = (Piece("idle", 2, 0, 0), Piece("ramp", 4, 0, 8), Piece("plateau", 4, 8, 8))
    assert in_flight(trace, 1.0) == 0
    assert in_flight(trace, 4.0) == 4
    assert in_flight(trace, 99.0) == 0
    times = list(sendings(trace, service_s=0.5))
    assert min(times) > 2
    assert len(times) == pytest.approx((4 * 4 + 4 * 8) / 0.5, abs=2)
    assert sum(time >= 6 for time in times) == pytest.approx(4 * 8 / 0.5, abs=2)


def test_the_trace_of_the_benchmark_begins_and_ends_idle_and_takes_about_three_minutes() -> None:
    assert (TRACE[0].end, TRACE[-1].end) == (0, 0)
    assert 150 <= length(TRACE) <= 210


def test_scalers_are_apart_by_the_mean_of_their_differences() -> None:
    assert gap([0, 2, 4], [0, 1, 2]) == pytest.approx(1.0)
    assert gap([], [1]) == 0
    both = {"local-knative": played([0, 2], [0, 1]), "knative": played([1, 2], [0, 2])}
    assert differences(both) == {"wanted": 0.5, "ready": 0.5}


@pytest.mark.parametrize("mode", ["knative", "keda"])
def test_cluster_and_machine_get_the_same_document_but_for_where_the_model_lies(mode: str) -> None:
    here, there = (document(mode, "same", mounted=mounted)["spec"]["predictor"] for mounted in (False, True))
    assert there.pop("volumes")
    assert there["model"].pop("volumeMounts")
    assert here == there


def test_what_was_promised_is_said_with_what_came_of_it() -> None:
    kept = verdicts(result(pilotlight=[1.0, 1.1, 1.2], kserve=[2.4], static=[0.9]))
    assert kept == [
        "Ours less the static server: +0.20 s, target: at most 0.25",
        "Ours as a share of KServe's: 0.46, target: at most 0.50",
        "The static server as a share of KServe's: 0.38; nothing can start sooner here",
    ]
    *missed, _ = verdicts(result(pilotlight=[1.5], kserve=[2.4], static=[0.9]))
    assert all(line.endswith("(missed)") for line in missed)
    assert verdicts(result(pilotlight=[1.5])) == []


def test_medians_come_with_quartiles() -> None:
    lines = cold_table(result(pilotlight=[1.0, 2.0, 3.0, 4.0, 5.0], static=[0.5])).splitlines()
    assert "| **request → first byte** | 3.00 (2.00–4.00) | 0.50 (0.50–0.50) |" in lines
    assert lines[-1] == "| starts | 5 | 1 |"


def test_the_files_have_the_series_and_the_readme_goes_on_showing_the_peers(tmp_path: Path) -> None:
    both = {"local-keda": played([0, 1], [0, 1]), "keda": played([0, 2], [0, 1])}
    report = Report(result(pilotlight=[1.0], kserve=[2.4], static=[0.9]), {"keda": both})
    stem = write(report, tmp_path)
    kept = json.loads(stem.with_suffix(".json").read_text())
    assert kept["scaling"]["keda"]["keda"]["wanted"] == [0, 2]
    assert kept["differences"] == {"keda": {"wanted": 0.5, "ready": 0.0}}
    assert "replicas wanted" in stem.with_suffix(".svg").read_text()
    assert f"({stem.name}.svg)" in stem.with_suffix(".md").read_text() == markdown(report, f"{stem.name}.svg")
    (tmp_path / "2029-peers.json").write_text('{"benchmark": "peers", "date": "2029"}')
    assert newest_result(tmp_path, "peers").name == "2029-peers.json"


def test_the_figures_of_the_controller_are_a_table_of_the_report() -> None:
    report = Report(result(), controller={"services": 200, "apply_s": 81.5})
    assert "| InferenceServices | 200 |\n| applied: seconds until all are ready | 81.5 |" in markdown(report, "x.svg")
    assert report.to_dict()["controller"]["services"] == 200


def test_a_run_of_some_cases_adds_to_the_earlier_ones_of_its_day(tmp_path: Path) -> None:
    drain = {"knative": {"draining": [31.0, 30.0, 33.0], "holding": [30.5], "zero": [0.7]}}
    write(Report(result(pilotlight=[1.0]), drain=drain, controller={"services": 10}), tmp_path)
    stem = write(
        Report(result(), model_cache={"local": {"total": [3.0], "load": [1.5]}}, controller={"services": 200}), tmp_path
    )
    kept = json.loads(stem.with_suffix(".json").read_text())
    assert (kept["drain"], kept["controller"]) == (drain, {"services": 200})
    assert kept["samples"] == {"pilotlight": {"total": [1.0]}}
    text = stem.with_suffix(".md").read_text()
    assert "| Knative | 31.0 (30.0–33.0) | 30.5 (30.5–30.5) | 0.7 (0.7–0.7) |  |" in text
    assert "| LocalModelCache | 3.0 (3.0–3.0) |  |  | 1.5 (1.5–1.5) |" in text


def test_the_stand_in_for_s3_serves_what_the_predictor_fetches_at_its_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * (5 << 12))
    with object_store("127.0.0.1", {"/models/large/model.bin": tmp_path / "model.bin"}, bytes_s=5 << 20) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        begin = time.monotonic()
        there = fetch("s3://models/large", tmp_path / "there", options=FetchOptions(concurrency=2))
    assert time.monotonic() - begin > 0.75, "5 MiB at 5 MiB/s, of which the first leaves at once"
    assert (there / "model.bin").read_bytes() == (tmp_path / "model.bin").read_bytes()

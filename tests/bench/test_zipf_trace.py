"""Arrivals by a Zipf distribution, what a replay reports of them, and the models of a server that loads on demand."""

import threading
import time
from collections import Counter

import pytest
from bench.gpu.zipf_trace import Answer, Arrival, LoadedModels, least_recently_used, percentile, replay, summary, zipf

NAMES = [f"m{index:02}" for index in range(24)]


def test_arrivals_follow_their_rate_and_the_rank_of_models() -> None:
    trace = zipf(NAMES, rate=50, seconds=400, seed=3)
    counts = Counter(each.model for each in trace)
    assert len(trace) == pytest.approx(20_000, rel=0.05)
    assert counts["m00"] / counts["m01"] == pytest.approx(2, rel=0.1)
    assert counts["m00"] / len(trace) == pytest.approx(1 / 3.776, rel=0.05)
    assert [each.at for each in trace] == sorted(each.at for each in trace)
    assert zipf(NAMES, 50, 100, 3) == [each for each in trace if each.at < 100]


def test_a_replay_sends_at_the_time_of_the_trace_and_counts_what_waits_in_the_client() -> None:
    def ask(name: str) -> tuple[str, bool]:
        if name == "broken":
            raise ConnectionResetError
        time.sleep(0.1)
        return "200", name == "slow"

    trace = [Arrival(0.0, "slow"), Arrival(0.01, "quick"), Arrival(0.02, "broken")]
    answers = replay(trace, ask)
    assert [(each.arrival, each.status, each.waited) for each in answers] == [
        (trace[0], "200", True), (trace[1], "200", False), (trace[2], "ConnectionResetError", True),
    ]  # fmt: skip
    assert answers[0].first_byte_s >= 0.1
    late = replay([Arrival(-1.0, "quick")], ask)
    assert late[0].first_byte_s >= 1.1


def test_a_summary_has_failed_requests_and_those_that_waited() -> None:
    answers = [Answer(Arrival(float(index), "a"), "200", 0.01 * index, index > 94) for index in range(1, 100)]
    answers.append(Answer(Arrival(100.0, "a"), "503", 30.0, True))
    found = summary(answers)
    assert (found["requests"], found["failed"], found["share_waited"]) == (100, 1, 0.06)
    assert found["first_byte_s"] == pytest.approx({"p50": 0.5, "p95": 0.95, "p99": 0.99, "longest": 30.0})
    assert found["not_waited_s"]["longest"] == pytest.approx(0.94)
    assert found["responses_per_s"] == pytest.approx(99 / 130)
    assert summary([]) == {"requests": 0}


@pytest.mark.parametrize(("percent", "value"), [(1, 1), (50, 2), (51, 3), (75, 3), (76, 4), (100, 4)])
def test_percentiles_are_those_of_the_nearest_rank(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4], percent) == value


def test_the_least_recently_used_models_leave_but_none_with_requests() -> None:
    loaded = {"a": 3.0, "b": 1.0, "c": 2.0}
    assert least_recently_used(loaded, (), 3) == []
    assert least_recently_used(loaded, (), 1) == ["b", "c"]
    assert least_recently_used(loaded, ("b",), 2) == ["c"]
    assert least_recently_used(loaded, ("a", "b", "c"), 2) is None


def test_a_server_never_holds_more_models_than_it_has_room_for() -> None:
    loaded: set[str] = set()
    problems: list[str] = []
    gate = threading.Lock()

    def load(name: str) -> None:
        with gate:
            loaded.add(name)
            problems.extend(["too many"] * (len(loaded) > 3))

    models = LoadedModels(3, load, loaded.remove)

    def client(seed: int) -> None:
        for each in zipf(NAMES[:8], 1000, 0.1, seed):
            models.acquire(each.model)
            problems.extend(["not loaded"] * (each.model not in loaded))
            models.release(each.model)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not problems
    assert len(loaded) == 3
    assert models.acquire(sorted(loaded)[0]) is False

"""What was promised is judged from the figures alone, with the measured reason where it is missed."""

import pytest
from bench.promises import PROMISES, Promise, Verdict, promises, verdict
from bench.rounds import Result


def result(**servers: dict[str, float]) -> Result:
    made = Result("2030-01-02", {}, True, 3.0, 3)
    for server, figures in servers.items():
        made.add(server, figures)
    return made


def judged(label: str, made: Result) -> Verdict:
    return verdict(_promise(label), made)


def _promise(label: str) -> Promise:
    return next(promise for promise in PROMISES if promise.label == label)


@pytest.mark.parametrize(("ours", "word"), [(46_000.0, "met"), (44_000.0, "missed")])
def test_a_rate_is_held_against_a_multiple_of_the_peers(ours: float, word: str) -> None:
    made = result(pilotlight={"json.c32.rps": ours}, kserve={"json.c32.rps": 1000.0})
    assert judged("JSON, 32 connections: requests/s, vs KServe", made).word == word


@pytest.mark.parametrize(("ours", "word"), [(0.9, "met"), (1.1, "missed")])
def test_a_time_is_held_against_a_part_of_the_peers(ours: float, word: str) -> None:
    made = result(pilotlight={"json.c32.p99_ms": ours}, triton={"json.c32.p99_ms": 2.0})
    assert judged("JSON, 32 connections: p99, vs Triton", made).word == word


def test_what_is_missed_tells_what_a_request_costs_either_side() -> None:
    ours = {"json.c1.rps": 10_000.0, "json.c1.server_cpu": 0.5, "json.c1.load_cpu": 0.25}
    made = result(pilotlight=ours, triton={"json.c1.rps": 5_000.0, "json.c1.server_cpu": 1.0})
    found = judged("JSON, 1 connection: requests/s, vs Triton", made)
    assert found.value == 2
    assert found.reason == (
        "a request costs 50 µs of server CPU, with Triton 200 µs; "
        "the server used 50% of its core, the load 25% of another"
    )


def test_large_tensors_are_held_against_a_program_that_only_reads() -> None:
    figures = {"big.c1.mb_s": 1000.0, "big.sink_mb_s": 2000.0, "big.sink_percent": 50.0, "big.copy_mb_s": 8000.0}
    found = judged(
        "10 MB tensor: MB/s, vs a program that only reads",
        result(pilotlight={**figures, "big.c1.server_cpu": 0.8}),
    )
    assert found.word == "missed"
    assert "1,000 of 2,000 MB/s, with 80% of the core used" in found.reason


def test_a_crowd_is_told_by_how_long_all_of_it_takes() -> None:
    figures = {"crowd.factor": 20.0, "crowd.flood_rps": 25_600.0, "crowd.alone_p99_ms": 0.5}
    found = judged("1 connection, 256 others: p99, vs alone", result(pilotlight=figures))
    assert found.reason == "one request from each of the 256 others takes 10.0 ms; alone, its p99 is 0.50 ms"


def test_what_is_missed_without_a_measured_reason_says_so() -> None:
    found = judged("exec → model ready", result(pilotlight={"start.ready_s": 0.4}))
    assert (found.word, found.reason) == ("missed", "no reason measured")


def test_what_only_had_to_be_shown_is_neither_reached_nor_missed() -> None:
    made = result(pilotlight={"grpc.r1c1.rps": 1.0}, triton={"grpc.r1c1.rps": 2.0})
    assert judged("gRPC, 1 row, 1 connection: calls/s, vs Triton", made).word == "reported"


def test_a_run_without_a_figure_says_so_for_each_promise() -> None:
    lines = promises(result()).splitlines()[2:]
    assert len(lines) == len(PROMISES)
    assert all(line.endswith("| – | not measured |") for line in lines)

import pytest
from bench.load import BenchError, Load, parse

OUTPUT = """Running 2s test @ http://127.0.0.1:8080/v2/models/iris/infer
  1 threads and 32 connections
Requests/sec:  10000.00
RESULT {"requests": 20000, "duration_us": 2000000, "p50_us": 1500, "p99_us": 9250, "status": 3, "connect": 1, "read": 2, "write": 0, "timeout": 4}
"""  # noqa: E501


def test_percentiles_come_from_the_result_line_and_the_rate_counts_good_answers_only() -> None:
    assert parse(OUTPUT) == Load(rps=9_998.5, p50_ms=1.5, p99_ms=9.25, errors=10, answers=19_997)


def test_output_without_a_result_passes_on_what_wrk_said() -> None:
    with pytest.raises(BenchError, match="unable to connect"):
        parse("unable to connect to 127.0.0.1:1 Connection refused\n")

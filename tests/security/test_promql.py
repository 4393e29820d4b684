"""Queries of documents that a parser in native code reads: a crash there would end the controller for everybody."""

import math
import subprocess
import sys
from time import process_time

import pytest

from pilotlight.contract import LABEL_SERVICE, METRIC_REPLICAS
from pilotlight.prometheus.promql import MAX_OPERATORS
from pilotlight.targets.local.history.points import RESOLUTIONS, Point, Run, Series
from pilotlight.targets.local.history.range_query import BUCKET, evaluate
from pilotlight.targets.local.scaling.promql.evaluator import Evaluator, supported

pytestmark = pytest.mark.security
BRACKETS = '"(" * 20_000 + "1" + ")" * 20_000'
PARSE = """
from pilotlight.prometheus import promql
try:
    promql.parse({query})
except promql.InvalidQuery as error:
    print("refused:", error)
"""
# What ends a comment or a text, so that what follows is no part of it.
BEFORE = [
    r"",
    r"#\r",
    r"#\n",
    r"# \"\n",
    r"#\r\n",
    r"x{a='\"'} + ",
    r"`\\` + ",
    r"\"\\\\\" + ",
    r"#\u2028\n",
    r"#\x0b\r",
]


@pytest.mark.parametrize("before", BEFORE)
def test_brackets_beyond_the_stack_are_refused_wherever_they_hide(before: str) -> None:
    code = PARSE.format(query=f'"{before}" + {BRACKETS}')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout[:9]) == (0, "refused: "), done.stderr


# While Python's `re` matches, no other thread runs: one of these would stop the control process for everybody.
@pytest.mark.parametrize(
    "expression", ["(a|a)*b", "(a+)+b", "(.*)*b", "(a?){40}a{40}b", "(a|a)" * 40 + "b", ".*.*.*.*.*.*b", "[](](a|a)*b"]
)
def test_a_matcher_that_could_try_forever_is_refused(expression: str) -> None:
    reason = supported(f'sum(up{{service=~"{expression}"}})')
    assert reason is not None
    assert "is not supported" in reason


@pytest.mark.parametrize(
    "expression", [".+", "(?i).*canary.*", "iris(-canary)?", "5..", "(?:a|b)-[0-9a-f]{8}", "a.*|b.*|c.*"]
)
def test_matchers_of_dashboards_are_evaluated(expression: str) -> None:
    assert supported(f'sum(up{{service=~"{expression}"}})') is None


@pytest.mark.parametrize("query", ['"\\' * 500_000, "up{" + 'a="",' * 200_000 + "}", 'up{a=~"' + "(" * 100_000 + '"}'])
def test_a_query_of_a_megabyte_is_refused_unread(query: str) -> None:
    began = process_time()
    assert "more than 4000 characters" in (supported(query) or "")
    assert process_time() - began < 1.0


def test_the_deepest_query_is_read_in_a_moment() -> None:
    began = process_time()
    assert supported("up" + " or up" * MAX_OPERATORS) is None
    assert process_time() - began < 0.8
    assert "operators and brackets" in (supported("up" + " or up" * (MAX_OPERATORS + 1)) or "")


def test_a_query_over_thousands_of_deleted_services_is_refused_and_one_over_a_few_answered() -> None:
    """Loaded, they would be 25 million samples."""
    samples = {Series("default", f"s{n}", "s", f"s{n}-1"): Point(1, 0, 0, (1,) * 15, ready=1) for n in range(6000)}
    day, window = dict.fromkeys(range(0, 86400, 300), samples), Run(0, 86400)
    began = process_time()
    whole = evaluate(f"sum(rate({BUCKET}[1h]))", day, RESOLUTIONS[-1], window, [window])
    few = evaluate(f'sum({METRIC_REPLICAS}{{{LABEL_SERVICE}=~"s1[0-4]"}})', day, RESOLUTIONS[-1], window, [window])
    assert ("6000 series" in whole.reason, len(few.series), few.reason) == (True, 1, "")
    assert process_time() - began < 3.0


def test_no_arithmetic_of_a_query_ends_the_evaluation_of_the_others() -> None:
    assert math.isnan(Evaluator().evaluate("(1 / 0) % 2", 0.0) or 0.0)

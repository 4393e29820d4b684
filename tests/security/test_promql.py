"""Queries of documents that a parser in native code reads: a crash there would end the controller for everybody."""

import subprocess
import sys

import pytest

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

"""What is printed on a terminal: no text of a model or client makes the terminal obey it."""

import os
import pty
import sys

import pytest

from platformctl import output

TITLE, CLEAR, RED = "\x1b]0;owned\x07", "\x1b[2J", "\x1b[31mred\x1b[0m"


@pytest.mark.parametrize("err", [False, True], ids=["stdout", "stderr"])
def test_a_terminal_gets_colours_and_no_other_control_sequence(monkeypatch: pytest.MonkeyPatch, err: bool) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr" if err else "stdout", terminal)
        (output.note if err else output.stream_line)(f"a{TITLE}b{CLEAR}c{RED}d\x9b2Je\r\tf")
        terminal.flush()
        text = os.read(ours, 1000).decode()
    os.close(ours)
    assert text == "a\\u001b]0;owned\\u0007b\\u001b[2Jc\x1b[31mred\x1b[0md\\u009b2Je\\u000d\tf\r\n"


def test_a_file_gets_every_byte(capsys: pytest.CaptureFixture[str]) -> None:
    output.stream_line(f"a{TITLE}b")
    assert capsys.readouterr().out == f"a{TITLE}b\n"

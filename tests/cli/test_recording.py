"""The terminal session of the README: every line is in the picture, and its commands still exist."""

import re
from html import unescape
from xml.etree import ElementTree

import click
from tests.cli.recording import COLUMNS, PICTURE, Line, drawn, wrapped
from tests.cli.test_pages import flags

from platformctl import main

LARGEST = 200_000


def test_a_picture_holds_every_line_of_its_session() -> None:
    lines = [Line(0.0, "$ platformctl infer iris --data '<[1]>'", "cmd"), Line(0.5, "error: no & yes"), Line(0.6, "")]
    texts = ElementTree.fromstring(drawn(lines)).findall("{http://www.w3.org/2000/svg}text")
    assert ["".join(text.itertext()) for text in texts] == [line.text for line in lines]


def test_long_lines_are_cut_as_a_terminal_cuts_them() -> None:
    assert list(wrapped("x" * (COLUMNS + 1))) == ["x" * COLUMNS, "x"]
    assert list(wrapped("")) == [""]


def test_the_commands_of_the_picture_exist() -> None:
    picture = PICTURE.read_text()
    assert len(picture) < LARGEST
    commands = re.findall(r"\$</tspan> platformctl (.*)</text>", picture)
    assert [command.split()[0] for command in commands] == ["deploy", "infer", "canary", "list", "infer"]
    for command in map(unescape, commands):
        verb = main.platformctl.get_command(click.Context(main.platformctl), command.split()[0])
        assert verb is not None
        assert {word for word in command.split() if word.startswith("--")} <= flags(verb)

"""Usage and options in docs/reference/cli.md, from click; everything else on the page is written by hand.

A block `<!-- options: VERB -->` … `<!-- end -->` belongs to one verb, `<!-- options -->` … to the options that many
verbs share.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Final

import click
from tests.serving import ROOT

from platformctl import main

PAGE: Final = ROOT / "docs/reference/cli.md"
SHARED: Final = 5  # an option that this many verbs have, in the same words, stands in the common table
REPEATED: Final = 4  # this many options of one earlier verb are a reference to it
_BLOCK: Final = re.compile(r"(<!-- options(?:: ([a-z -]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
Row = tuple[str, str]


def page() -> str:
    """Return the page with its blocks filled."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{block(match[2] or '')}\n{match[3]}", PAGE.read_text("utf-8"))


def block(verb: str) -> str:
    if not verb:
        return _table(sorted(shared()))
    command = find(verb)
    elsewhere = references(verb)
    own = [row for row in rows(command) if row not in shared() and row not in elsewhere]
    parts = [f"```text\n{usage(verb, command)}\n```\n"]
    parts += [f"Example: `{found[1]}`\n"] if (found := re.search(r"Example: (.*)", command.help or "")) else []
    parts += [_table(own)] if own else []
    parts += [f"Output formats: {formats(command)}.\n"] if formats(command) else []
    links = {row: "[Common options](#common-options)" for row in rows(command) if row in shared()}
    links |= {row: f"As for [{first}](#{first.replace(' ', '-')})" for row, first in elsewhere.items()}
    for link in dict.fromkeys(links.values()):
        parts += [f"{link}: {', '.join(_name(row) for row in rows(command) if links.get(row) == link)}.\n"]
    return "\n".join(parts)


def references(verb: str) -> dict[Row, str]:
    """Options that an earlier verb explains, with that verb; a few are repeated instead."""
    firsts = {row: first_with(row) for row in rows(find(verb)) if row not in shared()}
    counts = Counter(firsts.values())
    return {row: first for row, first in firsts.items() if first != verb and counts[first] >= REPEATED}


@cache
def first_with(row: Row) -> str:
    return next(verb for verb, command in commands() if row in rows(command))


def missing() -> list[str]:
    """Verbs without a block; those that pass their words to the predictor need none."""
    present = {match[2] for match in _BLOCK.finditer(PAGE.read_text("utf-8"))}
    own = [verb for verb, command in commands() if not command.context_settings.get("ignore_unknown_options")]
    return [verb for verb in own if verb not in present]


def commands(group: click.Command = main.platformctl, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every verb by its words: `deploy`, `canary`, `canary start`."""
    if isinstance(group, click.Group):
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            assert command is not None
            yield f"{path} {name}".strip(), command
            yield from commands(command, f"{path} {name}".strip())


def find(verb: str) -> click.Command:
    return dict(commands())[verb]


def usage(verb: str, command: click.Command) -> str:
    return " ".join([f"platformctl {verb}", *command.collect_usage_pieces(click.Context(command))])


def rows(command: click.Command) -> list[Row]:
    """Options with their help; `-o` and `--help` are left out."""
    context = click.Context(command)
    options = [each for each in command.params if isinstance(each, click.Option) and "--output" not in each.opts]
    records = [record for each in options if (record := each.get_help_record(context))]
    return [(name, text.replace("[required]", "").strip()) for name, text in records]


def formats(command: click.Command) -> str:
    output = next((each for each in command.params if "--output" in each.opts), None)
    return ", ".join(f"`{name}`" for name in getattr(output.type, "choices", ())) if output else ""


@cache
def shared() -> frozenset[Row]:
    counts = Counter(row for _, command in commands() for row in rows(command))
    return frozenset(row for row, count in counts.items() if count >= SHARED)


def _name(row: Row) -> str:
    return f"`{re.findall(r'--[a-z-]+', row[0])[0]}`"


def _table(options: list[Row]) -> str:
    lines = [f"| `{_cell(name)}` | {_cell(text)} |\n" for name, text in options]
    return f"| option | meaning |\n|---|---|\n{''.join(lines)}"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")

"""The flags of `canary start` that say what a canary must prove: the keys of a document's `spec.canary`.

`@canary_options.options` gives a verb one argument, `policy: Written`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pilotlight.errors import UsageError

if TYPE_CHECKING:
    from pilotlight.canary.model import Policy


@dataclass(frozen=True, slots=True)
class Written:
    """By key, only what was typed."""

    flags: Mapping[str, Any]

    def over(self, annotations: Mapping[str, str]) -> "Policy":
        """What was typed wins, key by key, over what the document says."""
        from pilotlight.canary.block import policy_of, read_block
        from pilotlight.names import ANNOTATION_CANARY

        block = read_block(annotations[ANNOTATION_CANARY]) if ANNOTATION_CANARY in annotations else {}
        return policy_of({**block, **self.flags})

    def refuse_with_percent(self) -> None:
        if self.flags:
            key = next(iter(self.flags))
            message = f"--{key} is for a canary that judges itself, --percent for one that somebody else judges"
            raise UsageError(message, "leave out one of them")


# Key, what it takes, and what it says; those that may be repeated end in "...".
FLAGS: Final = (
    ("steps", "PERCENT,…", "Shares of the requests, one after the other. [default: 5,25,50,100]"),
    ("bake", "DURATION", "At each step, at least. [default: 2m]"),
    ("interval", "DURATION", "Between two measurements. [default: 15s]"),
    ("check", "CHECK...", "p99_ms<300, error_rate<1%, mean_ms, rps>5, …; repeatable."),
    ("promql", "NAME=QUERY...", "A check of your own, with --max or --min; repeatable."),
    ("max", "[NAME=]NUMBER...", "What the query may give at most; of several, by name."),
    ("min", "[NAME=]NUMBER...", "What the query must give at least; of several, by name."),
    ("example", "JSON|@FILE", "The body that probes send. [default: zeros, by the model's metadata]"),
    ("keep-stable", "DURATION", "For which the revision before stays after the promotion. [default: 30s]"),
    ("deadline", "DURATION", "For all steps together, pauses aside. [default: 1h]"),
)
CHOICES: Final = (
    ("compare", ("baseline",), "Hold the new revision against the one that serves; without any check, the default."),
    ("on-no-data", ("probe", "pause", "fail", "pass"), "When too few requests come. [default: probe, then pause]"),
    ("on-inconclusive", ("pause", "fail", "pass"), "When the data do not say. [default: pause]"),
)
NUMBERS: Final = (
    ("ratio", float, "How much worse than the baseline is worse. [default: 1.2]"),
    ("min-requests", int, "Of the new revision before a measurement counts. [default: 50]"),
    ("failure-limit", int, "Failed measurements in a row that end it. [default: 2]"),
    ("inconclusive-limit", int, "Undecided ones in a row before --on-inconclusive holds. [default: 120]"),
)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    keys = [key for key, *_ in (*FLAGS, *CHOICES, *NUMBERS)] + ["auto-promote", "dry-run-checks"]

    @wraps(command)
    def called(**typed: Any) -> Any:
        found = {key: typed.pop(f"canary_{key.replace('-', '_')}") for key in keys}
        given = {key: value for key, value in found.items() if value is not None and value != ()}
        if str(given.get("example", "")).startswith("@"):
            given["example"] = _content(given["example"][1:])
        return command(policy=Written(given), **typed)

    made = called
    for option in reversed(list(_made())):
        made = option(made)
    return made


def _made() -> "Sequence[Callable[[Callable[..., Any]], Callable[..., Any]]]":
    made = []
    for key, metavar, told in FLAGS:
        many = metavar.endswith("...")
        made.append(click.option(f"--{key}", _name(key), multiple=many, metavar=metavar.removesuffix("..."), help=told))
    made += [click.option(f"--{key}", _name(key), type=click.Choice(kinds), help=told) for key, kinds, told in CHOICES]
    made += [click.option(f"--{key}", _name(key), type=kind, metavar="N", help=told) for key, kind, told in NUMBERS]
    promoting = "Whether the last step is taken without asking. [default: auto-promote]"
    made.append(click.option("--auto-promote/--manual", _name("auto-promote"), default=None, help=promoting))
    trying = "Measure and show all checks, but let none of them stop it: to try them out."
    made.append(click.option("--dry-run-checks", _name("dry-run-checks"), is_flag=True, default=None, help=trying))
    return made


def _content(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--example: {file} cannot be read: {error}") from None


def _name(key: str) -> str:
    """Apart from the options of other groups, which have a --timeout and a --file."""
    return f"canary_{key.replace('-', '_')}"

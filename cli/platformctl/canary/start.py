"""Start of a judged canary by a command: flags, start, following it.

Used by `canary start` and by every `deploy` of a document that declares a canary or replaces a running one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pilotlight.canaries.start_request import CanaryRequest, CheckedCanary, running_canary, start
from pilotlight.errors import UsageError
from platformctl import output, targets
from platformctl.canary import follow
from platformctl.options import ApplyOptions, warn
from platformctl.services import rollout, status_views

if TYPE_CHECKING:
    from pilotlight.canaries.canary_state import Canary
    from pilotlight.spec.canary_policy import CanaryPolicy
    from pilotlight.targets.target import Target


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The flags that were given, by key of `spec.canary`."""

    flags: Mapping[str, Any]

    def merged_with(self, annotations: Mapping[str, str]) -> "CanaryPolicy":
        """Return the policy of the document's annotations with the flags on top, key by key."""
        from pilotlight.k8s.names import ANNOTATION_CANARY
        from pilotlight.spec.canary_policy import parse_block, parse_policy

        block = parse_block(annotations[ANNOTATION_CANARY]) if ANNOTATION_CANARY in annotations else {}
        return parse_policy({**block, **self.flags})

    def refuse_with_percent(self) -> None:
        if self.flags:
            key = next(iter(self.flags))
            message = f"--{key} is for a canary with checks, --percent for one without"
            raise UsageError(message, "leave out one of them")


# Key, metavar and help; a metavar that ends in "..." marks a repeatable option.
FLAGS: Final = (
    ("steps", "PERCENT,…", "Percentages of traffic, one after the other. [default: 5,25,50,100]"),
    ("bake", "DURATION", "Min duration of each step. [default: 2m]"),
    ("interval", "DURATION", "Time between two measurements. [default: 15s]"),
    ("check", "CHECK...", "p99_ms<300, error_rate<1%, mean_ms, rps>5, …; repeatable."),
    ("promql", "NAME=QUERY...", "Custom check, with --max or --min; repeatable."),
    ("max", "[NAME=]NUMBER...", "Upper bound of the query; with several queries, by name."),
    ("min", "[NAME=]NUMBER...", "Lower bound of the query; with several queries, by name."),
    ("example", "JSON|@FILE", "Body of probe requests. [default: model.example of the document, else zeros]"),
    ("keep-stable", "DURATION", "How long the old revision stays after the promotion. [default: 30s]"),
    ("deadline", "DURATION", "Max duration of all steps, without pauses. [default: 1h]"),
)
CHOICES: Final = (
    ("compare", ("baseline",), "Compare the new revision with the one that serves. [default without other checks]"),
    (
        "on-no-data",
        ("probe", "pause", "fail", "pass"),
        "Action if there are too few requests. [default: probe, then pause]",
    ),
    ("on-inconclusive", ("pause", "fail", "pass"), "Action if the measurements are undecided. [default: pause]"),
)
NUMBERS: Final = (
    ("ratio", float, "Tolerated ratio to the baseline. [default: 1.2]"),
    ("min-requests", int, "Requests to the new revision before a measurement counts. [default: 50]"),
    ("failure-limit", int, "Failed measurements in a row before a rollback. [default: 2]"),
    ("inconclusive-limit", int, "Undecided measurements in a row before --on-inconclusive applies. [default: 120]"),
)


def policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the keys of a document's `spec.canary` as flags, passed as `policy: PolicyOptions`."""
    keys = [key for key, *_ in (*FLAGS, *CHOICES, *NUMBERS)] + ["auto-promote", "dry-run-checks"]

    @wraps(command)
    def called(**typed: Any) -> Any:
        values = {key: typed.pop(_parameter_name(key)) for key in keys}
        flags = {key: value for key, value in values.items() if value is not None and value != ()}
        if str(flags.get("example", "")).startswith("@"):
            file = flags["example"][1:]
            try:
                flags["example"] = Path(file).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"--example: {file} cannot be read: {error}") from None
        return command(policy=PolicyOptions(flags), **typed)

    return targets.add_options(called, _click_options())


def _click_options() -> Sequence[targets.Decorator]:
    def option(key: str, help_text: str, flag: str = "", **settings: Any) -> targets.Decorator:
        return click.option(flag or f"--{key}", _parameter_name(key), help=help_text, **settings)

    promote = "Whether the last step needs `canary promote`. [default: auto-promote]"
    dry_run = "Measure and show all checks, but ignore their verdicts."
    return [
        *(
            option(key, text, multiple=metavar.endswith("..."), metavar=metavar.removesuffix("..."))
            for key, metavar, text in FLAGS
        ),
        *(option(key, text, type=click.Choice(choices)) for key, choices, text in CHOICES),
        *(option(key, text, type=kind, metavar="N") for key, kind, text in NUMBERS),
        option("auto-promote", promote, "--auto-promote/--manual", default=None),
        option("dry-run-checks", dry_run, is_flag=True, default=None),
    ]


def _parameter_name(key: str) -> str:
    """Return a prefixed name: other option groups have a `timeout` and a `file` too."""
    return f"canary_{key.replace('-', '_')}"


def run(request: CanaryRequest, target: "Target", apply_options: ApplyOptions) -> None:
    """Start the canary and follow it with --wait. A dry run ends with the plan of its first release."""
    if apply_options.dry_run:
        rollout.run(request.at_zero_percent(), target, apply_options, strict=request.strict)
        return
    ticker, before = output.ProgressLog(), running_canary(target, request.key)
    canary = _start(request, target, ticker, show_diff=apply_options.diff)
    if before is not None and before.revision != canary.revision:
        output.note(f"took the place of the canary that ran: {before.revision}")
    if apply_options.wait:
        ended = follow.follow(target, request.key, ticker, apply_options.timeout, wait_through_pauses=False)
        if ended.phase != "Paused":
            ticker.log(ended.phase, ended.revision)
    else:
        output.note(follow.describe_unattended(target, request.key))
    status_views.show([target.status(request.key)], one=False, default="url")


def _start(request: CanaryRequest, target: "Target", ticker: output.ProgressLog, *, show_diff: bool) -> "Canary":
    def show(checked: CheckedCanary) -> None:
        warn(checked.warnings, request.strict)
        if show_diff:
            rollout.note_changes([checked.prepared], target)

    canary, release = start(request, target, show, output.note)
    ticker.log("Applied", f"{canary.revision} (generation {release.generation})")
    return canary

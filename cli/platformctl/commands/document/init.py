"""`platformctl init`: a commented service.yaml for a model with a recommended mode.

On a terminal it prompts for what no flag says; elsewhere the defaults are used.
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from pilotlight.catalogue.catalogue import builtin
from pilotlight.errors import NotFound
from pilotlight.plan.support.target_support import TARGETS
from pilotlight.wire.messages import suggestion
from pilotlight.wire.model_formats import split_object
from platformctl import output
from platformctl.manifest_files import no_such_file
from platformctl.services import model_argument, scaffold


@click.command()
@click.argument("model", required=False)
@click.option("--name", help="Name of the service (default: from the model).")
@click.option("--format", "model_format", help="onnx, sklearn, huggingface, … (default: detected).")
@click.option("--load", type=click.Choice(get_args(scaffold.Load)), help="Whether the load is steady or varies.")
@click.option(
    "--cold-starts/--no-cold-starts", default=None, help="Whether a first request may wait for the model to load."
)
@click.option("--nodes", type=click.IntRange(1), help="Nodes of one replica.")
@click.option("--gpus", type=click.IntRange(0), help="GPUs of one pod.")
@click.option("--latency", type=click.FloatRange(0), help="Latency objective in seconds, to scale by.")
@click.option(
    "--mode", type=click.Choice(get_args(scaffold.Mode)), help="Deployment mode, instead of the recommended one."
)
@click.option("--to", "-f", "file", default="service.yaml", show_default=True, help="File to write; - is stdout.")
@click.option(
    "--target", default="local", show_default=True, type=click.Choice(TARGETS), envvar="PILOTLIGHT_TARGET",
    help="Target that it is written for. [env: PILOTLIGHT_TARGET]",
)  # fmt: skip
@click.option("--trust-pickle", is_flag=True, help="Allow the model's pickles, pinned by SHA-256.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def init(
    model: str | None, name: str | None, model_format: str | None, mode: scaffold.Mode | None, file: str, target: str,
    trust_pickle: bool, force: bool, **typed: Any,
) -> None:  # fmt: skip
    """Write a commented service.yaml for MODEL: a path, a URI, or the name of a known model.

    Example: platformctl init model.onnx
    """
    if file != "-" and Path(file).exists() and not force:
        raise click.UsageError(f"{file} exists; choose another with --to, or overwrite it with --force")
    word = model or prompt_for("Which model (a path, a URI, or the name of a known one)?", "")
    known = describe_model(word, model_format, trust_pickle, file, target)
    known = replace(known, name=name or known.name)
    answers = collect_answers(typed, known)
    recommended, reason = scaffold.recommend(answers)
    chosen = mode or recommended
    check(known, answers, chosen)
    reason_written = reason if chosen == recommended else "as requested"
    text = scaffold.document(known, answers, chosen, reason_written, file, target)
    model_argument.check(text, target)
    if file == "-":
        output.text(text)
    else:
        Path(file).write_text(text, encoding="utf-8")
        output.text(f"{file}\n")
    output.note(f"{recommended} is recommended: {reason}")
    if "://" not in word and (warning := model_argument.pickle_warning(known)):
        output.note(f"{warning}: deploy refuses it until it is pinned")
        output.note("if you trust it: the same command with --trust-pickle --force")
    elif file != "-":
        there = f"-f {shlex.quote(file)}" + ("" if target == "local" else f" --target {target}")
        output.note(f"next: platformctl deploy {there}; what was decided: platformctl explain {there}")


def describe_model(model: str, model_format: str | None, trust_pickle: bool, file: str, target: str) -> scaffold.Model:
    """Inspect the model. A relative path is written relative to the document."""
    if not model:
        raise click.UsageError("no MODEL is given: a path, a URI, or the name of a known model")
    if "://" not in model and not split_object(model)[1] and not Path(model).exists():
        return catalogue_model(model)
    described = model_argument.describe(model, model_format=model_format or "", trust_pickle=trust_pickle)
    output.note(f"{model}: {described.phrase}")
    if note := model_argument.unserved_code(model, described):
        output.note(note)
    described = model_argument.on_target(described, target)
    return replace(described, uri=model_argument.seen_from(described.uri, file))


def catalogue_model(name: str) -> scaffold.Model:
    names = tuple(model.name for model in builtin().models)
    if name in names:
        return scaffold.Model(name, known=name)
    near = suggestion(name, names)
    if not near and ("." in name or "/" in name):
        raise no_such_file(name)
    hint = near or f"; known are {', '.join(names)}"
    raise NotFound(f"{name} is neither a file here nor a URI nor a known model{hint}")


def collect_answers(typed: dict[str, Any], model: scaffold.Model) -> scaffold.Answers:
    """Return the flags, completed by prompts on a terminal, else by defaults."""
    flags = {name: value for name, value in typed.items() if value is not None}
    answers = replace(scaffold.Answers(), **flags)
    if not sys.stdin.isatty():
        return answers
    if "nodes" not in flags:
        answers = replace(answers, nodes=prompt_for("How many nodes does one replica need?", 1))
    if answers.nodes == 1 and "load" not in flags:
        steady = confirm("Is the load steady, with no idle times?", False)
        answers = replace(answers, load="steady" if steady else "variable")
    if answers.nodes == 1 and "cold_starts" not in flags:
        answers = replace(answers, cold_starts=confirm("May a first request wait for the model to load?", True))
    if "gpus" not in flags:
        answers = replace(answers, gpus=prompt_for("How many GPUs does one pod need?", 0))
    if scaffold.recommend(answers)[0] == "raw" and model.ours and "latency" not in flags:
        answers = replace(
            answers, latency=prompt_for("Below how many seconds must most requests stay (0: scale by CPU)?", 0.0)
        )
    return answers


def check(model: scaffold.Model, answers: scaffold.Answers, mode: scaffold.Mode) -> None:
    if mode == "multi-node" and answers.nodes < 2:
        raise click.UsageError("multi-node needs to know how many nodes one replica has: --nodes 2")
    if mode == "multi-node" and not model.known and model.format != "huggingface":
        raise click.UsageError(f"no runtime serves {model.format} on several nodes; --nodes 1, or name a known model")
    if mode == "raw" and answers.latency and not model.ours:
        what = model.known or model.format
        advice = "leave --latency out and write spec.kedaConfig.customPromQuery with a metric of the engine's"
        raise click.UsageError(f"only our own predictor measures latency, and {what} runs on another; {advice}")


def prompt_for(question: str, default: Any) -> Any:
    if not sys.stdin.isatty():
        return default
    return click.prompt(question, default=default, type=type(default), err=True)


def confirm(question: str, default: bool) -> bool:
    return click.confirm(question, default=default, err=True)

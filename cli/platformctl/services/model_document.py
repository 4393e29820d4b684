"""Document of a MODEL, with the options for one: what `deploy MODEL` and `canary start NAME MODEL` share."""

import os
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import click

from pilotlight.contract import trust_pickle_setting
from pilotlight.errors import UsageError
from pilotlight.targets import table
from pilotlight.wire.model_formats import WHOLE_MODULE
from platformctl import output, targets
from platformctl.options import DocumentOptions
from platformctl.services import model_argument, scaffold


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Values of the options for a MODEL."""

    name: str | None
    model_format: str | None
    min_replicas: int | None
    trust_pickle: bool
    save: str | None


model_options: Final = targets.option_group("model_options", ModelOptions, (
    click.option("--name", help="Name of a MODEL's service (default: from the model)."),
    click.option("--format", "model_format", help="Format of a MODEL: onnx, sklearn, … (default: detected)."),
    click.option("--min-replicas", type=click.IntRange(0), help="Min replicas of a MODEL (default: 0, if possible)."),
    click.option("--trust-pickle", is_flag=True, help="Allow a MODEL's pickles, pinned by SHA-256."),
    click.option("--save", type=click.Path(), metavar="FILE", help="Write the document of a MODEL to this file."),
))  # fmt: skip


def refuse_without_model(model_options: ModelOptions, command: str, service: str = "") -> None:
    """Raise UsageError for an option of a MODEL where there is none, but a manifest or a deployed service."""
    count = model_options.min_replicas
    scale = f"platformctl scale {service} --min {count}" if service else f"--set spec.predictor.minReplicas={count}"
    fixes = {"trust_pickle": trust_pickle_setting("FILE=SHA256"), "min_replicas": scale}
    for option, value in asdict(model_options).items():
        if value not in (None, False):
            flag = f"--{option.removeprefix('model_').replace('_', '-')}"
            fix = fixes.get(option, "write it into the document")
            raise UsageError(f"{flag} is for a MODEL: platformctl {command} {flag}", fix)


def with_document(
    word: str, document_options: DocumentOptions, model_options: ModelOptions, command: str = "deploy"
) -> DocumentOptions:
    """Return the options with the document of a model, which --save writes to a file."""
    target, file = document_options.target or targets.LOCAL, model_options.save or "-"
    table.check_name(target)
    if model_options.save == "-":
        message = "--save -: must be a file"
        raise UsageError(message, f"to print the document: platformctl init {shlex.quote(word)} --to -")
    if file != "-" and os.path.exists(file):
        raise UsageError(f"{file} exists; choose another with --save")
    model = model_argument.describe(
        word, model_format=model_options.model_format or "", trust_pickle=model_options.trust_pickle
    )
    output.note(f"{word}: {model.phrase}")
    model = model_argument.on_target(replace(model, name=model_options.name or model.name), target)
    if "://" not in word and (warning := model_argument.pickle_warning(model)):
        line = f"platformctl {command} {shlex.quote(word)} --trust-pickle"
        torch = model.phrase == WHOLE_MODULE
        formats = "as a state dict, TorchScript or .pt2" if torch else "in another format, such as skops or ONNX"
        raise UsageError(warning, f"if you trust it: {line}; else save it {formats}")
    if model_options.save:
        model = replace(model, uri=model_argument.seen_from(model.uri, file))
    elif "://" not in model.uri:
        model = replace(model, uri=os.path.abspath(model.uri))
    mode, reason = scaffold.recommend(scaffold.Answers())
    text = scaffold.document(model, scaffold.Answers(), mode, reason, file, target, names_mode=False)
    if model_options.save:
        Path(file).write_text(text, encoding="utf-8")
        output.note(f"{file}: the manifest; the next time: platformctl deploy -f {shlex.quote(file)}")
    count = model_options.min_replicas
    least = () if count is None else (f"spec.predictor.minReplicas={count}",)
    sets, unsaved = (*least, *document_options.sets), None if model_options.save else text
    return replace(
        document_options, names=(), files=(file,), text=unsaved, origin=f"manifest of {word}", sets=sets
    )  # fmt: skip

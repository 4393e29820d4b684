"""`platformctl deploy`: apply documents to a target and follow progress; prints the URL at the end."""

import os
import re
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pilotlight.canaries.start_request import required_canary
from pilotlight.errors import PlatformError, UsageError
from pilotlight.release import apply as release_apply
from platformctl import options, output, targets
from platformctl.canary import start
from platformctl.services import helm, model_argument, rollout, scaffold
from platformctl.services.model_pins import PinMode

if TYPE_CHECKING:
    from pilotlight.targets.target import Target


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Values of the options for a MODEL."""

    name: str | None
    model_format: str | None
    min_replicas: int | None
    trust_pickle: bool
    save: str | None


model_options: Final = targets.option_group("model_options", ModelOptions, (
    click.option("--name", help="Of a MODEL's service; by default from the model's."),
    click.option("--format", "model_format", help="Of a MODEL: onnx, sklearn, huggingface, …; by default detected."),
    click.option("--min-replicas", type=click.IntRange(0), help="Of a MODEL's service; 0 by default, where possible."),
    click.option("--trust-pickle", is_flag=True, help="Let a MODEL's pickles be loaded: pin their SHA-256."),
    click.option("--save", metavar="FILE", help="Write the document of a MODEL to this file."),
))  # fmt: skip


@click.command()
@click.argument("names", metavar="[MODEL|FILE|NAME]...", nargs=-1)
@options.deploy_options
@model_options
@targets.force_option
@options.apply_options
@click.option(
    "--with", "tool", type=click.Choice(["helm"]), help="Let this program apply and own it: helm, with our chart."
)
@click.option("--no-snapshot", is_flag=True, help="Serve a local model where it is; if it changes, refuse to start.")
@click.option("--reset", is_flag=True, help="Forget what scale and traffic have set by hand.")
@output.formats(*rollout.FORMATS)
def deploy(
    document_options: options.DocumentOptions,
    model_options: ModelOptions,
    apply_options: options.ApplyOptions,
    tool: str | None,
    no_snapshot: bool,
    reset: bool,
) -> None:
    """Deploy a model, documents, or services as they were deployed before.

    MODEL is a file, a folder, a URI such as hf://org/model, or model.py:Class.

    Example: platformctl deploy ./model.onnx
    """
    document_options = _resolve_words(document_options, model_options)
    offline = apply_options.dry_run == "client" and not apply_options.diff and document_options.files
    name = document_options.target or targets.LOCAL
    if document_options.files:
        _check_options(document_options, name)  # before anything is started
    target = None if offline else targets.connect(name)
    if document_options.files:
        _check_target(target)
    read = rollout.request_from_files if document_options.files else rollout.request_from_target
    mode: PinMode = "compare" if apply_options.dry_run else "record" if no_snapshot else "snapshot"
    request = replace(read(document_options, target, mode), reset=reset)
    if tool is None and target is not None:
        request = _start_canaries(request, target, apply_options, document_options.strict)
        if not request.documents.services:
            return
    apply = release_apply.apply if tool is None else helm.apply
    rollout.run(request, target, apply_options, strict=document_options.strict, apply=apply)


def _resolve_words(document_options: options.DocumentOptions, model_options: ModelOptions) -> options.DocumentOptions:
    """Return the options with the documents, or the document of the model, that the words name."""
    words = document_options.names
    kinds = {model_argument.kind_of(word) for word in words} if not document_options.files else set()
    if kinds == {"model"} and len(words) == 1:
        return _with_document(words[0], document_options, model_options)
    if "model" in kinds and model_options.trust_pickle and any(re.search("=[0-9a-fA-F]{64}$", word) for word in words):
        fix = "leave the value out: every pickle of the model is pinned by its SHA-256"
        raise UsageError("--trust-pickle takes no value here", fix)
    for option, value in asdict(model_options).items():
        if value not in (None, False):
            flag = f"--{option.removeprefix('model_').replace('_', '-')}"
            raise UsageError(
                f"{flag} is for a MODEL: platformctl deploy ./model.onnx {flag}", "a document says it itself"
            )
    if kinds == {"documents"}:
        return replace(document_options, names=(), files=words)
    if "model" in kinds or "documents" in kinds:
        raise UsageError("a model is deployed alone, and documents without names of services", "deploy them one by one")
    return document_options


def _with_document(
    word: str, document_options: options.DocumentOptions, model_options: ModelOptions
) -> options.DocumentOptions:
    """Return the options with the document of a model, which --save writes to a file."""
    target, file = document_options.target or targets.LOCAL, model_options.save or "-"
    if file != "-" and os.path.exists(file):
        raise UsageError(f"{file} exists; choose another with --save")
    model = model_argument.describe(
        word, model_format=model_options.model_format or "", trust_pickle=model_options.trust_pickle
    )
    output.note(f"{word}: {model.phrase}")
    model = model_argument.on_target(replace(model, name=model_options.name or model.name), target)
    if model.pickle and model.ours and "://" not in word and not model_options.trust_pickle:
        message = f"{model.pickle} is a pickle, which runs code of its author when it is loaded"
        line = f"platformctl deploy {shlex.quote(word)} --trust-pickle"
        raise UsageError(
            message, f"if you trust it: {line}; else save it in another format, such as skops, safetensors or ONNX"
        )
    model = replace(model, uri=model_argument.seen_from(model.uri, file))
    mode, reason = scaffold.recommend(scaffold.Answers())
    text = scaffold.document(model, scaffold.Answers(), mode, reason, file, target, names_mode=False)
    if model_options.save:
        Path(file).write_text(text, encoding="utf-8")
        output.note(f"{file}: the document, for platformctl deploy {file}")
    count = model_options.min_replicas
    least = () if count is None else (f"spec.predictor.minReplicas={count}",)
    sets = (*least, *document_options.sets)
    return replace(document_options, names=(), files=(file,), text=text if file == "-" else None, sets=sets)


def _check_options(document_options: options.DocumentOptions, target_name: str) -> None:
    """Raise UsageError for missing options of the target, but errors of the documents first."""
    try:
        targets.options_of(target_name, complete=True)
    except UsageError:
        document_options.plan()
        raise


def _check_target(target: "Target | None") -> None:
    """Raise PlatformError for what docker or slurm lacks, before a release is stored."""
    from pilotlight.targets.local.client import LocalTarget

    if not isinstance(target, LocalTarget) or target.name == targets.LOCAL:
        return
    for finding in target.findings():
        if finding.level == "fail":
            raise PlatformError(f"{target.name}: {finding.message}", finding.fix)


def _start_canaries(
    request: release_apply.ReleaseRequest, target: "Target", apply_options: options.ApplyOptions, strict: bool
) -> release_apply.ReleaseRequest:
    """Start services with a canary policy as canaries; return a request for the others."""
    plain = []
    for service in request.documents.services:
        alone = replace(request, documents=replace(request.documents, services=(service,)))
        canary = required_canary(target, alone, strict)
        if canary is None:
            plain.append(service)
        else:
            start.run(canary, target, apply_options)
    return replace(request, documents=replace(request.documents, services=tuple(plain)))

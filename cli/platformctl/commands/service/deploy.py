"""`platformctl deploy`: apply documents to a target and follow progress; prints the URL at the end."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from pilotlight.canaries.start_request import required_canary
from pilotlight.contract import trust_pickle_setting
from pilotlight.errors import PlatformError, UsageError
from pilotlight.release import apply as release_apply
from platformctl import completion, options, output, targets
from platformctl.canary import start
from platformctl.manifest_files import check_exist
from platformctl.services import helm, model_argument, model_document, rollout

if TYPE_CHECKING:
    from pilotlight.release.model_pins import PinMode
    from pilotlight.targets.target import Target

USES: Final = (
    ("platformctl deploy ./model.onnx", "a model: a file, a folder, model.py:Class, or a URI such as hf://org/model"),
    ("platformctl deploy ./service.yaml", "InferenceServices of a file or folder; also -f FILE"),
    ("platformctl deploy iris", "the service iris again, as it was deployed last"),
    ("platformctl deploy --help", "all options"),
)


@click.command()
@click.argument("names", metavar="[MODEL|FILE|NAME]...", nargs=-1, shell_complete=completion.services_or_files)
@options.deploy_options
@model_document.model_options
@targets.force_option
@options.apply_options
@click.option("--with", "tool", type=click.Choice(["helm"]), help="Apply as a Helm release of our chart.")
@click.option(
    "--no-snapshot",
    is_flag=True,
    help="Serve a local model in place, without a copy; replicas refuse to start if it changes.",
)
@click.option("--reset", is_flag=True, help="Remove the overrides of scale and traffic.")
@output.formats(*rollout.FORMATS)
def deploy(
    document_options: options.DocumentOptions,
    model_options: model_document.ModelOptions,
    apply_options: options.ApplyOptions,
    tool: str | None,
    no_snapshot: bool,
    reset: bool,
) -> None:
    """Deploy a model, InferenceServices from files, or a service again as it was deployed last.

    MODEL is a file, a folder, a URI such as hf://org/model, or model.py:Class.

    Example: platformctl deploy ./model.onnx
    """
    if not document_options.names and not document_options.files:
        raise UsageError("deploy needs a MODEL, a FILE or a NAME", "\n".join(output.columns(USES)).lstrip())
    document_options = _resolve_words(document_options, model_options)
    offline = apply_options.dry_run == "client" and not apply_options.diff and document_options.files
    name = document_options.target or targets.LOCAL
    if document_options.files:  # before anything is started
        check_exist(document_options.files)
        _check_options(document_options, name)
    target = None if offline else targets.connect(name)
    if document_options.files:
        _check_target(target)
        document_options = model_document.on_service(document_options, model_options, target)
    read = rollout.request_from_files if document_options.files else rollout.request_from_target
    mode: PinMode = "compare" if apply_options.dry_run else "record" if no_snapshot else "snapshot"
    request = replace(read(document_options, target, mode), reset=reset)
    apply = release_apply.apply if tool is None else helm.apply
    with model_document.advice_of_command(document_options):
        if tool is None and target is not None:
            request = _start_canaries(request, target, apply_options, document_options.strict)
            if not request.documents.services:
                return
        rollout.run(request, target, apply_options, strict=document_options.strict, apply=apply)


def _resolve_words(
    document_options: options.DocumentOptions, model_options: model_document.ModelOptions
) -> options.DocumentOptions:
    """Return the options with the documents, or the document of the model, that the words name."""
    words = document_options.names
    pins = ",".join(word for word in words if re.search("=[0-9a-fA-F]{64}$", word))
    if model_options.trust_pickle and pins:
        fix = f"leave the value out for a MODEL; for a manifest: {trust_pickle_setting(pins)}"
        raise UsageError("--trust-pickle takes no value here", fix)
    kinds = {model_argument.kind_of(word) for word in words} if not document_options.files else set()
    if kinds == {"model"} and len(words) == 1:
        return model_document.with_document(words[0], document_options, model_options)
    model_document.refuse_without_model(model_options, "deploy ./model.onnx", words[0] if kinds == {"name"} else "")
    if kinds == {"documents"}:
        return replace(document_options, names=(), files=words)
    if "model" in kinds or "documents" in kinds:
        raise UsageError("a model is deployed alone, and documents without names of services", "deploy them one by one")
    return document_options


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

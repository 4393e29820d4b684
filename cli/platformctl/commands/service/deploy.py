"""`platformctl deploy`: apply documents to a target and follow progress; prints the URL at the end."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pilotlight.canary.start_request import required_canary
from pilotlight.errors import PlatformError, UsageError
from pilotlight.release import apply as release_apply
from platformctl import options, output, targets
from platformctl.canary import start
from platformctl.services import helm, rollout
from platformctl.services.model_pins import PinMode

if TYPE_CHECKING:
    from pilotlight.targets.target import Target


@click.command()
@options.deploy_options
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
    apply_options: options.ApplyOptions,
    tool: str | None,
    no_snapshot: bool,
    reset: bool,
) -> None:
    """Make services run as documents say, or as they were deployed before.

    Example: platformctl deploy -f service.yaml
    """
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

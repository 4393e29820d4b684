"""`platformctl deploy`: apply documents to a target and follow progress; prints the URL at the end."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pilotlight.release import apply as release_apply
from platformctl import options, output, targets
from platformctl.canary import start
from platformctl.services import helm, rollout

if TYPE_CHECKING:
    from pilotlight.targets.target import Target


@click.command()
@options.deploy_options
@targets.target_option
@targets.force_option
@rollout.apply_options
@click.option(
    "--with", "tool", type=click.Choice(["helm"]), help="Let this program apply and own it: helm, with our chart."
)
@click.option("--reset", is_flag=True, help="Forget what scale and traffic have set by hand.")
@output.formats(*rollout.FORMATS)
def deploy(
    document_options: options.DocumentOptions,
    target: str,
    apply_options: rollout.ApplyOptions,
    tool: str | None,
    reset: bool,
) -> None:
    """Make services run as documents say, or as they were deployed before.

    Example: platformctl deploy -f service.yaml
    """
    alone = apply_options.dry_run == "client" and not apply_options.diff and document_options.files
    connected = None if alone else targets.connect(target)
    request = (
        rollout.request_from_files(document_options, connected)
        if document_options.files
        else rollout.request_from_target(document_options, connected)
    )
    if tool is None and connected is not None:
        request = _with_canaries(replace(request, reset=reset), connected, apply_options, document_options.strict)
        if not request.documents.services:
            return
    apply = release_apply.apply if tool is None else helm.apply
    rollout.run(replace(request, reset=reset), connected, apply_options, strict=document_options.strict, apply=apply)


def _with_canaries(
    request: release_apply.ReleaseRequest, target: "Target", apply_options: rollout.ApplyOptions, strict: bool
) -> release_apply.ReleaseRequest:
    """Start services with a canary policy as canaries; return a request for the others."""
    plain = []
    for service in request.documents.services:
        alone = replace(request, documents=replace(request.documents, services=(service,)))
        policy = start.required_policy(target, alone)
        if policy is None:
            plain.append(service)
        else:
            start.run(start.CanaryRequest(alone, policy, strict), target, apply_options)
    return replace(request, documents=replace(request.documents, services=tuple(plain)))

"""`platformctl canary`: start, observe, pause, promote and abort the canary of a service."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pilotlight.canaries import stored_history
from pilotlight.canaries.start_request import CanaryRequest, running_canary
from pilotlight.errors import UsageError
from pilotlight.release import apply, history
from pilotlight.wire.machine import user_name
from platformctl import completion, options, output, targets
from platformctl.canary import follow as canary_follow
from platformctl.canary import start as canary_start
from platformctl.canary import view
from platformctl.services import model_document, rollout, status_views

if TYPE_CHECKING:
    from pilotlight.canaries.canary_state import CanaryCommand, CanaryHistory
    from pilotlight.targets.target import Key, Target


@click.group(no_args_is_help=True)
def canary() -> None:
    """Try a new revision on part of the traffic, which grows while its checks pass.

    Example: platformctl canary start iris -f new.yaml --steps 5,25,50,100 --check 'error_rate<1%'
    """


@canary.command(short_help="Start a canary, or change its percentage.")
@click.argument("names", metavar="[NAME [MODEL]]", nargs=-1, shell_complete=completion.services_or_files)
@options.deploy_options
@model_document.model_options
@targets.force_option
@targets.prometheus_option
@canary_start.policy_options
@click.option("--percent", type=click.IntRange(0, 99), help="Fixed percentage of traffic, without checks.")
@options.apply_options
@output.formats(*rollout.FORMATS)
def start(
    document_options: options.DocumentOptions,
    model_options: model_document.ModelOptions,
    percent: int | None,
    apply_options: options.ApplyOptions,
    policy: canary_start.PolicyOptions,
) -> None:
    """Start a new revision beside the one that serves, and shift traffic to it step by step while its checks pass.

    The revision is that of a document, or of a MODEL as `deploy` takes it: a file, a folder, a URI, or model.py:Class.

    With --percent there are no checks: it keeps that percentage until promote or abort. Exit code 5: rolled back.

    Example: platformctl canary start iris -f new.yaml --steps 5,25,50,100 --bake 2m --check 'p99_ms<300'
    """
    document_options = _with_model(document_options, model_options)
    connected = targets.connect(document_options.target or targets.LOCAL)
    from_files = bool(document_options.files)
    if from_files:
        document_options = model_document.on_service(document_options, model_options, connected)
        request = rollout.request_from_files(document_options, connected, beside=True)
    else:
        request = _request_from_canary(document_options, connected)
    if len(request.documents.services) != 1:
        names = ", ".join(service.name for service in request.documents.services)
        raise UsageError(f"a canary is one service's, the documents have {names}", "name it: canary start NAME -f FILE")
    (service,) = request.documents.services
    key = (service.namespace, service.name)
    canary_follow.check(connected, service, request)
    if percent is None:
        judged = CanaryRequest(request, policy.merged_with(service.annotations), document_options.strict)
        with model_document.advice_of_command(document_options):
            canary_start.run(judged, connected, apply_options)
        return
    policy.refuse_with_percent()
    if running_canary(connected, key) is not None:
        hint = f"platformctl canary promote|pause|abort {key[1]}"
        raise UsageError(f"the canary of {'/'.join(key)} has checks, so its percentage cannot be set manually", hint)
    if from_files:
        canary_follow.note_replaced(connected, key)
    shared = history.with_canary_percent(request.documents, percent)
    request = replace(request, documents=shared, note=f"canary {percent} %")
    with model_document.advice_of_command(document_options):
        rollout.run(request, connected, apply_options, strict=document_options.strict)


def _with_model(
    document_options: options.DocumentOptions, model_options: model_document.ModelOptions
) -> options.DocumentOptions:
    """Return the options with the document of `NAME MODEL`."""
    words = document_options.names
    if len(words) != 2 or document_options.files:
        model_document.refuse_without_model(model_options, "canary start NAME ./model.onnx")
        return document_options
    namespace, name = targets.service_key(words[0], document_options.namespace)
    document_options = replace(document_options, namespace=namespace)
    model_options = replace(model_options, name=name)
    return model_document.with_document(words[1], document_options, model_options, f"canary start {words[0]}")


def _request_from_canary(document_options: options.DocumentOptions, target: "Target") -> apply.ReleaseRequest:
    if len(document_options.names) != 1:
        raise UsageError("neither -f FILE nor one NAME is given", "platformctl canary start NAME -f FILE")
    key = targets.service_key(document_options.names[0], document_options.namespace)
    running = history.running_canary(history.releases(target, key))
    if running is None:
        hint = f"platformctl canary start {document_options.names[0]} ./model.onnx"
        raise UsageError(f"give a MODEL or -f FILE: no canary of {'/'.join(key)} runs", hint)
    read = apply.read_release(running.release, document_options.sets)
    return apply.ReleaseRequest(*read, by=user_name())


@canary.command(short_help="Show its step and its checks.")
@targets.name_argument()
@targets.options
@click.option("-w", "--watch", is_flag=True, help="Refresh on every change, until it ends.")
@output.formats("table", "json", "yaml", "wide", "name", "url")
def status(service_options: targets.ServiceOptions, name: str, watch: bool) -> None:
    """Show the step, the traffic split, and every check with its query, value and verdict.

    Example: platformctl canary status iris -w
    """
    target, key = service_options.connect_read_only(), service_options.key(name)
    canary_history = canary_follow.read_history(target, key)
    if canary_history.current is None or (
        canary_history.current.ended_at and history.running_canary(history.releases(target, key))
    ):
        canary_follow.show_plain(target, key, name)
        return
    _show(key, canary_history)
    while watch and canary_history.current is not None and not canary_history.current.ended_at:
        time.sleep(canary_follow.POLL_S)
        newer = canary_follow.read_history(target, key)
        if newer.current is not None and view.page(key, newer.current) != view.page(key, canary_history.current):
            output.page_break()
            _show(key, newer)
        canary_history = newer


def _show(key: "Key", canary_history: "CanaryHistory") -> None:
    assert canary_history.current is not None
    output.data(view.canary_document(canary_history), view.page(key, canary_history.current))


@canary.command("history", short_help="Show how canaries ended.")
@targets.name_argument()
@targets.options
@output.formats("table", "json", "yaml")
def history_(service_options: targets.ServiceOptions, name: str) -> None:
    """Show the canaries that a service has had, newest first, and how each ended.

    Example: platformctl canary history iris
    """
    target, key = service_options.connect_read_only(), service_options.key(name)
    canary_history = canary_follow.read_history(target, key)
    if canary_history.current is None:
        target.status(key)  # raises NotFound if there is no such service
    output.data(view.canary_document(canary_history), view.history(canary_history))


@canary.command(short_help="Keep the present traffic split.")
@targets.name_argument()
@targets.options
@options.waiting_options
@output.formats(*rollout.FORMATS)
def pause(service_options: targets.ServiceOptions, name: str, wait: bool, timeout: float) -> None:
    """Keep the present traffic split until `resume`, `promote` or `abort`.

    Example: platformctl canary pause iris
    """
    _send_command(service_options, name, "pause", timeout if wait else 0.0)


@canary.command()
@targets.name_argument()
@targets.options
@options.waiting_options
@output.formats(*rollout.FORMATS)
def resume(service_options: targets.ServiceOptions, name: str, wait: bool, timeout: float) -> None:
    """Continue after a pause.

    Example: platformctl canary resume iris
    """
    _send_command(service_options, name, "resume", timeout if wait else 0.0)


@canary.command(short_help="Wait until the canary ends, and run it if no controller does.")
@targets.name_argument()
@targets.options
@targets.prometheus_option
@click.option(
    "--timeout", default=options.TIMEOUT_S, show_default=True, metavar="SECONDS", help="How long a pause may last."
)
@output.formats(*rollout.FORMATS)
def follow(service_options: targets.ServiceOptions, name: str, timeout: float) -> None:
    """Wait until the canary ends, and run it if no controller does. Exit code 5: it was rolled back.

    Example: platformctl canary follow iris --target kubernetes
    """
    target, key, ticker = service_options.connect(), service_options.key(name), output.ProgressLog()
    if running_canary(target, key) is None:
        raise stored_history.no_running_canary(key)
    ended = canary_follow.follow(target, key, ticker, timeout)
    ticker.log(ended.phase, ended.revision)
    status_views.show([target.status(key)], one=False, default="url")


def _send_command(service_options: targets.ServiceOptions, name: str, command: "CanaryCommand", timeout: float) -> None:
    target, key, ticker = service_options.connect(), service_options.key(name), output.ProgressLog()
    canary_follow.request_action(target, key, command)
    if timeout:
        running = canary_follow.wait_for_action(target, key, timeout, ticker)
        ticker.log(running.phase, running.reason or f"{running.weight} % to {running.revision}")
    ticker.close()
    status_views.show([target.status(key)], one=False, default="url")


@canary.command(short_help="Go to the next step, or to all traffic.")
@targets.name_argument()
@targets.options
@targets.force_option
@click.option("--full", is_flag=True, help="All traffic at once, skipping the other steps.")
@options.apply_options
@output.formats(*rollout.FORMATS)
def promote(
    service_options: targets.ServiceOptions, name: str, full: bool, apply_options: options.ApplyOptions
) -> None:
    """Give the new revision all traffic; with checks, that of its next step.

    Example: platformctl canary promote iris --full
    """
    target = service_options.connect()
    if running_canary(target, service_options.key(name)) is not None:
        command: CanaryCommand = "promote-full" if full else "promote"
        _send_command(service_options, name, command, apply_options.timeout if apply_options.wait else 0.0)
        return
    running = canary_follow.find_canary(target, service_options.key(name))
    for each in target.status(service_options.key(name)).revisions:
        if each.name in running.new_revisions:
            canary_follow.check_promotable(each, name)
    request = history.redeploy_request(running.release, None, "canary promoted", newest=running.release)
    rollout.run(request, target, apply_options)


@canary.command(short_help="Return all traffic to the revision before.")
@targets.name_argument()
@targets.options
@targets.force_option
@options.apply_options
@output.formats(*rollout.FORMATS)
def abort(service_options: targets.ServiceOptions, name: str, apply_options: options.ApplyOptions) -> None:
    """Return all traffic to the revision before it, and its document to the service.

    Example: platformctl canary abort iris
    """
    target = service_options.connect()
    if running_canary(target, service_options.key(name)) is not None:
        _send_command(service_options, name, "abort", apply_options.timeout if apply_options.wait else 0.0)
        return
    running = canary_follow.find_canary(target, service_options.key(name))
    request = history.redeploy_request(running.stable, None, "canary aborted", newest=running.release)
    rollout.run(request, target, apply_options)

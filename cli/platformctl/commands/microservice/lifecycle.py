"""`platformctl microservice`: status, list, stop and logs of single-model services on any platform.

Modules of the other verbs are imported when these are called. Jobs continue after this program exits.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import click

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.jobs.service_document import service_name
from pilotlight.microservices.registry.records import Entry, PlatformStatus
from pilotlight.targets.target import service_argument
from pilotlight.wire.unix_socket import is_unix
from platformctl import output
from platformctl.microservice import health_findings, shared_options

AT_ONCE = 8
MODULES = {"start": "inference", "infer": "inference", "register": "register", "batch": "batch"}


class Group(shared_options.RedactingGroup):
    """Group that imports the verbs of MODULES when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted((*super().list_commands(context), *MODULES))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in MODULES:
            return super().get_command(context, name)
        command: click.Command = getattr(import_module(f"platformctl.commands.microservice.{MODULES[name]}"), name)
        return command


@click.group(cls=Group)
def microservice() -> None:
    """Start a single model behind one URL on any platform, call it and stop it.

    \b
    Examples:
      platformctl microservice start pilotlight --model-path ./model
      platformctl microservice infer --prompt hello --accept-defaults
      platformctl microservice stop
    """


@microservice.command()
@shared_options.JOB
@shared_options.ARCH
@output.output_option
def status(job_id: str, network_arch: str) -> None:
    """Show what the platform and the model say of a microservice.

    Example: platformctl microservice status
    """
    state = shared_options.open_registry().read()
    target = shared_options.select_job(state, job_id, network_arch)
    entry = state.entries[target]
    platform = shared_options.platform_status(target, entry)
    model = health_findings.probe_model(target, entry)
    findings = health_findings.findings(target, entry, platform, model)
    tensors = health_findings.accepts_tensors(target, entry) if model.phase == "ready" else None
    document = {
        **shared_options.job_document(target, entry, tensors=tensors), "state": platform.state,
        "pod_name": platform.pod_name, "pod_status": platform.pod_status, "model": model.description,
        "reason": platform.reason,
    }  # fmt: skip
    rows = [(name.replace("_", " "), str(value)) for name, value in document.items() if value]
    output.data({**document, "findings": findings}, output.columns(rows, ""))
    for each in findings:
        output.note(f"{each['cause']}\n  {each['advice']}")


@microservice.command("list")
@output.output_option
def list_all() -> None:
    """List microservices, a line each; * marks the one started last.

    Example: platformctl microservice list
    """
    state = shared_options.open_registry().read()
    with ThreadPoolExecutor(AT_ONCE) as pool:  # a slow platform does not delay the others
        looks = dict(zip(state.entries, pool.map(_look, state.entries, state.entries.values()), strict=True))
    rows = [
        (f"{job_id}{' *' if job_id == state.latest else ''}", entry.network_arch, entry.platform,
         "unix socket" if is_unix(entry.host_url) else entry.host_url,
         looks[job_id][0].state, looks[job_id][1].phase or looks[job_id][1].description, entry.started_at)
        for job_id, entry in state.entries.items()
    ]  # fmt: skip
    documents = [
        {
            **shared_options.job_document(job_id, entry), "state": looks[job_id][0].state,
            "model": looks[job_id][1].description, "latest": job_id == state.latest,
        }
        for job_id, entry in state.entries.items()
    ]  # fmt: skip
    names = ("JOB ID", "ARCH", "PLATFORM", "URL", "STATE", "MODEL", "STARTED")
    output.data(documents, output.columns([names, *rows], ""))


def _look(job_id: str, entry: Entry) -> tuple[PlatformStatus, health_findings.ModelStatus]:
    """Return the status of the platform, and that of the model where it runs."""
    status = shared_options.platform_status(job_id, entry)
    running = status.state == "running"
    return status, health_findings.probe_model(job_id, entry) if running else health_findings.ModelStatus("", "")


@microservice.command()
@shared_options.JOB
@click.option("--yes", is_flag=True, help="Stop the latest without a prompt.")
@click.option("--forget", is_flag=True, help="Only remove it from the registry, if its platform is gone.")
@output.output_option
def stop(job_id: str, yes: bool, forget: bool) -> None:
    """Stop a microservice with all that it holds; without an id the one started last.

    Example: platformctl microservice stop
    """
    registry = shared_options.open_registry()
    state = registry.read()
    target = shared_options.choose_to_stop(state, job_id)
    entry = state.entries[target]
    if not job_id and not yes:
        subject = f"the latest microservice, {target} ({entry.network_arch} on {entry.platform})"
        if not shared_options.on_terminal():
            raise UsageError(f"no job id is given, which would stop {subject}", "name it, or add --yes")
        click.confirm(f"Stop {subject}?", abort=True, err=True)
    if not forget:
        shared_options.stop(target, entry)
    registry.remove(target)
    health_findings.clear(target)
    name = service_argument((entry.namespace or "default", service_name(target)))
    end = f"platformctl delete {name} --target {entry.platform} ends it"
    forgotten = f"took {target} off the registry; if it still runs, {end}"
    line = forgotten if forget else f"stopped {target}"
    output.data({"job_id": target, "status": "forgotten" if forget else "stopped"}, [line])


@microservice.command()
@shared_options.JOB
@shared_options.ARCH
@click.option("-f", "--follow", "follows", is_flag=True, help="Stream new lines, until it ends or Ctrl-C.")
@click.option("--tail", default=50, show_default=True, help="Lines to start with, at most 50.")
@output.output_option
def logs(job_id: str, network_arch: str, follows: bool, tail: int) -> None:
    """Show the end of what a microservice wrote.

    Example: platformctl microservice logs --tail 20
    """
    state = shared_options.open_registry().read()
    target = shared_options.select_job(state, job_id, network_arch)
    status = shared_options.platform_status(target, state.entries[target])
    if status.state == "unknown":
        raise PlatformError(status.reason)
    if follows:
        for line in shared_options.follow(
            status, lambda: shared_options.platform_status(target, state.entries[target]), tail, output.note
        ):
            output.stream_line(json.dumps(line) if output.chosen() == "json" else line)
        return
    lines = status.tail[-tail:] if tail > 0 else ()
    output.data(list(lines), lines)
    if not lines:
        output.note("nothing was written yet")

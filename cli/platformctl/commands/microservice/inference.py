"""`platformctl microservice start` and `infer`, whose flags are options of platforms and fields of networks."""

import os
from pathlib import Path

import click

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.inference import client
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry import container_command, model_kinds
from pilotlight.microservices.registry.records import PLATFORMS, Entry
from platformctl import output
from platformctl.microservice import health_findings, infer_request, shared_options

WAIT = click.option("--wait", default=600.0, show_default=True, metavar="SECONDS", help="Timeout of the model to load.")


@click.command(cls=shared_options.PlatformCommand)
@click.argument("network_arch", required=False, default="")
@click.option("--model-path", default="", metavar="PATH", help="hf_model://ORG/MODEL, or a path in the container.")
@click.option("--platform", default="local", show_default=True, metavar="NAME", help="local, docker, kubernetes, …")
@click.option("--num-gpus", default=1, show_default=True, help="GPUs, at least 1.")
@click.option("--host-port", default=0, metavar="PORT", help="Port (default: the lowest free one from 8080).")
@click.option("--image", default="", metavar="URI", help="Image (default: that of the network).")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable of the container; not for secrets.")
@click.option("--secret", multiple=True, metavar="NAME", help="Variable of this shell to pass as a secret.")
@click.option("--ready", is_flag=True, help="Return once the model is loaded.")
@WAIT
@shared_options.platform_flags
@output.output_option
def start(
    network_arch: str, model_path: str, platform: str, num_gpus: int, host_port: int, image: str, env: tuple[str, ...],
    secret: tuple[str, ...], ready: bool, wait: float, **platform_options: str | None,
) -> None:  # fmt: skip
    """Start a microservice. Without --ready it returns while the model still loads.

    Example: platformctl microservice start pilotlight --model-path ./model
    """
    target = TargetService(platform, os.environ)
    arch = network_arch or _require("network_arch", "the network, such as cosmos-rl or pilotlight")
    runs = image or container_command.resolve(arch, os.environ)
    model = model_path or _require("model_path", "hf_model://ORG/MODEL, or a path in the container")
    request = launcher.StartRequest(
        network_arch=arch, model_path=model, platform=platform, num_gpus=num_gpus, image=runs, host_port=host_port,
        options=shared_options.resolve_options(target, platform_options, runs), env=shared_options.parse_variables(env),
        secrets=secret,
    )  # fmt: skip
    job = launcher.build_job(request, os.environ)
    shared = PLATFORMS[target.name].shares_files and "://" not in job.model_path
    declared = model_kinds.read_declaration(Path(job.model_path)) if shared else ""
    entry = launcher.start(job, target, shared_options.open_registry(), wait, output.note)
    _check_started(job.id, entry)
    tensors = shared_options.takes_tensors(arch, job.model_path)
    health_findings.record(job.id, declared, model_kinds.FILE)
    lines = [
        "Inference service started.", f"  Job ID : {job.id}", f"  Arch   : {entry.network_arch}",
        f"  URL    : {shared_options.inference_url(entry, tensors=tensors)}",
    ]  # fmt: skip
    output.data(shared_options.job_document(job.id, entry, tensors=tensors), lines)
    output.note("Use this Job ID to send requests or stop the service.")
    if ready:
        infer_request.wait_for_model(job.id, entry, wait)


def _check_started(job_id: str, entry: Entry) -> None:
    """Remove a job that failed at once, and raise PlatformError with the end of its log."""
    status = shared_options.platform_status(job_id, entry)
    if status.state == "failed":
        shared_options.platform_of(entry).stop(job_id, entry)
        shared_options.open_registry().remove(job_id)
        last = "\n".join(status.tail[-5:])
        raise PlatformError(f"it exited immediately: {status.reason}", last)


def _require(name: str, what: str) -> str:
    if not shared_options.on_terminal():
        flag = "NETWORK_ARCH" if name == "network_arch" else f"--{name.replace('_', '-')}"
        raise UsageError(f"{name} is missing: {what}", f"name it: {flag}")
    return shared_options.prompt(f"{name} ({what})")


@click.command()
@shared_options.JOB
@shared_options.ARCH
@click.option("--prompt", default="", metavar="TEXT", help="Prompt.")
@click.option("--system", default="", metavar="TEXT", help="System prompt.")
@click.option("--image", multiple=True, metavar="URL", help="Image: URL or path (cosmos: path in the container).")
@click.option("--video", multiple=True, metavar="URL", help="Video: URL or path.")
@click.option(
    "--parameter", multiple=True, metavar="NAME=VALUE", help="Parameter of a classifier or detector, such as top_k=3."
)
@click.option("--body", metavar="FILE", help="File with the whole request as JSON; - is stdin.")
@click.option("--accept-defaults", is_flag=True, help="Use defaults for fields that are not given.")
@click.option(
    "--timeout", default=client.MIN_TIMEOUT_S, show_default=True, help="Timeout of the response, at least 300 s."
)
@WAIT
@infer_request.field_flags
@output.output_option
def infer(
    job_id: str, network_arch: str, prompt: str, system: str, image: tuple[str, ...], video: tuple[str, ...],
    parameter: tuple[str, ...], body: str | None, accept_defaults: bool, timeout: float, wait: float,
    **fields: str | None,
) -> None:  # fmt: skip
    """Send a request to a microservice, and wait while its model loads.

    Example: platformctl microservice infer --prompt 'What is a pilot light?' --accept-defaults

    Example: platformctl microservice infer --image flower.jpg --parameter top_k=3
    """
    client.check_timeout(timeout)
    state = shared_options.open_registry().read()
    target = shared_options.select_job(state, job_id, network_arch)
    entry = state.entries[target]
    schema = infer_request.picture_schema(target, entry) if (image or video) and not prompt else None
    if schema is not None:
        parameters = infer_request.parse_parameters(parameter)
        picture_request = infer_request.picture_request(schema, (*image, *video), parameters)
        url = shared_options.inference_url(entry, tensors=True)
        output.note(f"Sending to job_id={target} arch={entry.network_arch} url={url}")
        results = infer_request.infer_pictures(target, entry, schema, picture_request, timeout, wait)
        output.data(results, infer_request.picture_lines(results))
        return
    if parameter:
        raise UsageError("--parameter is for models that take pictures", "--image FILE, or the flags of a chat")
    whole_body = infer_request.read_body(body) if body is not None else None
    tensors = shared_options.is_tensor_request(entry.network_arch, whole_body or {})
    url = shared_options.inference_url(entry, tensors=tensors)
    given = (entry.network_arch, whole_body, prompt, system, image, video, fields)
    infer_request.check_flags(*given)
    sending = f"Sending to job_id={target} arch={entry.network_arch} url={url}"
    if asks := shared_options.on_terminal():  # who is asked for the rest of the request knows for whom it is
        output.note(sending)
    request = infer_request.build_request(*given, accept_defaults)
    if not asks:
        output.note(sending)
    reply = infer_request.infer(target, entry, request, tensors, timeout, wait)
    lines = shared_options.output_lines(reply.document) if tensors else [infer_request.message_content(reply.document)]
    output.data(reply.document, lines)
    output.note(f"response in {reply.seconds:.1f} s")

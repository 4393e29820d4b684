"""`platformctl microservice batch`: run a model once over a folder: start, status, list, cancel, resume."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click
from msgspec import to_builtins

from pilotlight.errors import PlatformError
from pilotlight.microservices.batch import jobs
from pilotlight.microservices.batch.job_folder import Batch
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.media import limits_from, read_declaration
from pilotlight.microservices.registry.records import Workspace
from pilotlight.targets.local.home_directory import home
from platformctl import output
from platformctl.commands.microservice.register import REFERENCE, parse_references
from platformctl.microservice import shared_options
from platformctl.microservice.infer_request import parse_parameters

if TYPE_CHECKING:
    from pilotlight.microservices.batch.job_folder import Progress
    from pilotlight.targets.local.home_directory import Home

JOB = click.argument("job_id")
WAIT = click.option("--wait", default=0.0, metavar="SECONDS", help="Wait for the end of the job, at most this long.")


@click.group()
def batch() -> None:
    """Run a model once over the files of a folder, and store the results.

    \b
    Examples:
      platformctl microservice batch start classification --model-path ./model --workspace ./data --inputs images
      platformctl microservice batch status JOB_ID
    """


@batch.command(cls=shared_options.PlatformCommand)
@click.argument("network_arch")
@click.option("--model-path", required=True, metavar="PATH", help="hf_model://ORG/MODEL, a path or a URI.")
@click.option(
    "--workspace", required=True, metavar="URI", help="A folder, s3://bucket/prefix or az://container/prefix."
)
@click.option("--inputs", required=True, metavar="FOLDER", help="Folder of the workspace with the inputs.")
@click.option(
    "--outputs", default="results", show_default=True, metavar="FOLDER", help="Folder of the workspace for the results."
)
@click.option("--labels", default="", metavar="FILE", help="File of the workspace with labels, to score the results.")
@click.option("--parameter", multiple=True, metavar="NAME=VALUE", help="Parameter of every request, such as top_k=3.")
@click.option("--credential", multiple=True, metavar=REFERENCE, help="access_key=env:NAME or file:NAME, never a value.")
@click.option("--endpoint", default="", metavar="URL", help="Endpoint of a store other than Amazon's or Azure's.")
@click.option("--region", default="us-east-1", show_default=True, metavar="NAME", help="Region of S3.")
@click.option("--azure-account", default="", metavar="NAME", help="Storage account of an az:// workspace.")
@click.option("--platform", default="local", show_default=True, metavar="NAME", help="local, docker, kubernetes, …")
@click.option("--num-gpus", default=1, show_default=True, help="GPUs, at least 1.")
@WAIT
@shared_options.platform_flags
@output.formats("table", "json", "yaml")
def start(
    network_arch: str, model_path: str, workspace: str, inputs: str, outputs: str, labels: str,
    parameter: tuple[str, ...], credential: tuple[str, ...], endpoint: str, region: str, azure_account: str,
    platform: str, num_gpus: int, wait: float, **platform_options: str | None,
) -> int:  # fmt: skip
    """Start a job, which continues when this program exits. With --wait, exit code 1: the job or a file has failed.

    Example: platformctl microservice batch start text --model-path hf_model://acme/m --workspace ./data --inputs texts
    """
    storage = Workspace(_absolute(workspace), endpoint, region, azure_account, parse_references(credential))
    model = _absolute(model_path)
    parameters = parse_parameters(parameter)
    chosen_options = shared_options.resolve_options(TargetService(platform, os.environ), platform_options)
    job = Batch(
        str(uuid4()), network_arch, model, storage, inputs, outputs, parameters, labels,
        platform, chosen_options, num_gpus, read_declaration(model, storage, limits_from(os.environ)),
    )  # fmt: skip
    progress = jobs.start(_home(), job, os.environ)
    return _show_progress(jobs.wait(_home(), job.id, os.environ, wait) if wait else progress)


@batch.command()
@JOB
@WAIT
@output.formats("table", "json", "yaml")
def status(job_id: str, wait: float) -> int:
    """Show the progress and the score of a job. Exit code 1: the job or a file has failed.

    Example: platformctl microservice batch status JOB_ID --wait 3600
    """
    return _show_progress(jobs.wait(_home(), job_id, os.environ, wait))


@batch.command("list")
@output.formats("table", "json", "yaml")
def list_all() -> None:
    """List jobs.

    Example: platformctl microservice batch list
    """
    jobs_ = jobs.list_jobs(_home(), os.environ)
    rows = [(each.job_id, each.state, f"{each.done}/{each.total}", str(each.failed), each.started_at) for each in jobs_]
    output.data(
        [_document(each) for each in jobs_],
        output.columns([("JOB ID", "STATE", "DONE", "FAILED", "STARTED"), *rows], ""),
    )


@batch.command()
@JOB
@output.formats("table", "json", "yaml")
def cancel(job_id: str) -> int:
    """Cancel a job and stop its model; results are kept.

    Example: platformctl microservice batch cancel JOB_ID
    """
    jobs.cancel(_home(), job_id, os.environ)
    progress = jobs.wait(_home(), job_id, os.environ, 120)
    if progress.state not in {"done", "failed", "canceled"}:
        raise PlatformError(
            f"batch job {job_id} has not ended yet", "its model finishes the present file; run it again"
        )
    return _show_progress(progress)


@batch.command()
@JOB
@WAIT
@output.formats("table", "json", "yaml")
def resume(job_id: str, wait: float) -> int:
    """Resume a job with the files that have no result yet.

    Example: platformctl microservice batch resume JOB_ID
    """
    progress = jobs.resume(_home(), job_id, os.environ)
    return _show_progress(jobs.wait(_home(), job_id, os.environ, wait) if wait else progress)


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _home() -> "Home":
    return home(os.environ)


def _document(progress: "Progress") -> dict[str, Any]:
    fields: dict[str, Any] = to_builtins(progress)
    return {**fields, "percent": progress.percent}


def _show_progress(progress: "Progress") -> int:
    document = _document(progress)
    score = progress.metrics or {}
    rows = [
        ("job id", progress.job_id), ("state", progress.state),
        ("files", f"{progress.done} of {progress.total} ({progress.percent:.0f} %)"),
        ("failed", str(progress.failed)), ("skipped", str(progress.skipped)),
        ("accuracy", f"{score['accuracy']:.4f}" if score.get("accuracy") is not None else ""),
        ("message", shared_options.redacted(progress.message)),
    ]  # fmt: skip
    output.data({**document, "message": shared_options.redacted(progress.message)},
                output.columns([row for row in rows if row[1]], ""))  # fmt: skip
    return 1 if progress.state == "failed" or (progress.state == "done" and progress.failed) else 0

"""`platformctl microservice register`: register a model that was trained elsewhere with the control API.

Creates what a start over HTTP needs: a workspace if storage is named, an experiment, and its finished job.
"""

import os
from contextlib import closing, suppress
from pathlib import Path

import click

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.microservices.batch.workspace_storage import BucketFolder, open_folder
from pilotlight.microservices.jobs.org_resources import Registrar, check, own_kind, resolve_artifact
from pilotlight.microservices.media import limits_from, read_declaration
from pilotlight.microservices.registry import model_kinds
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import Workspace
from pilotlight.targets.local.home_directory import home
from platformctl import output

REFERENCE = "NAME=REFERENCE"


@click.command()
@click.argument("org")
@click.option("--network-arch", default="", metavar="NAME", help="Network of a new experiment.")
@click.option("--kind", default="", metavar="NAME", help="Kind of a custom network (default: in parameters.yaml).")
@click.option("--artifact", required=True, metavar="PATH", help="Model: path in the workspace, absolute path or URI.")
@click.option(
    "--workspace", default="", metavar="URI|ID", help="Storage such as s3://bucket/prefix, or the id of a workspace."
)
@click.option("--credential", multiple=True, metavar=REFERENCE, help="access_key=env:NAME or file:NAME, never a value.")
@click.option("--endpoint", default="", metavar="URL", help="Endpoint of a store other than Amazon's or Azure's.")
@click.option("--region", default="us-east-1", show_default=True, metavar="NAME", help="Region of S3.")
@click.option("--account", default="", metavar="NAME", help="Azure storage account.")
@click.option("--experiment", default="", metavar="ID", help="Id of an existing or new experiment.")
@click.option("--job", default="", metavar="ID", help="Id of the training job (default: new).")
@click.option("--force", is_flag=True, help="Register even if the artifact does not exist.")
@output.formats("table", "json", "yaml")
def register(
    org: str, network_arch: str, kind: str, artifact: str, workspace: str, credential: tuple[str, ...], endpoint: str,
    region: str, account: str, experiment: str, job: str, force: bool,
) -> None:  # fmt: skip
    """Tell the control API of a trained model, so that a microservice can be started from it.

    Example: platformctl microservice register acme --network-arch classification --artifact /models/flowers.onnx
    """
    with closing(OrgStore.open(home().create())) as store:
        registrar = Registrar(store, org, trusted=True)
        known, storage = None, None
        with suppress(NotFound):
            known = store.experiment(org, experiment) if experiment else None
        if not known and not network_arch:
            raise UsageError("--network-arch is missing: what the experiment trains", "or --experiment ID of one")
        workspace_id = workspace or (known.workspace if known else "")
        if "/" in workspace:
            storage = Workspace(workspace, endpoint, region, account, parse_references(credential))
            check(org, storage, registrar.limits, trusted=True)
        elif workspace_id:
            storage = store.workspace(org, workspace_id).storage
        network_arch, kind = (known.network_arch, known.kind) if known else (network_arch, kind)
        kind = check_artifact(artifact, storage, network_arch, kind, force)
        if storage and "/" in workspace:
            workspace_id = registrar.workspace(storage).id
        experiment_id = (known or registrar.experiment(network_arch, workspace_id, id=experiment, kind=kind)).id
        registered = registrar.job(experiment_id, "train", "done", artifact, id=job)
    document = {"org": org, "workspace": workspace_id, "experiment_id": experiment_id, "job_id": registered.id}
    output.data(document, output.columns([(name, value) for name, value in document.items() if value], ""))


def check_artifact(artifact: str, storage: Workspace | None, network_arch: str, kind: str, force: bool) -> str:
    """Return `kind`, else that which parameters.yaml beside the model declares. Raise where there is no model."""
    model, limits = resolve_artifact(storage, artifact, trusted=True), limits_from(os.environ)
    found, declared = "://" in model or Path(model).exists(), ""
    try:
        if storage and model.startswith(("s3://", "az://")):
            folder = open_folder(model, storage, limits, os.environ)
            found = not isinstance(folder, BucketFolder) or folder.exists()
        declared = read_declaration(model, storage, limits) if found and not kind else ""
    except PlatformError as error:
        if "://" not in model:
            raise
        output.note(f"{model} was not checked: {error}")  # the API may have credentials that this shell has not
    if not found and not force:
        raise UsageError(f"--artifact {artifact}: nothing is at {model}", "check it; --force registers it all the same")
    kind = own_kind(network_arch, kind, os.environ)
    return model_kinds.schema(network_arch, declared, kind).kind if declared else kind


def parse_references(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=REFERENCE; a literal secret is refused and not repeated, since command lines are visible."""
    parsed = {}
    for text in texts:
        name, _, reference = text.partition("=")
        if not reference.startswith(("env:", "file:")):
            raise UsageError(f"--credential {name}, must be {REFERENCE}, and a reference is env:NAME or file:NAME")
        parsed[name] = reference
    return parsed

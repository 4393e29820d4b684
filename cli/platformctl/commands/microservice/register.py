"""`platformctl microservice register`: register a model that was trained elsewhere with the control API.

Creates what a start over HTTP needs: a workspace if storage is named, an experiment, and its finished job.
"""

from contextlib import closing, suppress

import click

from pilotlight.errors import NotFound, UsageError
from pilotlight.microservices.jobs.org_resources import Registrar
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import Workspace
from pilotlight.targets.local.home_directory import home
from platformctl import output

REFERENCE = "NAME=REFERENCE"


@click.command()
@click.argument("org")
@click.option("--network-arch", default="", metavar="NAME", help="Of a new experiment.")
@click.option("--artifact", required=True, metavar="PATH", help="The model: in the workspace, a whole path or a URI.")
@click.option("--workspace", default="", metavar="URI|ID", help="Storage, as s3://bucket/prefix; or one by its id.")
@click.option("--credential", multiple=True, metavar=REFERENCE, help="access_key=env:NAME or file:NAME, never a value.")
@click.option("--endpoint", default="", metavar="URL", help="Of a store that is not Amazon's or Azure's own.")
@click.option("--region", default="us-east-1", show_default=True, metavar="NAME", help="Of S3.")
@click.option("--account", default="", metavar="NAME", help="Of Azure.")
@click.option("--experiment", default="", metavar="ID", help="One that is there; or the id of a new one.")
@click.option("--job", default="", metavar="ID", help="Of the training job; a fresh one unless told.")
@output.formats("table", "json", "yaml")
def register(
    org: str, network_arch: str, artifact: str, workspace: str, credential: tuple[str, ...], endpoint: str, region: str,
    account: str, experiment: str, job: str,
) -> None:  # fmt: skip
    """Tell the control API of a trained model, so that a microservice can be started from it.

    Example: platformctl microservice register acme --network-arch classification --artifact /models/flowers.onnx
    """
    with closing(OrgStore.open(home().create())) as store:
        registrar = Registrar(store, org, trusted=True)
        workspace_id, known = workspace, False
        if "/" in workspace:
            storage = Workspace(workspace, endpoint, region, account, parse_references(credential))
            workspace_id = registrar.workspace(storage).id
        with suppress(NotFound):
            known = bool(experiment and store.experiment(org, experiment))
        if not known and not network_arch:
            raise UsageError("--network-arch is missing: what the experiment trains", "or --experiment ID of one")
        experiment_id = experiment if known else registrar.experiment(network_arch, workspace_id, id=experiment).id
        registered = registrar.job(experiment_id, "train", "done", artifact, id=job)
    document = {"org": org, "workspace": workspace_id, "experiment_id": experiment_id, "job_id": registered.id}
    output.data(document, output.columns([(name, value) for name, value in document.items() if value], ""))


def parse_references(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=REFERENCE; a literal secret is refused and not repeated, since command lines are visible."""
    parsed = {}
    for text in texts:
        name, _, reference = text.partition("=")
        if not reference.startswith(("env:", "file:")):
            raise UsageError(f"--credential {name}, must be {REFERENCE}, and a reference is env:NAME or file:NAME")
        parsed[name] = reference
    return parsed

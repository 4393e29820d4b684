"""`platformctl values`: one service as the values of helm/inference-service, which then renders the same objects."""

import click

from platformctl import documents, output


@click.command()
@documents.planning
@output.formats("yaml", "json")
def values(given: documents.Given) -> None:
    """Print a service as values of the Helm chart: the resolved plan.

    Example: platformctl values -f service.yaml > values.yaml
    """
    from pilotlight.errors import UsageError
    from pilotlight.manifests import Manifest, to_yaml
    from pilotlight.render import values_of

    plans = given.plan().plans
    if len(plans) != 1:
        names = ", ".join(f"{plan.namespace}/{plan.name}" for plan in plans) or "none"
        raise UsageError(f"a Helm release is one service, and the documents have {names}; name one of them")
    found = values_of(plans[0])
    output.data(found, to_yaml([Manifest(found)]).removeprefix("---\n").splitlines())

"""`platformctl values`: one service as values of the chart helm/inference-service."""

from functools import partial

import click

from pilotlight.errors import UsageError
from pilotlight.k8s.manifest import Manifest, to_yaml
from pilotlight.render import values_of
from platformctl import options, output
from platformctl.services.model_pins import resolve


@click.command()
@options.cluster_options
@output.formats("yaml", "json")
def values(document_options: options.DocumentOptions) -> None:
    """Print the plan of a service as values of the Helm chart.

    Example: platformctl values -f service.yaml > values.yaml
    """
    pin = partial(resolve, mode="compare", local=False)
    plans = document_options.plan(for_cluster=True, pin=pin).plans
    if len(plans) != 1:
        names = ", ".join(f"{plan.namespace}/{plan.name}" for plan in plans) or "none"
        raise UsageError(f"a Helm release is one service, and the documents have {names}; name one of them")
    chart_values = values_of(plans[0])
    output.data(chart_values, to_yaml([Manifest(chart_values)]).removeprefix("---\n").splitlines())

"""`platformctl simulate`: replay a trace against documents before they run."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotlight.simulation.conditions import parse_condition
from platformctl import options, output
from platformctl.services import simulation
from platformctl.services.simulation import SimulationOptions, Study

if TYPE_CHECKING:
    from pilotlight.simulation.result import Simulation


@click.command()
@options.cluster_options
@simulation.simulation_options
@click.option(
    "--assert", "asserts", multiple=True, metavar="CONDITION",
    help="Exit code 1 unless it holds: 'p99<2s', 'cost<10', 'failed_share<1%'; repeatable.",
)  # fmt: skip
@simulation.plot_option("Draw the result: .svg, .png or .html; several are compared by cost and p99.")
@output.formats("table", "json")
def simulate(
    document_options: options.DocumentOptions, simulation_options: SimulationOptions, asserts: tuple[str, ...],
    plot: Path | None,
) -> int:  # fmt: skip
    """Replay a trace of requests against documents, on virtual time: latency, cold starts, replicas, cost.

    The autoscaler, the queue and the batches are those of the platform. Documents are simulated on a cluster with
    Knative and KEDA; with --target local on the platform of this machine. Several -f, and --vary, are compared.

    Example: platformctl simulate -f service.yaml --trace poisson:rate=5,duration=1h --service-time 80ms --cold-start 4s
    """
    conditions = [parse_condition(text, "--assert") for text in asserts]
    study = Study.of(document_options, simulation_options)
    results = list(study.run(study.axes()))
    output.data({"simulations": [simulation.as_json(*each) for each in results]}, lines([each for _, each in results]))
    simulation.draw([each for _, each in results], plot)
    for sentence in dict.fromkeys(note for _, each in results for note in each.assumptions):
        output.note(f"assumed: {sentence}")
    problems = [
        f"{result.name}: {problem}"
        for _, result in results
        for condition in conditions
        if (problem := condition.problem(result))
    ]
    for problem in problems:
        output.error(problem)
    return 1 if problems else 0


def lines(results: "list[Simulation]") -> list[str]:
    if len(results) > 1:
        return output.columns(simulation.table(results), indent="")
    result = results[0]
    facts = output.columns([*simulation.summary(result)], indent="")
    return [*facts, "", *output.columns(simulation.details(result), indent="")]

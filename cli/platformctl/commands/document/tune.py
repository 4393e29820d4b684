"""`platformctl tune`: propose settings of a document for a trace, and write them into it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotlight.errors import UsageError
from pilotlight.simulation.conditions import parse_condition
from pilotlight.simulation.tune import MINIMIZED, Minimized, default_axes, search
from pilotlight.simulation.variants import label
from platformctl import options, output
from platformctl.services import simulation
from platformctl.services.simulation import OWN_PATHS, SimulationOptions, Study

if TYPE_CHECKING:
    from pilotlight.simulation.tune import Point, Proposal


@click.command()
@options.cluster_options
@simulation.simulation_options
@click.option(
    "--minimize",
    type=click.Choice(MINIMIZED),
    help="What the settings save (default: GPU-hours, else replica-seconds).",
)
@click.option("--write", is_flag=True, help="Write the proposed settings into the document.")
@simulation.plot_option("Draw what was tried by cost and p99: .svg, .png or .html.")
@output.formats("table", "json")
def tune(
    document_options: options.DocumentOptions, simulation_options: SimulationOptions, minimize: Minimized | None,
    write: bool, plot: Path | None,
) -> int:  # fmt: skip
    """Find the settings of a document that meet --slo for a trace at the least cost, and show what was tried.

    It searches minReplicas, scaleTarget and the window of the autoscaler, or what --vary names. Exit code 1: nothing
    that was tried meets the objective.

    Example: platformctl tune -f service.yaml --trace requests.csv --slo 'p99<2s' --minimize replica-seconds
    """
    if simulation_options.slo is None:
        raise UsageError("--slo is missing", "name the objective, such as --slo 'p99<2s'")
    if len(document_options.files) != 1:
        raise UsageError("tune takes one -f FILE", "run it for each document")
    study = Study.of(document_options, simulation_options)
    file = document_options.files[0]
    found = study.scenarios(file, ())
    if len(found) != 1:
        raise UsageError(f"{file} has {len(found)} services", "name the one to tune: platformctl tune -f FILE NAME …")
    if minimize == "cost" and not simulation_options.prices:
        raise UsageError("--minimize cost needs prices", "--prices FILE with gpuHour and cpuHour")
    minimized: Minimized = minimize or ("gpu-hours" if found[0].gpus else "replica-seconds")
    if minimized == "gpu-hours" and not found[0].gpus:
        raise UsageError("--minimize gpu-hours: its replicas have no GPUs", "--minimize replica-seconds")
    axes = study.axes() or default_axes(found[0], study.role(file))
    objective = parse_condition(simulation_options.slo, "--slo")
    proposal = search(
        axes, lambda variant: study.simulate(study.scenarios(file, variant)[0], variant), objective, minimized
    )  # fmt: skip
    output.data(as_json(proposal, minimized), [*lines(proposal, objective.figure, minimized)])
    simulation.draw([point.result for point in proposal.points], plot)
    if not proposal.best.meets:
        output.error(f"nothing that was tried meets {objective.text}; the nearest has {proposal.best.figure:.3g} s")
        return 1
    if write:
        write_settings(Path(file), study.service_name(file), proposal.best)
    return 0


def lines(proposal: "Proposal", figure: str, minimized: Minimized) -> Iterator[str]:
    heading = ["SETTINGS", figure.upper(), minimized.upper(), "FAILED", "COLD STARTS", "SLO", ""]
    rows = [heading]
    for point in sorted(proposal.points, key=lambda point: (not point.meets, point.price, point.figure)):
        marks = ["pareto"] if point.pareto else []
        marks += ["present"] if point is proposal.present else []
        marks += ["proposed"] if point is proposal.best else []
        rows.append([
            label(point.variant) or "as written", simulation.time_text(point.figure), f"{point.price:.4g}",
            str(point.result.failed), str(point.result.cold_starts), "met" if point.meets else "missed",
            ", ".join(marks),
        ])  # fmt: skip
    yield from output.columns(rows, indent="")
    present, best = proposal.present, proposal.best
    if best.meets and best is not present:
        yield ""
        change = (
            f"{minimized} {present.price:.4g} → {best.price:.4g}, {figure} {present.figure:.3g} s → {best.figure:.3g} s"
        )
        yield f"proposed: {label(best.variant)} ({change})"


def as_json(proposal: "Proposal", minimized: Minimized) -> dict[str, object]:
    def point(each: "Point") -> dict[str, object]:
        return {
            "variant": dict(each.variant), minimized: each.price, "figure": each.figure, "meets": each.meets,
            "pareto": each.pareto, "figures": each.result.figures(),
        }  # fmt: skip

    return {
        "minimized": minimized, "present": point(proposal.present), "proposed": point(proposal.best),
        "points": [point(each) for each in proposal.points],
    }  # fmt: skip


def write_settings(file: Path, name: str, point: "Point") -> None:
    """Write the values of the document's own paths; the rest of the file stays as it is."""
    from pilotlight.spec.text_edit import CannotEdit, set_field

    text = file.read_text(encoding="utf-8")
    changes = [(path, value) for path, value in point.variant if path not in OWN_PATHS]
    for path, value in changes:
        try:
            text = set_field(text, name, path, value)
        except CannotEdit as error:
            raise UsageError(f"{file}: {error}", f"write {path}: {value} yourself") from error
    file.write_text(text, encoding="utf-8")
    for path, value in changes:
        output.note(f"{file}: {path} = {value}")

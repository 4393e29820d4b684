"""Simulations of documents for `simulate` and `tune`: their options, the variants, the trace and the profile."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pilotlight.errors import UsageError
from pilotlight.k8s.quantities import parse_duration
from pilotlight.simulation.conditions import Condition, parse_condition, read_prices
from pilotlight.simulation.result import Prices, Simulation
from pilotlight.simulation.scenario import Scenario, scenario_of, served_workload
from pilotlight.simulation.service_times import STARTS, Profile, Start, read_profile
from pilotlight.simulation.simulate import simulate
from pilotlight.simulation.trace import CountTrace, Trace
from pilotlight.simulation.variants import Axis, Variant, label, parse_axis, variants
from platformctl import options, output, targets

if TYPE_CHECKING:
    from pilotlight.plan.types import Plan
    from pilotlight.release.plan_and_render import Planned

# What --vary can change beside paths of the document.
OWN_PATHS: Final = ("service-time", "parallel", "cold-start", "start", "gpus", "cores")


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Values of the options of a simulation."""

    trace: str
    profile: Path | None
    service_time: str | None
    parallel: int | None
    cold_start: tuple[str, ...]
    start: Start | None
    gpus: int | None
    cores: int | None
    component: str
    prices: Path | None
    slo: str | None
    seed: int
    vary: tuple[str, ...]


OPTIONS: Final = (
    click.option(
        "--trace", required=True, metavar="FILE|GENERATOR",
        help="Requests: a CSV or log file, poisson:rate=5,duration=1h, prometheus:NAME?hours=24, history:NAME.",
    ),
    click.option(
        "--profile", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        help="Service times and cold starts as `platformctl profile` measures them.",
    ),
    click.option("--service-time", metavar="DURATION", help="Of a request that runs alone: 50ms."),
    click.option(
        "--parallel", type=click.IntRange(1), metavar="N", help="Requests that a replica runs at once (default: 1)."
    ),
    click.option(
        "--cold-start", multiple=True, metavar="[KIND=]DURATION",
        help=f"Time to start a replica: 4s, parked=300ms; kinds are {', '.join(STARTS)}; repeatable.",
    ),
    click.option("--start", type=click.Choice(STARTS[:2]), help="How replicas start (default: as on the target)."),
    click.option("--gpus", type=click.IntRange(1), metavar="N", help="GPUs there are; more replicas have to wait."),
    click.option("--cores", type=click.IntRange(1), metavar="N", help="Cores that replicas share while they start."),
    click.option("--component", default="", metavar="NAME", help="Component to simulate (default: the predictor)."),
    click.option(
        "--prices", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        help="YAML file with gpuHour, cpuHour and currency.",
    ),
    click.option("--slo", metavar="CONDITION", help="Objective such as 'p99<2s'; shows the share of requests within."),
    click.option("--seed", default=0, show_default=True, metavar="N", help="Of everything that is drawn at random."),
    click.option(
        "--vary", multiple=True, metavar="PATH=VALUES",
        help="Compare values: spec.predictor.minReplicas=0..3, gpus=1,2; repeatable, for all combinations.",
    ),
)  # fmt: skip
simulation_options: Final = targets.option_group("simulation_options", SimulationOptions, OPTIONS)


def seconds(text: str, option: str) -> float:
    """Return the seconds of a duration. Raise UsageError that names the option."""
    value = parse_duration(text)
    if value is None or value < 0:
        raise UsageError(f"{option} {text}: must be a duration such as 50ms or 4s")
    return value


@dataclass(frozen=True)
class Study:
    """The trace and everything else that all variants share."""

    document_options: options.DocumentOptions
    trace: Trace | CountTrace
    profile: Profile
    prices: Prices
    slo: Condition | None
    choices: SimulationOptions

    @classmethod
    def of(cls, document_options: options.DocumentOptions, choices: SimulationOptions) -> "Study":
        from pilotlight.simulation.traces.table import read_trace

        slo = parse_condition(choices.slo, "--slo") if choices.slo else None
        if slo is not None and not (slo.operator.startswith("<") and slo.figure.startswith("p")):
            raise UsageError(f"--slo {choices.slo!r}: must bound a quantile of the latency from above, such as p99<2s")
        prices = read_prices(choices.prices) if choices.prices else Prices()
        return cls(document_options, read_trace(choices.trace), profile_of(choices), prices, slo, choices)

    def run(self, axes: Sequence[Axis]) -> Iterator[tuple[Variant, Simulation]]:
        """Yield every variant of every document with its result."""
        for file in self.document_options.files:
            for variant in variants(axes):
                for scenario in self.scenarios(file, variant):
                    yield variant, self.simulate(scenario, variant)

    def axes(self) -> list[Axis]:
        return [parse_axis(text) for text in self.choices.vary]

    def scenarios(self, file: str, variant: Variant) -> list[Scenario]:
        """Return the scenarios of a document with the values of a variant."""
        sets = tuple(f"{path}={value}" for path, value in variant if path not in OWN_PATHS)
        chosen = replace(self.document_options, files=(file,), sets=(*self.document_options.sets, *sets))
        planned = plan_quietly(chosen)
        embedded = chosen.target in targets.EMBEDDED
        manifests = planned.manifests()
        own = dict(variant)
        devices = int(own["gpus"]) if "gpus" in own else self.choices.gpus
        cores = int(own["cores"]) if "cores" in own else self.choices.cores
        chosen_start: Start | None = own.get("start") or self.choices.start  # type: ignore[assignment]
        found = [
            scenario_of(plan, manifests, embedded=embedded, component=self.choices.component)
            for plan in planned.plans
        ]  # fmt: skip
        forks = chosen.target == "local" and self.knows_pilot_light
        name = f"{Path(file).name} " if len(self.document_options.files) > 1 else ""
        return [
            replace(
                each, name=f"{name}{each.name} {label(variant)}".strip(), devices=devices, cores=cores,
                start=chosen_start or ("pilot-light" if forks and each.is_pilotlight else "process"),
            )
            for each in found
        ]  # fmt: skip

    @property
    def knows_pilot_light(self) -> bool:
        """Whether the platform of this machine forks replicas, as far as the profile has cold starts of both kinds."""
        from pilotlight.targets.local.supervisor.forkserver_client import forks_replicas

        known = self.profile.cold_starts
        return forks_replicas() and (not known or "pilot-light" in known)

    def plan_of(self, file: str) -> "Plan":
        return plan_quietly(replace(self.document_options, files=(file,))).plans[0]

    def role(self, file: str) -> str:
        """Return the component that is simulated, as the document names it."""
        return served_workload(self.plan_of(file), self.choices.component).role

    def service_name(self, file: str) -> str:
        return self.plan_of(file).name

    def simulate(self, scenario: Scenario, variant: Variant) -> Simulation:
        profile = self.profile
        for path, value in variant:
            if path == "service-time":
                profile = profile.with_service_time(seconds(value, f"--vary {path}"))
            elif path == "cold-start":
                profile = with_cold_start(profile, value, f"--vary {path}")
            elif path == "parallel":
                profile = profile.with_parallel(int(value))
        return simulate(scenario, profile, self.trace, seed=self.choices.seed, prices=self.prices, slo=self.slo)


def plan_quietly(document_options: options.DocumentOptions) -> "Planned":
    """Plan without printing warnings: a comparison would repeat them for each variant."""
    from pilotlight.release.plan_and_render import plan_documents

    documents = document_options.read()
    planned = plan_documents(documents, document_options.target_capabilities(None, complete=False))
    return replace(planned, plans=tuple(document_options.select(planned.plans)))


def profile_of(choices: SimulationOptions) -> Profile:
    """Return the profile of the file with what the options give in its place."""
    profile = read_profile(choices.profile) if choices.profile else Profile()
    if choices.service_time is not None:
        profile = profile.with_service_time(seconds(choices.service_time, "--service-time"))
    if choices.parallel is not None:
        profile = profile.with_parallel(choices.parallel)
    for text in choices.cold_start:
        profile = with_cold_start(profile, text, "--cold-start")
    return profile


def with_cold_start(profile: Profile, text: str, option: str) -> Profile:
    kind, equals, duration = text.rpartition("=")
    if equals and kind not in STARTS:
        raise UsageError(f"{option} {text}: {kind} is not a kind of start; there are {', '.join(STARTS)}")
    return profile.with_cold_start(kind or "process", seconds(duration, option))  # type: ignore[arg-type]


def table(results: Sequence[Simulation]) -> list[list[str]]:
    """Return a heading and a row for each result; columns that say nothing are left out."""
    priced = any(each.prices.gpu_hour or each.prices.cpu_hour for each in results)
    rows: list[dict[str, str]] = [row(each, priced) for each in results]
    names = [name for name in rows[0] if any(each.get(name) not in ("", None) for each in rows)]
    return [names, *([each.get(name, "") for name in names] for each in rows)]


def row(result: Simulation, priced: bool) -> dict[str, str]:
    figures = result.figures()
    share = result.attainment(result.slo_seconds) if result.slo_seconds is not None else None
    currency = f" {result.prices.currency}" if result.prices.currency else ""
    return {
        "SERVICE": result.name, "REQUESTS": str(result.requests), "P50": time_text(figures["p50"]),
        "P95": time_text(figures["p95"]), "P99": time_text(figures["p99"]),
        "HELD P99": time_text(result.figure("held_p99") or 0.0), "FAILED": str(result.failed),
        "COLD STARTS": str(result.cold_starts),
        "REPLICAS": f"{figures['mean_replicas']:.2f}, max {result.max_replicas}",
        "REPLICA-HOURS": f"{result.replica_seconds / 3600:.2f}",
        "GPU-HOURS": f"{result.gpu_hours:.2f}" if result.gpu_seconds else "",
        f"COST{currency}": f"{result.cost:.2f}" if priced else "", "SLO": "" if share is None else f"{share:.2%}",
    }  # fmt: skip


def time_text(value: float) -> str:
    """`12.3 ms`, `4.56 s`."""
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"


def details(result: Simulation) -> list[list[str]]:
    """Return the rows of a single result."""
    parts = {"latency": result.latency, "held": result.held, "queued": result.queued, "served": result.served}
    if result.first_token is not None:
        parts["first token"] = result.first_token
    rows = [["", "P50", "P95", "P99", "MEAN", "REQUESTS"]]
    for name, histogram in parts.items():
        quantiles = [time_text(histogram.quantile(share)) for share in (0.5, 0.95, 0.99)]
        rows.append([name, *quantiles, time_text(histogram.mean), str(histogram.count)])
    return rows


def summary(result: Simulation) -> Iterator[tuple[str, str]]:
    """Yield the other figures of a single result, by name."""
    failures = ", ".join(f"{count} {reason}" for reason, count in result.failures.items())
    yield "requests", f"{result.requests}, {result.failed} failed{f' ({failures})' if failures else ''}"
    starts = ", ".join(f"{count} by {kind}" for kind, count in result.starts.items())
    yield (
        "cold starts",
        f"{result.cold_starts}{f' ({starts})' if starts else ''}; {result.cold_requests} requests waited",
    )
    yield "replicas", f"mean {result.figures()['mean_replicas']:.2f}, at most {result.max_replicas}"
    yield "replica-seconds", f"{result.replica_seconds:.0f} within {result.seconds:.0f} s"
    if result.gpu_seconds:
        yield "GPU-hours", f"{result.gpu_hours:.3f}"
    if result.cpu_seconds:
        yield "CPU-hours", f"{result.cpu_hours:.3f}"
    if result.prices != Prices():
        yield "cost", f"{result.cost:.4g} {result.prices.currency}".strip()
    if result.slo_seconds is not None:
        yield (
            "SLO",
            f"{result.attainment(result.slo_seconds):.3%} of the requests within {time_text(result.slo_seconds)}",
        )
    yield "method", result.method


def plot_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=help_text)


def draw(results: Sequence[Simulation], plot: Path | None) -> None:
    """Write the picture of --plot, if it is given."""
    if plot is None:
        return
    from pilotlight.simulation.plot import write_plot

    write_plot(results, plot)
    output.note(f"drawn: {plot}")


def as_json(variant: Variant, result: Simulation) -> dict[str, Any]:
    return {"variant": dict(variant), **result.to_dict()}

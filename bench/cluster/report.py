"""The result as people read it: cold starts by phase, what was promised of them, and how far scalers are apart."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.cluster.subjects import OURS, PEER, STATIC, SUBJECTS
from bench.cluster.trace import gap
from bench.rounds import Result

Json = Any
BENCHMARK: Final = "cluster"
BESIDE_STATIC_S: Final = 0.25
SHARE_OF_PEER: Final = 0.5
PHASES: Final = (
    ("asking", "request → pod created"),
    ("scheduling", "→ scheduled"),
    ("container", "→ container started"),
    ("server", "→ server reports ready"),
    ("own.boot", "of it: interpreter"),
    ("own.listen", "of it: settings, port open"),
    ("own.import", "of it: imports"),
    ("own.load", "of it: model loaded"),
    ("own.warmup", "of it: warm-up"),
    ("answer", "→ first byte"),
    ("total", "**request → first byte**"),
    ("load", "load average of the machine meanwhile"),
)
TITLES: Final = {
    "local-knative": "embedded, as Knative", "knative": "Knative", "local-keda": "embedded, as KEDA", "keda": "KEDA",
}  # fmt: skip


LOAD: Final = "load average of the machine"
DRAIN_TITLES: Final = {"knative": "Knative", "keda": "raw, our gateway and KEDA"}
DRAIN_COLUMNS: Final = {
    "draining": "request 2 s after the last replica began to terminate", "holding": "that replica holds the device for",
    "zero": "request at true zero", "load": LOAD,
}  # fmt: skip
CACHE_TITLES: Final = {
    "fetched": "fetched by each replica", "shared": "`pilotlight.dev/model-cache`", "local": "LocalModelCache",
}  # fmt: skip
CACHE_COLUMNS: Final = {
    "total": "0 → ready",
    "own.fetch": "of it: fetching",
    "own.load": "of it: loading",
    "load": LOAD,
}
CONTROLLER: Final = {
    "services": "InferenceServices", "apply_s": "applied: seconds until all are ready",
    "apply_requests": "API server requests for that", "apply_load": f"{LOAD} then",
    "edit_s": "all edited: seconds until ready", "edit_requests": "requests for that",
    "edit_load": f"{LOAD} then", "idle_requests_per_minute": "idle: requests per minute",
    "idle_cpu_percent": "idle: CPU, %", "memory_mb": "memory, MB", "cpu_s": "CPU in total, s",
}  # fmt: skip
HEADINGS: Final = {
    "drain": "Scale to zero with a device that one replica holds: seconds, median of 3 (min–max)",
    "model_cache": "0 → ready with a model of 1.5 GB: seconds, median of 3 (min–max)",
    "controller": "The controller",
}  # fmt: skip
Samples = dict[str, dict[str, list[float]]]


@dataclass(slots=True)
class Report:
    """Cold starts, and for each mode what its two autoscalers did with the trace."""

    cold: Result
    scaling: dict[str, dict[str, Json]] = field(default_factory=dict)
    trace: list[dict[str, Json]] = field(default_factory=list)
    controller: dict[str, float] = field(default_factory=dict)
    drain: Samples = field(default_factory=dict)
    model_cache: Samples = field(default_factory=dict)
    load_after: str = ""

    def to_dict(self) -> dict[str, Json]:
        gaps = {mode: differences(both) for mode, both in self.scaling.items()}
        return {
            **self.cold.to_dict(), "load_after": self.load_after, "trace": self.trace, "scaling": self.scaling,
            "differences": gaps, "controller": self.controller, "drain": self.drain, "model_cache": self.model_cache,
        }  # fmt: skip

    def complete_from(self, earlier: Mapping[str, Json]) -> None:
        """Take over what an earlier run of the day has measured and this one has not."""
        for name in ("scaling", "controller", "model_cache"):
            setattr(self, name, getattr(self, name) or earlier.get(name) or {})
        self.drain = {**(earlier.get("drain") or {}), **self.drain}
        self.cold.samples = self.cold.samples or earlier["samples"]


def differences(both: Mapping[str, Mapping[str, Json]]) -> dict[str, float]:
    """Of the local autoscaler from the real one: mean absolute difference of replicas."""
    local, real = both.values()
    return {each: round(gap(local[each], real[each]), 3) for each in ("wanted", "ready")}


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def verdicts(result: Result) -> list[str]:
    """What was promised of our cold start, and whether it was kept; nothing where one of the three is missing."""
    ours, peer, static = (result.median(name, "total") for name in (OURS, PEER, STATIC))
    if ours is None or peer is None or static is None:
        return []
    beside, share = ours - static, ours / peer
    return [
        f"Ours less the static server: {beside:+.2f} s, {_kept(beside, BESIDE_STATIC_S)}",
        f"Ours as a share of KServe's: {share:.2f}, {_kept(share, SHARE_OF_PEER)}",
        f"The static server as a share of KServe's: {static / peer:.2f}; nothing can start sooner here",
    ]


def cold_table(result: Result) -> str:
    shown = [subject for subject in SUBJECTS if subject.name in result.samples]
    lines = ["| | " + " | ".join(f"**{each.title}**" for each in shown) + " |", "|---|" + "---:|" * len(shown)]
    for figure, label in PHASES:
        if any(result.samples[each.name].get(figure) for each in shown):
            cells = [_cell(result.samples[each.name].get(figure)) for each in shown]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    starts = " | ".join(str(len(result.samples[each.name]["total"])) for each in shown)
    return "\n".join([*lines, f"| starts | {starts} |"])


def scaling_table(scaling: Mapping[str, Mapping[str, Mapping[str, Json]]]) -> str:
    columns = ("most replicas", "replica seconds", "requests", "failed", "p50 s", "p99 s", "longest s", "apart")
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for both in scaling.values():
        apart = differences(both)
        for name, row in both.items():
            far = f"{apart['wanted']:.2f} wanted, {apart['ready']:.2f} ready" if name.startswith("local") else ""
            counts = f"{max(row['wanted'], default=0)} | {sum(row['ready'])} | {row['requests']:,} | {row['failed']}"
            times = f"{row['p50_s']:.2f} | {row['p99_s']:.2f} | {row['longest_s']:.2f}"
            lines.append(f"| {TITLES[name]} | {counts} | {times} | {far} |")
    return "\n".join(lines)


def controller_table(figures: Mapping[str, float]) -> str:
    rows = [f"| {title} | {figures[name]:,g} |" for name, title in CONTROLLER.items() if name in figures]
    return "\n".join(["| | |", "|---|---:|", *rows]) if rows else ""


def samples_table(samples: Samples, titles: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """Medians in seconds, with the least and the most."""
    lines = ["| | " + " | ".join(columns.values()) + " |", "|---|" + "---:|" * len(columns)]
    for name, figures in samples.items():
        cells = (_range(figures.get(column)) for column in columns)
        lines.append(f"| {titles[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) if samples else ""


def sections(document: Mapping[str, Json]) -> dict[str, str]:
    """The tables of a kept result that a page shows, by the result's field; without those that were not measured."""
    tables = {
        "drain": samples_table(document.get("drain") or {}, DRAIN_TITLES, DRAIN_COLUMNS),
        "model_cache": samples_table(document.get("model_cache") or {}, CACHE_TITLES, CACHE_COLUMNS),
        "controller": controller_table(document.get("controller") or {}),
    }
    return {name: f"{HEADINGS[name]}\n\n{table}" for name, table in tables.items() if table}


def markdown(report: Report, picture: str) -> str:
    result = report.cold
    parts = ["# A real cluster"]
    if result.samples:
        kept = [f"- {each}" for each in verdicts(result)]
        parts += ["## 0 → first byte through Knative: seconds, median (quartiles)", cold_table(result), "\n".join(kept)]
    if report.scaling:
        parts += [
            "## Autoscalers on the same requests",
            f"![replicas over time]({picture})",
            scaling_table(report.scaling),
        ]
    parts += [f"## {text}" for text in sections(report.to_dict()).values()]
    failures = ["\n".join(["Not measured:", *(f"- {failure}" for failure in result.failures)])] * bool(result.failures)
    return "\n\n".join(part for part in [*parts, conditions(report), *failures] if part) + "\n"


def conditions(report: Report) -> str:
    machine = report.cold.machine
    where = ", ".join([machine["cpu"], f"{machine['cores']} cores", machine["memory"], machine["kernel"]])
    versions = ", ".join(f"{name} {version}" for name, version in report.cold.versions.items())
    return (
        f"{report.cold.date[:10]}, {where}, Python {machine['python']}; {versions}; cluster and load "
        f"on the same machine, load average before: {machine['load_before']}, after: {report.load_after}. "
        "`apart` is the mean absolute difference of replicas, second by second, between embedded and real autoscaler."
    )


def _cell(values: Sequence[float] | None) -> str:
    if not values:
        return ""
    low, high = quartiles(values)
    return f"{statistics.median(values):.2f} ({low:.2f}–{high:.2f})"


def _range(values: Sequence[float] | None) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})" if values else ""


def _kept(value: float, promise: float) -> str:
    return f"target: at most {promise:.2f}" + ("" if value <= promise else " (missed)")

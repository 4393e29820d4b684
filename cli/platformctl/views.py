"""What services look like to a person: a line each for `list`, a page for `status`. Values in, lines out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from platformctl import output

if TYPE_CHECKING:
    from pilotlight.targets.target import Condition, Event, RevisionStatus, ServiceStatus, Target

REVISION = ("REVISION", "TRAFFIC", "REPLICAS", "MODEL", "P50", "P99", "ERRORS")
REVISION_WIDE = (*REVISION, "REQUESTS", "COLD STARTS")
SERVICE_FORMATS = ("table", "json", "yaml", "wide", "name", "url")


def show(statuses: "Sequence[ServiceStatus]", *, one: bool, default: str) -> None:
    """As -o says. `one`: the command is about a single service, whose status is the whole of the data."""
    from msgspec import to_builtins

    chosen = output.chosen() or default
    told = rounded(to_builtins(statuses[0]) if one else {"services": to_builtins(list(statuses))})
    lines = {
        "url": lambda: [status.url for status in statuses if status.url],
        "name": lambda: [label(status) for status in statuses],
        "table": lambda: page(statuses[0]) if one else listing(statuses),
        "wide": lambda: page(statuses[0], wide=True) if one else listing(statuses, wide=True),
    }
    output.data(told, lines.get(chosen, list)())


def with_figures(statuses: "Sequence[ServiceStatus]", target: "Target") -> "Sequence[ServiceStatus]":
    """Latency and errors, on a cluster: there a Prometheus has them, here the gateway's own counts came along."""
    if target.name != "kubernetes":
        return statuses
    from pilotlight.observability.latency import measured

    return measured(statuses, target.query)


def rounded(value: Any) -> Any:
    """Three decimals: more of a latency, a share or a duration is noise."""
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


def label(status: "ServiceStatus") -> str:
    return f"{status.namespace}/{status.name}"


def listing(statuses: "Sequence[ServiceStatus]", wide: bool = False) -> list[str]:
    """Within 80 columns for a service with a short name; `wide` has the rest."""
    heading = ["NAME", "NAMESPACE", "PHASE", "REPLICAS", "TRAFFIC", "URL"]
    rows = [
        [status.name, status.namespace, status.phase, replicas(status.revisions), traffic(status), status.url]
        for status in statuses
    ]
    if wide:
        heading += ["MODE", "P99", "ERRORS", "COLD STARTS", "MESSAGE"]
        for row, status in zip(rows, statuses, strict=True):
            row += [status.mode or "-", worst(status, "p99_ms"), worst(status, "error_percent"), cold_starts(status)]
            row.append(status.message or "-")
    return output.columns([heading, *rows], indent="")


def replicas(revisions: "Iterable[RevisionStatus]") -> str:
    """`1/2`: ready of desired."""
    found = list(revisions)
    return f"{sum(each.ready for each in found)}/{sum(each.desired for each in found)}"


def traffic(status: "ServiceStatus") -> str:
    """`80 % 1f3a9c07, 20 % 77aa01de`: the ends of revisions' names, which `traffic` and `rollback` take.

    Where several components have requests, each is named: `100 % transformer-5d2c8e10, 100 % predictor-1f3a9c07`.
    """
    asked = [each for each in status.revisions if each.percent]
    alone = len({each.workload for each in asked}) == 1
    names = [each.name.rpartition("-")[2] if alone else each.name.removeprefix(f"{status.name}-") for each in asked]
    return ", ".join(f"{each.percent} % {name}" for each, name in zip(asked, names, strict=True)) or "-"


def worst(status: "ServiceStatus", field: str) -> str:
    known = [value for each in status.revisions if (value := getattr(each, field)) is not None]
    text = milliseconds if field.endswith("_ms") else percentage
    return text(max(known)) if known else "-"


def cold_starts(status: "ServiceStatus") -> str:
    return str(sum(each.cold_starts for each in status.revisions))


def page(status: "ServiceStatus", wide: bool = False) -> list[str]:
    """One service in full: who gets requests, what runs, how fast it answers and why it has its size."""
    head = [f"{label(status)}: {status.phase}" + (f", {status.mode}" if status.mode else "")]
    if status.message:
        head.append(f"  {status.message}")
    own = [("port", status.urls.get("port", ""))]
    addresses = [("url", status.url), *(sorted(status.urls.items()) if wide else own)]
    head += output.columns([(name, url) for name, url in addresses if url])
    if not status.revisions:
        return [*head, *_remarks(status, wide)]
    rows = [_revision(each, short(status, each.name, wide)) for each in status.revisions]
    table = [REVISION_WIDE, *rows] if wide else [REVISION, *(row[: len(REVISION)] for row in rows)]
    return [*head, "", *output.columns(table), *_remarks(status, wide)]


def short(status: "ServiceStatus", revision: str, wide: bool) -> str:
    """Without the service's name, which the page has said; verbs take a revision by the end of its name."""
    return revision if wide else revision.removeprefix(f"{status.name}-")


def _revision(each: "RevisionStatus", name: str) -> tuple[str, ...]:
    share = f"{each.percent} %" + "".join(f" @{tag}" for tag in each.tags)
    count = f"{each.ready}/{each.desired}" + (f" (+{each.starting})" if each.starting else "")
    return (
        name, share, count, each.model_state, milliseconds(each.p50_ms), milliseconds(each.p99_ms),
        percentage(each.error_percent), str(each.requests), str(each.cold_starts),
    )  # fmt: skip


def _remarks(status: "ServiceStatus", wide: bool) -> list[str]:
    """What is not a number: why something is not ready, the last decision, what was set by hand."""
    found: list[tuple[str, str]] = []
    for each in status.revisions:
        name = short(status, each.name, wide)
        if each.reason and each.reason not in status.message:
            found.append((name, each.reason))
        if each.decision and (each.percent or each.desired or wide):
            when = f" ({each.decided_at})" if each.decided_at else ""
            found.append((name, f"last decision: {each.decision}{when}"))
        if each.cold_start and (each.percent or wide):
            phases = ", ".join(f"{phase} {1000 * seconds:.0f} ms" for phase, seconds in each.cold_start.items())
            found.append((name, f"latest start: {phases}"))
    found += [(name, f"set by hand: {overridden(set_)}") for name, set_ in status.overrides.items() if set_]
    found += [("warning", sentence) for sentence in status.warnings]
    found += [(f"condition {each.type}", _condition(each)) for each in status.conditions if wide]
    return ["", *output.columns(found)] if found else []


def _condition(condition: "Condition") -> str:
    why = " ".join(filter(None, (condition.reason, condition.message)))
    return condition.status + (f": {why}" if why else "")


def overridden(written: Mapping[str, Any]) -> str:
    """`maxReplicas 5, traffic iris-1 90 %`."""
    shares = [f"{share['revision'] or 'latest'} {share['percent']} %" for share in written.get("traffic") or ()]
    plain = [f"{name} {value}" for name, value in written.items() if name != "traffic"]
    return ", ".join([*plain, *([f"traffic {' '.join(shares)}"] if shares else [])])


def event(found: "Event") -> str:
    whose = f"{found.namespace}/{found.service}"
    return f"{found.at}  {found.type:<7}  {whose}  {found.object}  {found.reason}: {found.message}"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def percentage(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"

"""Text views of services: rows for `list`, a page for `status`. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pilotlight.console.status_cache import rounded
from platformctl import output

if TYPE_CHECKING:
    from pilotlight.k8s.manifest import Change
    from pilotlight.targets.target import Event, RevisionStatus, ServiceStatus, Target

REVISION = ("REVISION", "TRAFFIC", "REPLICAS", "MODEL", "P50", "P99", "ERRORS")
ADAPTER = ("ADAPTER", "VERSION", "TRAFFIC", "REPLICAS", "STATE")
REVISION_WIDE = (*REVISION, "REQUESTS", "COLD STARTS", "DIGEST", "SIZE")
SERVICE_FORMATS = ("table", "json", "yaml", "wide", "name", "url")


def show(statuses: "Sequence[ServiceStatus]", *, one: bool, default: str) -> None:
    """Print statuses in the chosen format. `one`: the document is a single status instead of a list."""
    chosen = output.chosen() or default
    documents = [rounded(as_document(each)) for each in statuses]
    document = documents[0] if one else {"services": documents}
    lines = {
        "url": lambda: [status.url for status in statuses if status.url],
        "name": lambda: [label(status) for status in statuses],
        "table": lambda: page(statuses[0]) if one else listing(statuses),
        "wide": lambda: page(statuses[0], wide=True) if one else listing(statuses, wide=True),
    }
    output.data(document, lines.get(chosen, list)())


def as_document(status: "ServiceStatus") -> dict[str, Any]:
    """Return the status with the fields of KServe and OME: address, components, modelStatus, conditions."""
    from msgspec import to_builtins

    from pilotlight.targets.inferenceservice_status import to_status

    return {**to_builtins(status), **to_status(status, {}, "", status.generation)}


def with_latency_figures(statuses: "Sequence[ServiceStatus]", target: "Target") -> "Sequence[ServiceStatus]":
    """Add latency and errors from Prometheus on a cluster; the local gateway reports its own."""
    if target.name != "kubernetes":
        return statuses
    from pilotlight.observability.revision_latency import with_latency

    return with_latency(statuses, target.query)


def notes_on_other_targets(target: "Target | None", namespace: str | None) -> list[str]:
    """Return a sentence for each other target of the embedded platform that has services."""
    from pilotlight.targets.local.client import LocalTarget

    statuses = target.list_all(namespace) if isinstance(target, LocalTarget) else ()
    counts = Counter(status.target for status in statuses if target and status.target != target.name)
    return [f"{count} on {name}: platformctl list --target {name}" for name, count in sorted(counts.items())]


def label(status: "ServiceStatus") -> str:
    return f"{status.namespace}/{status.name}"


def phase(status: "ServiceStatus") -> str:
    """Return the phase; `Ready, unverified` or `Standby, unverified` while a model has not answered anything yet."""
    unverified = status.phase in ("Ready", "Standby", "Parked") and not status.verified
    return f"{status.phase}, unverified" if unverified else status.phase


def deploy_failed(status: "ServiceStatus") -> bool:
    """Whether the last deploy failed: nothing serves, or an earlier revision still does."""
    newest = {each.workload: each for each in reversed(status.revisions)}  # listed newest first
    broken = any(each.model_state == "FailedToLoad" for each in newest.values())
    return status.phase == "Failed" or bool(status.rolled_back) or (broken and status.phase == "Degraded")


def listing(statuses: "Sequence[ServiceStatus]", wide: bool = False) -> list[str]:
    """Return the table of services, within 80 columns for short names; `wide` adds columns."""
    heading = ["NAME", "NAMESPACE", "PHASE", "REPLICAS", "TRAFFIC", "URL"]
    rows = [
        [status.name, status.namespace, _marked(status), replicas(status.revisions), traffic(status), status.url]
        for status in statuses
    ]
    if wide:
        heading += ["MODE", "ADAPTERS", "P99", "ERRORS", "COLD STARTS", "MESSAGE"]
        for row, status in zip(rows, statuses, strict=True):
            row += [status.mode or "-", ", ".join(dict.fromkeys(each.tags[0] for each in status.adapters)) or "-"]
            row += [worst(status, "p99_ms"), worst(status, "error_percent"), cold_starts(status)]
            row.append(status.message or "-")
    return output.columns([heading, *rows], indent="")


def _marked(status: "ServiceStatus") -> str:
    """Return the phase, marked if an earlier revision serves because the last deploy failed."""
    return f"{phase(status)}, deploy failed" if deploy_failed(status) and status.phase != "Failed" else phase(status)


def replicas(revisions: "Iterable[RevisionStatus]") -> str:
    """`1/2`: ready of desired."""
    rows = list(revisions)
    return f"{sum(each.ready for each in rows)}/{sum(each.desired for each in rows)}"


def traffic(status: "ServiceStatus") -> str:
    """`80 % 1f3a9c07, 20 % 77aa01de`: suffixes of revision names, as `traffic` and `rollback` take them.

    With several workloads each is named: `100 % transformer-5d2c8e10, 100 % predictor-1f3a9c07`.
    """
    receiving = [each for each in status.revisions if each.percent]
    alone = len({each.workload for each in receiving}) == 1
    names = [each.name.rpartition("-")[2] if alone else each.name.removeprefix(f"{status.name}-") for each in receiving]
    return ", ".join(f"{each.percent} % {name}" for each, name in zip(receiving, names, strict=True)) or "-"


def worst(status: "ServiceStatus", field: str) -> str:
    known = [value for each in status.revisions if (value := getattr(each, field)) is not None]
    text = milliseconds if field.endswith("_ms") else percentage
    return text(max(known)) if known else "-"


def cold_starts(status: "ServiceStatus") -> str:
    return str(sum(each.cold_starts for each in status.revisions))


def page(status: "ServiceStatus", wide: bool = False) -> list[str]:
    """Return one service in full: addresses, revisions, latency, reasons and decisions."""
    head = [f"{label(status)}: {phase(status)}" + (f", {status.mode}" if status.mode else "")]
    if status.message:
        head.append(f"  {status.message}")
    own = [(kind, status.urls.get(kind, "")) for kind in ("port", "grpc", "grpcs")]
    addresses = [("url", status.url), *(sorted(status.urls.items()) if wide else own)]
    head += output.columns([(name, url) for name, url in addresses if url])
    if not status.revisions:
        return [*head, *_remarks(status, wide)]
    rows = [_revision(each) for each in status.revisions]
    table = [REVISION_WIDE, *rows] if wide else [REVISION, *(row[: len(REVISION)] for row in rows)]
    adapters = [
        (each.tags[0], each.name, f"{each.percent} %", str(each.ready), each.model_state) for each in status.adapters
    ]
    more = ["", *output.columns([ADAPTER, *adapters])] if adapters else []
    return [*head, "", *output.columns(table), *more, *_remarks(status, wide)]


def _revision(each: "RevisionStatus") -> tuple[str, ...]:
    share = f"{each.percent} %" + "".join(f" @{tag}" for tag in each.tags)
    count = f"{each.ready}/{each.desired}" + (f" (+{each.starting})" if each.starting else "")
    return (
        each.name, share, count, each.model_state, milliseconds(each.p50_ms), milliseconds(each.p99_ms),
        percentage(each.error_percent), str(each.requests), str(each.cold_starts),
        _short_digest(each.model_digest), output.size(each.model_bytes) if each.model_bytes else "-",
    )  # fmt: skip


def _short_digest(digests: str) -> str:
    """`sha256:9f2c41d07a6b`: enough to tell two apart; `unpinned` for a model that is not pinned to its content."""
    shortened = (f"{kind}:{value[:12]}" for kind, _, value in (each.partition(":") for each in digests.split()))
    return ", ".join(shortened) or "unpinned"


def _remarks(status: "ServiceStatus", wide: bool) -> list[str]:
    """Return reasons, last decisions, cold starts, replicas, manual overrides, warnings and conditions."""
    remarks: list[tuple[str, str]] = []
    for each in status.revisions:
        if each.reason and each.reason not in status.message:
            remarks.append((each.name, each.reason))
        if each.retry_in_s is not None:
            remarks.append((each.name, f"next start in {math.ceil(each.retry_in_s)} s"))
        if each.decision and (each.percent or each.desired or wide):
            when = f" ({each.decided_at})" if each.decided_at else ""
            remarks.append((each.name, f"last decision: {each.decision}{when}"))
        if each.cold_start and (each.percent or wide):
            phases = ", ".join(f"{phase} {1000 * seconds:.0f} ms" for phase, seconds in each.cold_start.items())
            remarks.append((each.name, f"latest start: {phases}"))
        for one in each.replicas if wide else ():
            words = (one.state, one.handle and f"as {one.handle}", one.node and f"on {one.node}", one.reason)
            remarks.append((f"replica {one.name}", " ".join(filter(None, words))))
    remarks += [(f"adapter {each.tags[0]}", f"not loaded: {each.reason}") for each in status.adapters if each.reason]
    remarks += [(name, f"set manually: {format_overrides(set_)}") for name, set_ in status.overrides.items() if set_]
    remarks += [("warning", sentence) for sentence in status.warnings]
    for condition in status.conditions if wide else ():
        why = " ".join(filter(None, (condition.reason, condition.message)))
        remarks.append((f"condition {condition.type}", condition.status + (f": {why}" if why else "")))
    return ["", *output.columns(remarks)] if remarks else []


def format_overrides(written: Mapping[str, Any]) -> str:
    """`maxReplicas 5, traffic iris-1 90 %`."""
    shares = [f"{share['revision'] or 'latest'} {share['percent']} %" for share in written.get("traffic") or ()]
    plain = [f"{name} {value}" for name, value in written.items() if name != "traffic"]
    return ", ".join([*plain, *([f"traffic {' '.join(shares)}"] if shares else [])])


def event_line(event: "Event") -> str:
    whose = f"{event.namespace}/{event.service}"
    return f"{event.at}  {event.type:<7}  {whose}  {event.object}  {event.reason}: {event.message}"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def percentage(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def change_document(change: "Change", models: "Mapping[str, Sequence[str]]") -> dict[str, Any]:
    """Return a difference between manifests as `-o json` prints it; `models`: changed files by model URI."""
    group, kind, namespace, name = change.key
    return {
        "change": change.kind, "group": group, "kind": kind, "namespace": namespace, "name": name,
        "diff": list(change.lines), **({"models": models} if models else {}),
    }  # fmt: skip

"""`platformctl top`: load of all services as a table that is redrawn in place."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from pilotlight import contract
from pilotlight.observability.revision_latency import TIMEOUT_S, within_timeout
from platformctl import completion, output, targets
from platformctl.services import status_views

if TYPE_CHECKING:
    from pilotlight.targets.target import Key, RevisionStatus, ServiceStatus, Target

HEADING: Final = ("NAME", "NAMESPACE", "PHASE", "REQ/S", "P50", "P99", "ERRORS", "REPLICAS", "QUEUE", "GPU MEMORY")
GPU_HEADING: Final = ("GPU", "HOLDER", "MEMORY", "STATE", "WAITING")
BY_SERVICE: Final = f"{contract.LABEL_NAMESPACE}, {contract.LABEL_SERVICE}"
WAITING: Final = ("waiting", "parked")  # states in which a replica may wait for a GPU
WINDOW_S: Final = 300.0  # of RevisionStatus.requests
# The gateway's queue is in the status of the embedded platform, and only a metric on a cluster.
QUEUE: Final = f"sum by ({BY_SERVICE}) ({contract.METRIC_QUEUE_DEPTH})"
GATEWAY_QUEUE: Final = f"sum by ({BY_SERVICE}) ({contract.METRIC_GATEWAY_WAITING})"
GPU_MEMORY: Final = f"sum by ({BY_SERVICE}) (max by ({BY_SERVICE}, gpu_uuid) ({contract.METRIC_GPU_MEMORY_USED}))"


@click.command()
@click.option("-n", "--namespace", shell_complete=completion.namespaces, help="Only services of this namespace.")
@targets.target_option
@targets.prometheus_option
@click.option("--once", is_flag=True, help="Print the table once. Default without a terminal, and with -o json.")
@click.option("--interval", default=2.0, show_default=True, metavar="SECONDS", help="Time between two refreshes.")
@output.formats("table", "json", "yaml")
def top(namespace: str | None, target: str, once: bool, interval: float) -> None:
    """Show the load of services live: requests per second, latency, errors, replicas, queue and GPU memory.

    Latency and errors are those of the last five minutes. A second table shows which replica holds or waits for
    which GPU of this machine. Ctrl-C ends it.

    Example: platformctl top --once
    """
    connected = targets.ServiceOptions(target, "").connect_if_running()
    if connected is None:
        return
    live = sys.stdout.isatty() and not once and output.chosen() in ("", "table")
    while True:
        statuses = status_views.with_latency_figures(connected.list(namespace), connected)
        rows, gpus = read_load(connected, statuses), gpu_holders(statuses)
        lines = output.columns([HEADING, *map(_cells, rows)], indent="")
        if gpus:
            lines += ["", *output.columns([GPU_HEADING, *map(_gpu_cells, gpus)], indent="")]
        if not live:
            output.data({"services": rows, **({"gpus": gpus} if gpus else {})}, lines)
            return
        output.redraw(lines)
        time.sleep(max(interval, 0.2))


def gpu_holders(statuses: "Sequence[ServiceStatus]") -> list[dict[str, Any]]:
    """Return a row for each replica and GPU of this machine that it holds or waits for, by GPU."""
    rows = [
        {
            "gpu": gpu, "holder": f"{status.namespace}/{status.name}", "replica": each.name, "state": each.state,
            "memory_bytes": each.gpu_memory or None, "waiting": each.reason if each.state in WAITING else "",
        }
        for status in statuses for revision in status.revisions for each in revision.replicas
        for gpu in each.gpus or (("",) if each.state == "waiting" else ())
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (not row["gpu"], row["gpu"], row["holder"]))


def _gpu_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    held = "all" if row["memory_bytes"] is None else output.size(row["memory_bytes"])
    memory = held if row["gpu"] and row["state"] != "parked" else "-"
    return row["gpu"] or "-", row["holder"], memory, row["state"], row["waiting"] or "-"


def read_load(target: "Target", statuses: "Sequence[ServiceStatus]") -> list[dict[str, Any]]:
    """Return a row for each service, those with the most requests first."""
    queries = (QUEUE, GPU_MEMORY) if target.embedded else (f"{QUEUE} + {GATEWAY_QUEUE} or {QUEUE}", GPU_MEMORY)
    queue, memory = ([_values(target, query) for query in queries]) if statuses else ({}, {})
    rows = [_row(status, queue, memory) for status in statuses]
    return sorted(rows, key=lambda row: (-row["requests_per_second"], row["namespace"], row["name"]))


def _values(target: "Target", query: str) -> "dict[Key, float]":
    """Return the values of a query by service; empty if it cannot be answered in time."""
    samples = within_timeout(lambda: target.query(query), TIMEOUT_S)
    labels = (contract.LABEL_NAMESPACE, contract.LABEL_SERVICE)
    return {(each.labels.get(labels[0], ""), each.labels.get(labels[1], "")): each.value for each in samples}


def _row(status: "ServiceStatus", queue: "Mapping[Key, float]", memory: "Mapping[Key, float]") -> dict[str, Any]:
    key, revisions = (status.namespace, status.name), status.revisions
    rates = (each.requests / WINDOW_S if each.per_second is None else each.per_second for each in revisions)
    return {
        "name": status.name, "namespace": status.namespace, "phase": status.phase,
        "requests_per_second": round(sum(rates), 3),
        **{field: _worst(revisions, field) for field in ("p50_ms", "p99_ms", "error_percent")},
        "ready": sum(each.ready for each in revisions), "desired": sum(each.desired for each in revisions),
        "queue": int(queue.get(key, 0)) + sum(each.waiting for each in revisions),
        "gpu_memory_bytes": int(memory[key]) if key in memory else None,
    }  # fmt: skip


def _worst(revisions: "Sequence[RevisionStatus]", field: str) -> float | None:
    known = [value for each in revisions if (value := getattr(each, field)) is not None]
    return round(max(known), 3) if known else None


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    memory = row["gpu_memory_bytes"]
    return (
        row["name"], row["namespace"], row["phase"], f"{row['requests_per_second']:.1f}",
        status_views.milliseconds(row["p50_ms"]), status_views.milliseconds(row["p99_ms"]),
        status_views.percentage(row["error_percent"]), f"{row['ready']}/{row['desired']}", str(row["queue"]),
        "-" if memory is None else output.size(memory),
    )  # fmt: skip

"""Dashboard "Model and GPU": request time inside a replica, batches, queues, devices."""

from typing import Final

from pilotlight import contract
from pilotlight.observability.dashboards.builder import Dashboard, Query, mean, panel, quantile, rate, row, select

LEGEND: Final = "{{model}}"


def _part(metric: str, name: str) -> Query:
    """Return the mean time over successful requests; Triton's counters are in microseconds."""
    spent = f"sum({rate(metric)}) / 1e6"
    return Query(f"{spent} / (sum({rate(contract.METRIC_SUCCESSES)}) > 0)", name)


MODEL: Final = Dashboard(
    "model", "Pilotlight / Model and GPU", "Inside the replicas: models, batches, queues and devices.",
    (
        row(
            "Models",
            panel(
                "Latency by model, p95", "Of requests that reached a model.", "s",
                Query(quantile(0.95, contract.METRIC_REQUEST_DURATION, "model"), LEGEND),
            ),
            panel(
                "Before, in and after the model",
                "Mean of each request: its inputs made ready, the model run, its outputs taken.", "s",
                _part(contract.METRIC_COMPUTE_INPUT, "input"), _part(contract.METRIC_COMPUTE_INFER, "infer"),
                _part(contract.METRIC_COMPUTE_OUTPUT, "output"), stacked=True,
            ),
            panel(
                "Batch size, mean", "Rows of an execution. Near 1 under load: allow batches, or a longer delay.",
                "short",
                Query(mean(contract.METRIC_BATCH_SIZE, "model"), LEGEND),
            ),
            panel(
                "Time in the queue, p95",
                "Before a request was executed. Above the time of an execution, replicas are short.", "s",
                Query(quantile(0.95, contract.METRIC_QUEUE_SECONDS, "model"), LEGEND),
            ),
            panel(
                "Queue", "Requests that wait for an execution.", "short",
                Query(f"sum by (model) ({select(contract.METRIC_QUEUE_DEPTH)})", LEGEND),
            ),
            panel(
                "Load of a model", "Seconds that the slowest replica's last load took, by phase.", "s",
                Query(f"max by (model, phase) ({select(contract.METRIC_MODEL_LOAD)})", "{{model}} {{phase}}"),
            ),
        ),
        row(
            "GPUs",
            panel(
                "GPU utilisation", "Mean of the devices that replicas see. Empty where there is no GPU.", "percentunit",
                Query(f"avg by (gpu_uuid) ({select(contract.METRIC_GPU_UTILIZATION)})", "{{gpu_uuid}}"), gpu=True,
            ),
            panel(
                "GPU memory", "Used of what a device has. Empty where there is no GPU.", "bytes",
                Query(f"max by (gpu_uuid) ({select(contract.METRIC_GPU_MEMORY_USED)})", "{{gpu_uuid}} used"),
                Query(f"max by (gpu_uuid) ({select(contract.METRIC_GPU_MEMORY_TOTAL)})", "{{gpu_uuid}} total"),
                gpu=True,
            ),
            panel(
                "GPU power", "Drawn by each device. Empty where there is no GPU.", "watt",
                Query(f"max by (gpu_uuid) ({select(contract.METRIC_GPU_POWER)})", "{{gpu_uuid}}"), gpu=True,
            ),
        ),
    ),
)  # fmt: skip

"""Definitions of the predictor's metrics, except custom ones: name, type, labels, help.

Used by `collect` and for docs/metrics.md. Triton's metrics are included for existing dashboards and autoscalers, of
both generations: `nv_inference_compute_duration_us` and `nv_inference_load_ratio` are those of the TensorRT Inference
Server, the split compute times and those after them Triton's.
"""

from typing import Final, Literal, NamedTuple

from pilotlight.contract import (
    LABEL_NAMESPACE,
    LABEL_REVISION,
    LABEL_SERVICE,
    METRIC_BATCH_SIZE,
    METRIC_COLD_START,
    METRIC_GPU_UTILIZATION,
    METRIC_IN_FLIGHT,
    METRIC_MODEL_LOAD,
    METRIC_MODEL_STATE,
    METRIC_MODEL_WAKE,
    METRIC_PARKED_BYTES,
    METRIC_PARKED_MODELS,
    METRIC_QUEUE_DEPTH,
    METRIC_QUEUE_SECONDS,
    METRIC_REQUEST_DURATION,
)

MetricKind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str


IDENTITY_LABELS: Final = (LABEL_SERVICE, LABEL_NAMESPACE, LABEL_REVISION)
MODEL_LABELS: Final = ("model", "version")
REQUEST_LABELS: Final = (*MODEL_LABELS, "protocol", "code")
GPU_LABELS: Final = ("gpu_uuid",)

PILOTLIGHT: Final = (
    Metric(
        METRIC_REQUEST_DURATION,
        "histogram",
        REQUEST_LABELS,
        "Seconds from the last byte of a request to the first byte of its answer",
    ),
    Metric(METRIC_IN_FLIGHT, "gauge", (), "Requests read and not yet answered"),
    Metric(METRIC_QUEUE_DEPTH, "gauge", MODEL_LABELS, "Requests that wait for an execution"),
    Metric(
        METRIC_QUEUE_SECONDS,
        "histogram",
        MODEL_LABELS,
        "Seconds a request waited for its execution, as the mean of its batch",
    ),
    Metric(METRIC_BATCH_SIZE, "histogram", MODEL_LABELS, "Rows of an executed batch"),
    Metric(
        METRIC_MODEL_STATE,
        "gauge",
        (*MODEL_LABELS, "state"),
        "1 for the state that a model version is in, 0 for the others",
    ),
    Metric(
        METRIC_MODEL_LOAD,
        "gauge",
        (*MODEL_LABELS, "phase"),
        "Seconds the last load of a model version took, by phase and in total",
    ),
    Metric(METRIC_PARKED_MODELS, "gauge", (), "Model versions whose weights have left the GPU"),
    Metric(
        METRIC_PARKED_BYTES, "gauge", (), "Host memory that weights have for parking, also of models that are awake"
    ),
    Metric(METRIC_MODEL_WAKE, "histogram", MODEL_LABELS, "Seconds a parked model version took to be on the GPU again"),
    Metric(METRIC_COLD_START, "gauge", ("phase",), "Seconds of this process's start, by phase"),
)

TRITON: Final = (
    Metric(
        "nv_inference_request_success",
        "counter",
        MODEL_LABELS,
        "Number of successful inference requests, all batch sizes",
    ),
    Metric(
        "nv_inference_request_failure",
        "counter",
        (*MODEL_LABELS, "reason"),
        "Number of failed inference requests, all batch sizes",
    ),
    Metric(
        "nv_inference_count",
        "counter",
        MODEL_LABELS,
        "Number of inferences performed (does not include cached requests)",
    ),
    Metric(
        "nv_inference_exec_count",
        "counter",
        MODEL_LABELS,
        "Number of model executions performed (does not include cached requests)",
    ),
    Metric(
        "nv_inference_request_duration_us",
        "counter",
        MODEL_LABELS,
        "Cumulative inference request duration in microseconds (includes cached requests)",
    ),
    Metric(
        "nv_inference_queue_duration_us",
        "counter",
        MODEL_LABELS,
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
    ),
    Metric(
        "nv_inference_compute_duration_us",
        "counter",
        MODEL_LABELS,
        "Cumulative inference compute duration in microseconds",
    ),
    Metric(
        "nv_inference_compute_input_duration_us",
        "counter",
        MODEL_LABELS,
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    Metric(
        "nv_inference_compute_infer_duration_us",
        "counter",
        MODEL_LABELS,
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    Metric(
        "nv_inference_compute_output_duration_us",
        "counter",
        MODEL_LABELS,
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
    Metric(
        "nv_inference_load_ratio",
        "histogram",
        MODEL_LABELS,
        "Request duration over compute duration; 1 means that nothing waited",
    ),
    Metric(
        "nv_inference_pending_request_count",
        "gauge",
        MODEL_LABELS,
        "Instantaneous number of pending requests awaiting execution per-model.",
    ),
    Metric("nv_model_load_duration_secs", "gauge", MODEL_LABELS, "Model load time in seconds"),
    Metric("nv_cache_num_hits_per_model", "counter", MODEL_LABELS, "Number of cache hits per model"),
    Metric("nv_cache_num_misses_per_model", "counter", MODEL_LABELS, "Number of cache misses per model"),
    Metric(
        "nv_cache_hit_duration_per_model",
        "counter",
        MODEL_LABELS,
        "Total cache hit duration per model, in microseconds",
    ),
    Metric(
        "nv_cache_miss_duration_per_model",
        "counter",
        MODEL_LABELS,
        "Total cache miss (insert+lookup) duration per model, in microseconds",
    ),
    Metric(METRIC_GPU_UTILIZATION, "gauge", GPU_LABELS, "GPU utilization rate [0.0 - 1.0]"),
    Metric("nv_gpu_memory_total_bytes", "gauge", GPU_LABELS, "GPU total memory, in bytes"),
    Metric("nv_gpu_memory_used_bytes", "gauge", GPU_LABELS, "GPU used memory, in bytes"),
    Metric("nv_gpu_power_usage", "gauge", GPU_LABELS, "GPU power usage in watts"),
    Metric("nv_gpu_power_limit", "gauge", GPU_LABELS, "GPU power management limit in watts"),
    Metric("nv_energy_consumption", "counter", GPU_LABELS, "GPU energy consumption in joules since the server started"),
    Metric("nv_cpu_utilization", "gauge", (), "CPU utilization rate [0.0 - 1.0] of the machine since the last scrape"),
    Metric("nv_cpu_memory_total_bytes", "gauge", (), "CPU total memory (RAM), in bytes"),
    Metric("nv_cpu_memory_used_bytes", "gauge", (), "CPU used memory (RAM), in bytes"),
)

TABLE: Final[dict[str, Metric]] = {metric.name: metric for metric in PILOTLIGHT + TRITON}

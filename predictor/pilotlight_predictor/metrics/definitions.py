"""Definitions of the predictor's metrics, except custom ones: name, type, help, labels.

Used by the collector and for the page of metrics. Triton's metrics are of both generations, for existing dashboards and
autoscalers; `nv_inference_compute_duration_us` and `nv_inference_load_ratio` are the TensorRT Inference Server's.
"""

from typing import Final, Literal, NamedTuple

from pilotlight import contract

MetricKind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def _of_model(name: str, kind: MetricKind, text: str, *labels: str) -> Metric:
    return Metric(name, kind, text, ("model", "version", *labels))


IDENTITY_LABELS: Final = (contract.LABEL_SERVICE, contract.LABEL_NAMESPACE, contract.LABEL_REVISION)
GPU_LABELS: Final = ("gpu_uuid",)

PILOTLIGHT: Final = (
    _of_model(contract.METRIC_REQUEST_DURATION, "histogram",
        "Seconds from the last byte of a request to the first byte of its response", "protocol", "code"),
    Metric(contract.METRIC_IN_FLIGHT, "gauge", "Requests in flight"),
    Metric(contract.METRIC_RESPONSES_REFUSED, "counter",
        "Responses rejected with 503 by --max-bytes-in-flight; requests count with the code of their inference"),
    Metric(contract.METRIC_LOG_EVENTS, "counter",
        "Events of the request log: sent, dropped because the queue was full, failed because the sink refused them",
        ("result",)),
    _of_model(contract.METRIC_QUEUE_DEPTH, "gauge", "Requests waiting for execution"),
    _of_model(contract.METRIC_QUEUE_SECONDS, "histogram",
        "Queue time of a request in seconds, averaged over its batch"),
    _of_model(contract.METRIC_BATCH_SIZE, "histogram", "Size of executed batches in rows"),
    _of_model(contract.METRIC_MODEL_STATE, "gauge",
        "1 for the current state of a model version, 0 for the others", "state"),
    _of_model(contract.METRIC_MODEL_LOAD, "gauge",
        "Duration of the last load of a model version in seconds, by phase and in total", "phase"),
    Metric(contract.METRIC_PARKED_MODELS, "gauge", "Parked model versions: their weights are in host memory"),
    Metric(contract.METRIC_PARKED_BYTES, "gauge",
        "Host memory reserved for parked weights, including models on the GPU"),
    _of_model(contract.METRIC_MODEL_WAKE, "histogram", "Seconds to move a parked model version back to the GPU"),
    Metric(contract.METRIC_COLD_START, "gauge", "Startup time of this process in seconds, by phase", ("phase",)),
)  # fmt: skip

TRITON: Final = (
    _of_model("nv_inference_request_success", "counter", "Number of successful inference requests, all batch sizes"),
    _of_model("nv_inference_request_failure", "counter",
        "Number of failed inference requests, all batch sizes", "reason"),
    _of_model("nv_inference_count", "counter", "Number of inferences performed (does not include cached requests)"),
    _of_model("nv_inference_exec_count", "counter",
        "Number of model executions performed (does not include cached requests)"),
    _of_model("nv_inference_request_duration_us", "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)"),
    _of_model("nv_inference_queue_duration_us", "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)"),
    _of_model("nv_inference_compute_duration_us", "counter", "Cumulative inference compute duration in microseconds"),
    _of_model("nv_inference_compute_input_duration_us", "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)"),
    _of_model("nv_inference_compute_infer_duration_us", "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)"),
    _of_model("nv_inference_compute_output_duration_us", "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)"),
    _of_model("nv_inference_load_ratio", "histogram",
        "Request duration over compute duration; 1 means that nothing waited"),
    _of_model("nv_inference_pending_request_count", "gauge",
        "Instantaneous number of pending requests awaiting execution per-model."),
    _of_model("nv_model_load_duration_secs", "gauge", "Model load time in seconds"),
    _of_model("nv_cache_num_hits_per_model", "counter", "Number of cache hits per model"),
    _of_model("nv_cache_num_misses_per_model", "counter", "Number of cache misses per model"),
    _of_model("nv_cache_hit_duration_per_model", "counter", "Total cache hit duration per model, in microseconds"),
    _of_model("nv_cache_miss_duration_per_model", "counter",
        "Total cache miss (insert+lookup) duration per model, in microseconds"),
    Metric(contract.METRIC_GPU_UTILIZATION, "gauge", "GPU utilization rate [0.0 - 1.0]", GPU_LABELS),
    Metric("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", GPU_LABELS),
    Metric("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", GPU_LABELS),
    Metric("nv_gpu_power_usage", "gauge", "GPU power usage in watts", GPU_LABELS),
    Metric("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", GPU_LABELS),
    Metric("nv_energy_consumption", "counter", "GPU energy consumption in joules since the server started", GPU_LABELS),
    Metric("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0] of the machine since the last scrape"),
    Metric("nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes"),
    Metric("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes"),
    Metric(contract.METRIC_PROCESS_CPU, "counter", "Total user and system CPU time spent in seconds."),
)  # fmt: skip

TABLE: Final[dict[str, Metric]] = {metric.name: metric for metric in PILOTLIGHT + TRITON}

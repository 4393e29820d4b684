"""`Metrics` → metric families in the order of their definitions, computed at scrape time to keep requests cheap."""

import re
import time
from collections.abc import Iterable
from typing import Final

from pilotlight import contract
from pilotlight_predictor.metrics.definitions import TABLE
from pilotlight_predictor.metrics.exposition import Family, Labels
from pilotlight_predictor.metrics.gpu_readings import GpuSample
from pilotlight_predictor.metrics.model_stats import Histogram, ModelStats
from pilotlight_predictor.metrics.registry import Metrics

MODEL_STATES: Final = ("READY", "PARKED", "LOADING", "UNLOADING", "UNAVAILABLE")
Families = dict[str, Family]


def collect(metrics: Metrics) -> list[Family]:
    families, identity = {name: Family(metric) for name, metric in TABLE.items()}, metrics.identity
    for (model, version, protocol, code), histogram in metrics.requests.items():
        labels = {**_labels(model, version), "protocol": protocol, "code": str(code)}
        families[contract.METRIC_REQUEST_DURATION].add(histogram, {**identity, **labels})
    families[contract.METRIC_IN_FLIGHT].add(metrics.in_flight, identity)
    families[contract.METRIC_RESPONSES_REFUSED].add(metrics.responses_refused, identity)
    if metrics.log_counts is not None:
        for result in ("sent", "dropped", "failed"):
            count = getattr(metrics.log_counts, result)
            families[contract.METRIC_LOG_EVENTS].add(count, {**identity, "result": result})
    for stats in metrics.models.values():
        _model(families, identity, stats)
    _queues(families, metrics)
    for model, version, actual in metrics.model_states():
        for state in MODEL_STATES:
            labels = {**_labels(model, version), "state": state}
            families[contract.METRIC_MODEL_STATE].add(int(state == actual), {**identity, **labels})
    parked, size = metrics.parked()
    families[contract.METRIC_PARKED_MODELS].add(parked, identity)
    families[contract.METRIC_PARKED_BYTES].add(size, identity)
    for (model, version), histogram in metrics.wakes.items():
        families[contract.METRIC_MODEL_WAKE].add(histogram, {**identity, **_labels(model, version)})
    _starts(families, metrics)
    families[contract.METRIC_PROCESS_CPU].add(time.process_time(), {})
    _gpus(families, metrics.gpus())
    if (cpu := metrics.cpu.read()) is not None:
        families["nv_cpu_utilization"].add(cpu.utilization, {})
        families["nv_cpu_memory_total_bytes"].add(cpu.memory_total_bytes, {})
        families["nv_cpu_memory_used_bytes"].add(cpu.memory_used_bytes, {})
    return [*families.values(), *metrics.custom_families]


def _model(families: Families, identity: Labels, stats: ModelStats) -> None:
    labels = _labels(stats.name, stats.version)
    families[contract.METRIC_QUEUE_SECONDS].add(stats.queue_seconds, {**identity, **labels})
    batch_sizes = Histogram(contract.BATCH_BUCKETS)
    for rows, (executions, *_) in stats.batches.items():
        batch_sizes.observe_many(rows, executions)
    families[contract.METRIC_BATCH_SIZE].add(batch_sizes, {**identity, **labels})
    labels |= {_tag(name): value for name, value in stats.tags.items()}
    for name, value in _triton_counters(stats):
        families[name].add(value, labels)
    for reason, count in stats.failures.items():
        families["nv_inference_request_failure"].add(count, {**labels, "reason": reason})
    families["nv_inference_load_ratio"].add(stats.load_ratio, labels)


def _triton_counters(stats: ModelStats) -> Iterable[tuple[str, int]]:
    yield "nv_inference_request_success", stats.success_count
    yield "nv_inference_count", stats.inference_count
    yield "nv_inference_exec_count", stats.execution_count
    yield "nv_inference_request_duration_us", stats.success_ns // 1000
    yield "nv_inference_queue_duration_us", stats.queue_ns // 1000
    yield "nv_inference_compute_duration_us", stats.compute_ns // 1000
    yield "nv_inference_compute_input_duration_us", stats.input_ns // 1000
    yield "nv_inference_compute_infer_duration_us", stats.infer_ns // 1000
    yield "nv_inference_compute_output_duration_us", stats.output_ns // 1000
    if stats.cache_enabled:
        yield "nv_cache_num_hits_per_model", stats.cache_hit_count
        yield "nv_cache_num_misses_per_model", stats.cache_miss_count
        yield "nv_cache_hit_duration_per_model", stats.cache_hit_ns // 1000
        yield "nv_cache_miss_duration_per_model", stats.cache_miss_ns // 1000


def _queues(families: Families, metrics: Metrics) -> None:
    for model, version, requests in metrics.queue_depths():
        labels = _labels(model, version)
        families[contract.METRIC_QUEUE_DEPTH].add(requests, {**metrics.identity, **labels})
        stats = metrics.models.get((model, version))
        tags = stats.tags if stats is not None else {}
        tagged = labels | {_tag(name): value for name, value in tags.items()}
        families["nv_inference_pending_request_count"].add(requests, tagged)


def _starts(families: Families, metrics: Metrics) -> None:
    for (model, version), phases in metrics.loads.items():
        labels = _labels(model, version)
        for phase, seconds in phases.items():
            families[contract.METRIC_MODEL_LOAD].add(seconds, {**metrics.identity, **labels, "phase": phase})
        families["nv_model_load_duration_secs"].add(phases["total"], labels)
    for phase, seconds in metrics.cold_start.items():
        families[contract.METRIC_COLD_START].add(seconds, {**metrics.identity, "phase": phase})


def _gpus(families: Families, gpus: Iterable[GpuSample]) -> None:
    for gpu in gpus:
        values = {
            contract.METRIC_GPU_UTILIZATION: gpu.utilization,
            "nv_gpu_memory_total_bytes": gpu.memory_total_bytes,
            "nv_gpu_memory_used_bytes": gpu.memory_used_bytes,
            "nv_gpu_power_usage": gpu.power_usage_w,
            "nv_gpu_power_limit": gpu.power_limit_w,
            "nv_energy_consumption": gpu.energy_j,
        }
        for name, value in values.items():
            if value is not None:
                families[name].add(value, {"gpu_uuid": gpu.uuid})


def _labels(model: str, version: int) -> dict[str, str]:
    return {"model": model, "version": str(version) if model else ""}


def _tag(name: str) -> str:
    return "_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)

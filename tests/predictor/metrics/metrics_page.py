"""Text of the section on metrics in docs/reference/metrics.md, made from their definitions."""

from typing import Final

from pilotlight.contract import BATCH_BUCKETS, LATENCY_BUCKETS, METRICS_PORT
from pilotlight_predictor.metrics.definitions import IDENTITY_LABELS, PILOTLIGHT, TRITON, Metric
from pilotlight_predictor.metrics.model_stats import FAILURE_REASONS, LOAD_RATIO_BUCKETS

INTRODUCTION: Final = """# Metrics of a predictor

Scrape `/metrics` on port {port} (with `--compat triton|trtis`: 8002), or on the serving port. The format is
Prometheus text 0.0.4, or OpenMetrics 1.0 if the `Accept` header requests it; names are the same in both, but
OpenMetrics types Triton's counters, whose names do not end in `_total`, as `unknown`. [Custom
metrics](backends.md#triton_python_backend_utils) of Python models follow these.

"""

PILOTLIGHT_SECTION: Final = """## Pilotlight

Every series also has {identity}, if set (`observability.service`, `.namespace` and `.revision` in
[settings](settings.md)). `version` and `model` are empty for requests that reached no model.

- Latency buckets in seconds: {latency}
- Batch size buckets: {batch}

"""

TRITON_SECTION: Final = """## Triton

Names, types and labels of NVIDIA Triton and, where they differ, of the TensorRT Inference Server
(`nv_inference_compute_duration_us`, `nv_inference_load_ratio`). A tag `team` in a model's `metric_tags` becomes the
label `_team`. As in Triton, every request of a batch is charged the compute time of the whole batch, so
`nv_inference_compute_infer_duration_us` / `nv_inference_request_success` is the compute time per request. Cache
metrics exist for models with a response cache, GPU metrics with the `gpu` extra and an NVML device (sampled each
second). `process_cpu_seconds_total` is named as in Prometheus' client libraries.

- `reason` of a failure: {reasons}
- Load ratio buckets: {ratio}

"""


def page() -> str:
    identity = ", ".join(f"`{label}`" for label in IDENTITY_LABELS)
    pilotlight = PILOTLIGHT_SECTION.format(
        identity=identity, latency=_edges(LATENCY_BUCKETS), batch=_edges(BATCH_BUCKETS)
    )
    triton = TRITON_SECTION.format(reasons=", ".join(FAILURE_REASONS), ratio=_edges(LOAD_RATIO_BUCKETS))
    parts = [INTRODUCTION.format(port=METRICS_PORT), pilotlight, _table(PILOTLIGHT), "\n", triton, _table(TRITON)]
    return "".join(parts)


def _table(metrics: tuple[Metric, ...]) -> str:
    rows = [f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |\n" for m in metrics]
    return "| name | type | labels | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _edges(bounds: tuple[float, ...]) -> str:
    return ", ".join(f"{bound:g}" for bound in bounds)

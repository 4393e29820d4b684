"""Text of the section on metrics in docs/reference/metrics.md, made from their definitions."""

from typing import Final

from pilotlight.contract import BATCH_BUCKETS, LATENCY_BUCKETS, METRICS_PORT
from pilotlight_predictor.metrics.definitions import IDENTITY_LABELS, PILOTLIGHT, TRITON, Metric
from pilotlight_predictor.metrics.model_stats import FAILURE_REASONS, LOAD_RATIO_BUCKETS

INTRODUCTION: Final = """# Metrics of a predictor

This page is generated from `pilotlight_predictor/metrics/definitions.py`; a test keeps the two equal.

Scrape `/metrics` on port {port} (with `--compat triton|trtis`: 8002), or on the serving port. The format is Prometheus
text 0.0.4, or OpenMetrics 1.0 when the `Accept` header asks for it. Series have the same names in both; OpenMetrics
reserves the type counter for names that end in `_total`, so there Triton's counters are typed `unknown`.
What Python models count themselves ([page](grpc.md#answers-in-parts)) comes after all of these.

"""

PILOTLIGHT_SECTION: Final = """## Pilotlight

Every series also carries {identity}, as far as they are set
(`observability.service`, `.namespace` and `.revision` in settings.md). `version` and `model` are empty for requests
that reached no model.

- Buckets of seconds, so chosen that common objectives are edges: {latency}
- Buckets of batch sizes: {batch}

"""

TRITON_SECTION: Final = """## Triton

The names, types and labels of NVIDIA Triton and, where they differ, of the TensorRT Inference Server before it
(`nv_inference_compute_duration_us`, `nv_inference_load_ratio`). A tag `team` among a model's `metric_tags` becomes the
label `_team`. Every request of a batch is charged the compute time of the whole batch, as Triton does, so
`nv_inference_compute_infer_duration_us` / `nv_inference_request_success` is what a request experienced. Cache metrics
appear for models with a response cache, GPU metrics where the `gpu` extra is installed and NVML finds a device; these
are sampled each second, off the request path.

- `reason` of a failure: {reasons}
- Buckets of the load ratio: {ratio}

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
    return "| name | type | labels | what it says |\n|---|---|---|---|\n" + "".join(rows)


def _edges(bounds: tuple[float, ...]) -> str:
    return ", ".join(f"{bound:g}" for bound in bounds)

"""Panels about GPUs have data where a replica has one: promtool asks what the page of a predictor with a GPU tells."""

import json
import subprocess
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.platform.observability.queries import NAMES, PANELS, expressions, needs_gpu

from pilotlight_predictor.metrics import Metrics
from pilotlight_predictor.metrics.collector import collect
from pilotlight_predictor.metrics.exposition import TEXT, expose
from pilotlight_predictor.metrics.gpu_readings import GpuSample

GPU = GpuSample(0, "GPU-abc", "H200", 0.5, 100, 40, 350.5, 700.0, 12.5)
WHOSE = 'namespace="lab",inference_service="iris"'  # which whoever scrapes a replica adds to what it tells
EXPRESSIONS = [expression for _, panel in PANELS if needs_gpu(panel) for expression in expressions(panel)]


def exported() -> dict[str, float]:
    """By name, what a predictor tells of its one GPU."""
    metrics = Metrics()
    metrics.gpus = lambda: [GPU]
    families = text_string_to_metric_families(expose(collect(metrics), TEXT).decode())
    return {each.name: each.value for family in families for each in family.samples if "gpu_uuid" in each.labels}


def test_every_gpu_panel_shows_what_a_predictor_with_a_gpu_exports(promtool: str, tmp_path: Path) -> None:
    told = exported()
    series = [
        {"series": f'{name}{{{WHOSE},gpu_uuid="{GPU.uuid}"}}', "values": f"{value}x5"} for name, value in told.items()
    ]
    asked = [
        {
            "expr": each,
            "eval_time": "3m",
            "exp_samples": [{"labels": f'{{gpu_uuid="{GPU.uuid}"}}', "value": told[NAMES.findall(each)[0]]}],
        }
        for each in EXPRESSIONS
    ]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    (tmp_path / "tests.yaml").write_text(json.dumps({"rule_files": [], "tests": [case]}))
    done = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "tests.yaml")], capture_output=True, text=True, timeout=120
    )
    assert len(EXPRESSIONS) == 4
    assert done.returncode == 0, done.stdout + done.stderr

"""Metrics: `definitions` names them, `registry` counts, `collector` aggregates at scrape time, `exposition` writes."""

from pilotlight_predictor.metrics.model_stats import Histogram, ModelStats
from pilotlight_predictor.metrics.registry import Metrics, ModelState, QueueDepth, identity_labels

__all__ = ["Histogram", "Metrics", "ModelState", "ModelStats", "QueueDepth", "identity_labels"]

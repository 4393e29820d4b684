"""Whoever starts several workers on a GPU is told that each holds the models."""

from dataclasses import dataclass, field, replace

import pytest

from pilotlight_predictor.config import Settings
from pilotlight_predictor.repository.model_config import InstanceGroup, ModelConfig
from pilotlight_predictor.workers import worker


@dataclass
class Served:
    config: ModelConfig

    @property
    def name(self) -> str:
        return self.config.name


@dataclass
class House:
    """Settings and a registry of two models: what the warning reads of a server."""

    settings: Settings = field(
        default_factory=lambda: replace(Settings(), server=replace(Settings().server, workers=4))
    )

    @property
    def registry(self) -> "House":
        return self

    def serving(self) -> list[Served]:
        on_cpu = ModelConfig("on_cpu", instance_groups=(InstanceGroup(1, kind="CPU"),))
        return [Served(ModelConfig("anywhere")), Served(on_cpu)]


@pytest.mark.parametrize(("gpus", "told"), [(0, []), (1, [["anywhere"]])])
def test_the_models_on_the_gpu_are_named(gpus: int, told: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[list[str]] = []
    monkeypatch.setattr("pilotlight_predictor.backends.device_placement.gpu_count", lambda: gpus)
    monkeypatch.setattr(worker, "log", lambda *_, models, **__: lines.append(models))
    worker.warn_about_gpu_copies(House())  # type: ignore[arg-type]
    assert lines == told

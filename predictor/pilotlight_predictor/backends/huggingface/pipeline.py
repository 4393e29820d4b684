"""Interface of a pipeline, and what several of them share: the loaded model, decoded texts, classification."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pilotlight_predictor.backends.huggingface.task import TaskSettings
from pilotlight_predictor.core.requests import Inputs, Outputs
from pilotlight_predictor.core.tensors import Tensor, TensorSpec, objects
from pilotlight_predictor.errors import BadRequest

if TYPE_CHECKING:
    import torch


class Pipeline:
    """Computation of one task on the rows of a batch; every output has as many rows as the inputs."""

    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    on_request: frozenset[str] = frozenset()  # outputs for requests that name them
    sample: Inputs | None = None  # a row for the warm-up, where the pipeline rejects zeros

    def __init__(self, model: "PipelineModel", settings: TaskSettings) -> None:
        self.model, self.settings = model, settings

    def run(self, inputs: Inputs) -> Outputs:
        """Return the outputs, from any thread. Raise BadRequest for a row that cannot be read."""
        raise NotImplementedError


class PipelineModel:
    """A module of transformers on its device, and its directory."""

    def __init__(self, name: str, folder: Path, module: Any) -> None:
        self.name, self.folder, self.module = name, folder, module
        self.config, self.device, self.dtype = module.config, module.device, module.dtype

    def forward(self, values: "Mapping[str, torch.Tensor]") -> Any:
        import torch

        with torch.inference_mode():
            return self.module(**self._on_device(values), return_dict=True)

    def generate(self, values: "Mapping[str, torch.Tensor]", **options: Any) -> Any:
        import torch

        with torch.inference_mode():
            return self.module.generate(**self._on_device(values), **options)

    def _on_device(self, values: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        return {
            name: value.to(self.device, self.dtype if value.is_floating_point() else None)
            for name, value in values.items()
        }


class ClassificationHead:
    """Logits of a classifier → outputs, with the activation that transformers' pipelines choose."""

    def __init__(self, config: Any, settings: TaskSettings) -> None:
        count = config.num_labels
        self._labels = np.array([str(config.id2label[index]).encode() for index in range(count)], dtype=object)
        self._activation = "softmax" if count > 1 else "sigmoid"
        if config.problem_type == "multi_label_classification":
            self._activation = "sigmoid"
        elif config.problem_type == "regression":
            self._activation = ""
        self.outputs = (
            TensorSpec("label", "BYTES", (-1,)), TensorSpec("score", "FP32", (-1,)),
            TensorSpec("probabilities", "FP32", (-1, count)), TensorSpec("logits", "FP32", (-1, count)),
        )  # fmt: skip
        always = {"probabilities": settings.return_probabilities, "logits": settings.return_raw_logits}
        self.on_request = frozenset(name for name, returned in always.items() if not returned)

    def read(self, logits: "torch.Tensor") -> Outputs:
        logits = logits.float().cpu()
        scores = logits.softmax(-1) if self._activation == "softmax" else logits
        scores = logits.sigmoid() if self._activation == "sigmoid" else scores
        values, best = scores.max(-1)
        return {
            "label": Tensor("BYTES", self._labels[best.numpy()]),
            "score": Tensor("FP32", values.numpy()),
            "probabilities": Tensor("FP32", scores.numpy()),
            "logits": Tensor("FP32", logits.numpy()),
        }


def texts_of(inputs: Inputs, name: str) -> list[str]:
    """Return the rows of a BYTES input as text."""
    try:
        return [bytes(item).decode() for item in inputs[name].array]
    except UnicodeDecodeError:
        raise BadRequest(f"input '{name}' is not UTF-8 text") from None


def strings(values: Sequence[bytes]) -> Tensor:
    return Tensor("BYTES", objects(values))

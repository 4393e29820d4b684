"""Models in Hugging Face's layout for tasks other than text generation, run by transformers.

docs/reference/backends.md describes them.

A pipeline (text_pipelines.py, media_pipelines.py) computes the rows of a batch of requests at once. Weights are read as
safetensors, or from a pytorch_model.bin that holds tensors alone; code in a model's directory is never run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace

from pilotlight_predictor.backends.base import Answer, Device, LoadSpec, TensorInstance, first_line
from pilotlight_predictor.backends.huggingface.pipeline import Pipeline, PipelineModel
from pilotlight_predictor.backends.huggingface.task import EMBEDDING, Task, choose_task, read_settings
from pilotlight_predictor.backends.torch import safe_load
from pilotlight_predictor.backends.torch.tensors import PRECISIONS
from pilotlight_predictor.backends.transformers_library import LOADING, check_paths, check_weights, import_transformers
from pilotlight_predictor.core.backend_table import generates_text
from pilotlight_predictor.core.batch import merge, split
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import LoadFailed

PICKLE = "pytorch_model.bin"
# What V2 clients of MLServer's and KServe's runtimes call the only input of a task.
INPUT_ALIASES = frozenset({"args", "array_inputs", "inputs", "input-0"})


class HuggingFaceInstance(TensorInstance):
    """A pipeline; clones share it. Outputs that it has on request only are left out of other responses."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.inputs, self.outputs, self.sample = pipeline.inputs, pipeline.outputs, pipeline.sample
        one = sum(not spec.optional for spec in pipeline.inputs) == 1
        self.input_aliases = INPUT_ALIASES if one else frozenset()

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        merged, rows = merge(batch)
        answers = split(self._pipeline.run(merged), rows)
        return [
            {
                name: tensor
                for name, tensor in answer.items()
                if name not in self._pipeline.on_request or any(output.name == name for output in request.outputs)
            }
            for request, answer in zip(batch, answers, strict=True)
        ]

    def clone(self) -> "HuggingFaceInstance":
        return HuggingFaceInstance(self._pipeline)

    def close(self) -> None:
        """Free the weights with the last clone, on a GPU also torch's cache, for other processes."""
        import torch

        device = self._pipeline.model.device
        del self._pipeline
        if device.type == "cuda":
            torch.cuda.empty_cache()


def alternative_backend(spec: LoadSpec) -> str:
    """Leave causal language models to the text backend."""
    return "text" if generates_text(spec.folder) else "huggingface"


def prepare() -> None:
    with LOADING:
        import_transformers("AutoTokenizer", "AutoModel")


def load(spec: LoadSpec) -> HuggingFaceInstance:
    folder, name = spec.folder, spec.config.name
    settings = read_settings(name, spec.config.parameters)
    task = choose_task(name, folder, settings.task)
    kind = _pipeline_class(task)
    with LOADING:
        return HuggingFaceInstance(kind(PipelineModel(name, folder, _load_module(spec, folder, task)), settings))


def _pipeline_class(task: Task) -> type[Pipeline]:
    if task.name in {"image-classification", "automatic-speech-recognition"}:
        from pilotlight_predictor.backends.huggingface import media_pipelines

        return media_pipelines.PIPELINES[task.auto_class]
    from pilotlight_predictor.backends.huggingface import text_pipelines

    return text_pipelines.PIPELINES[task.name]


def _load_module(spec: LoadSpec, folder: Path, task: Task) -> Any:
    check_paths(folder)
    transformers = import_transformers(task.auto_class)
    import torch

    if spec.threads:
        torch.set_num_threads(spec.threads)
    source: Path | None = folder
    kind = getattr(transformers, task.auto_class)
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        if not any(folder.glob("*.safetensors")) and (folder / PICKLE).is_file():
            config = transformers.AutoConfig.from_pretrained(folder, **options)
            with torch.device("meta"):
                kind = type(kind.from_config(config))
            weights = safe_load.load(replace(spec, path=folder / PICKLE, device=Device()), _no_code)
            source, options = None, {"config": config, "state_dict": weights}
        else:
            check_weights(folder, task.auto_class)
        module, report = kind.from_pretrained(
            source, dtype=PRECISIONS.get(spec.precision, "auto"), use_safetensors=True, output_loading_info=True,
            **options,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise LoadFailed(f"{folder.name}: {first_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing and task != EMBEDDING:  # an encoder's pooler is not used
        raise LoadFailed(
            f"{folder.name}: the weights lack {', '.join(missing[:3])}, which {type(module).__name__} needs: save the "
            "model by save_pretrained, with the head it was trained with"
        )
    return module.to(torch.device(str(spec.device))).eval().requires_grad_(False)


def _no_code(module: str, name: str) -> NoReturn:
    raise LoadFailed(f"{PICKLE} needs {module}.{name}, but a model in the Hugging Face layout has no code")
